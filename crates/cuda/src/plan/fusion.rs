//! Finding groups of nodes that are fused ([`FusionGroup`]).
//!
//! A group runs in the place of one of its nodes, its leader. The memory plan asks [`FusionGroups::runs_with`] for the
//! leader, so that the live ranges of the group's inputs and outputs include its place.

use std::collections::{HashMap, HashSet};

use vit_graph::memory::root_of;
use vit_graph::ops::{Activation, ActivationGrad, Binary, Dropout, Granularity, Op, Reduce};
use vit_graph::{Graph, Node, NodeId, Value};

use crate::lower::{is_optimiser, share_launch, supports_column_sums};
use crate::plan::group::{FusionGroup, LayerNormGradGroup, ReluDerivative};

/// All groups of a graph.
#[derive(Debug, Default)]
pub(crate) struct FusionGroups {
    pub by_leader: HashMap<NodeId, FusionGroup>,
    /// The leader of each other node of a group.
    leaders: HashMap<NodeId, NodeId>,
    /// Values within a group, which are never written.
    pub unwritten: HashSet<Value>,
}

impl FusionGroups {
    /// Finds the groups among the nodes for which `runs` is true, those of every run; `in_place` has the values that
    /// overwrite parameters.
    pub fn new(graph: &Graph, runs: &[bool], in_place: &HashMap<Value, Value>) -> Self {
        let mut groups = FusionGroups::default();
        groups.find_updates(graph, runs, in_place);
        let sums = column_sums(graph, runs);
        groups.find_dropped_sums(graph, runs);
        groups.find_norm_grads(graph, runs, &sums);
        groups.find_relus(graph, runs);
        groups.find_relu_grads(graph, runs);
        groups.find_activation_grads(graph, runs, &sums);
        groups
    }

    /// The node in whose place a node runs: its leader, or itself.
    pub fn runs_with(&self, node: NodeId) -> NodeId {
        self.leaders.get(&node).copied().unwrap_or(node)
    }

    /// Adds a group of nodes in ascending order, which the last one leads.
    fn add(&mut self, nodes: &[NodeId], group: FusionGroup) {
        let Some((&last, others)) = nodes.split_last() else { return };
        others.iter().for_each(|&node| {
            self.leaders.insert(node, last);
        });
        self.by_leader.insert(last, group);
    }

    /// In-place updates, in separate groups for optimisers, moving averages and guarded updates. A group is closed
    /// before the first node that reads one of its new values (averages may read those of the optimiser's group) or
    /// cannot share its launches. Old values need no check: their consumers precede an update in place.
    fn find_updates(&mut self, graph: &Graph, runs: &[bool], in_place: &HashMap<Value, Value>) {
        let (mut optimiser, mut averages, mut guarded): (Vec<NodeId>, Vec<NodeId>, Vec<NodeId>) = Default::default();
        for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| runs[*id]) {
            let in_place = (0..node.outputs.len()).all(|output| in_place.contains_key(&Value { node: id, output }));
            let reads = |of: &[NodeId]| node.inputs.iter().any(|v| of.contains(&root_of(graph, *v).node));
            if reads(&guarded) {
                self.add_updates(std::mem::take(&mut guarded));
            }
            // Any two of these share a launch.
            if let (Op::GuardedUpdate(_), true) = (&node.op, in_place) {
                guarded.push(id);
            }
            let average = matches!(node.op, Op::MovingAverage(_));
            let joins = in_place && (average || is_optimiser(&node.op));
            let agrees = |others: &[NodeId]| others.last().is_none_or(|&other| share_launch(node, graph.node(other)));
            let must_close = match (joins, average) {
                (true, true) => reads(&averages) || !agrees(&averages),
                (true, false) => reads(&optimiser) || reads(&averages) || !agrees(&optimiser),
                (false, _) => reads(&optimiser) || reads(&averages),
            };
            if must_close {
                self.close(&mut optimiser, &mut averages);
            }
            match (joins, average) {
                (true, true) => averages.push(id),
                (true, false) => optimiser.push(id),
                (false, _) => {}
            }
        }
        self.close(&mut optimiser, &mut averages);
        self.add_updates(guarded);
    }

    /// Ends both groups. Optimiser updates after the last average are a further group: a group runs in the place of its
    /// last node, and the averages must run after the updates that they read.
    fn close(&mut self, optimiser: &mut Vec<NodeId>, averages: &mut Vec<NodeId>) {
        let last = averages.last().copied().unwrap_or(0);
        let (before, after): (Vec<NodeId>, Vec<NodeId>) = optimiser.drain(..).partition(|&id| id < last);
        for group in [before, after, std::mem::take(averages)] {
            self.add_updates(group);
        }
    }

    fn add_updates(&mut self, nodes: Vec<NodeId>) {
        if nodes.len() > 1 {
            self.add(&nodes, FusionGroup::Updates(nodes.clone()));
        }
    }

    /// Layer norms of a sum, one term of which has stochastic depth and no other use.
    fn find_dropped_sums(&mut self, graph: &Graph, runs: &[bool]) {
        let (nodes, uses) = (graph.nodes(), graph.uses());
        for (norm, node) in nodes.iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::AddLayerNorm(op) = &node.op else { continue };
            let fused = |(side, v): (usize, &Value)| {
                let dropout = row_dropout(graph, v.node)?;
                (runs[v.node] && uses[v.node][0] == 1).then_some((side, dropout))
            };
            let Some((side, dropout)) = node.inputs[..2].iter().enumerate().find_map(fused) else { continue };
            let (dropped, other) = (node.inputs[side], node.inputs[1 - side]);
            self.unwritten.insert(dropped);
            let group = FusionGroup::DroppedAddNorm { op: op.0, norm, dropout, drop: dropped.node, other };
            self.add(&[dropped.node, norm], group);
        }
    }

    /// Gradients of layer norms, with what follows them: a sum that is the only use of `dx`, stochastic depth of the
    /// result, column sums of that. The sum leads, or else the norm; the later nodes can run early, since they read
    /// only the leader's result, one another's and a seed.
    fn find_norm_grads(&mut self, graph: &Graph, runs: &[bool], sums: &HashMap<Value, NodeId>) {
        let uses = graph.uses();
        let nodes = graph.nodes();
        let mut found: HashMap<NodeId, LayerNormGradGroup> = (nodes.iter().enumerate())
            .filter_map(|(norm, node)| match node.op {
                Op::LayerNormGrad(op) if runs[norm] => {
                    Some((norm, LayerNormGradGroup { op, norm, residual: None, drop: None, sums: None }))
                }
                _ => None,
            })
            .collect();
        for (sum, node) in nodes.iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::Binary(Binary::Add) = node.op else { continue };
            let fuses = |v: &Value| found.contains_key(&v.node) && v.output == 0 && uses[v.node][0] == 1;
            let Some(side) = node.inputs.iter().position(fuses) else { continue };
            let (dx, other) = (node.inputs[side], node.inputs[1 - side]);
            let norm = dx.node;
            // The norm's other outputs are written in the place of the sum, so they must have no consumer before it.
            let read_before =
                nodes[norm + 1..sum].iter().any(|n| n.inputs.iter().any(|v| root_of(graph, *v).node == norm));
            if graph.shape(dx) == graph.shape(other) && root_of(graph, other).node != norm && !read_before {
                self.unwritten.insert(dx);
                found.entry(norm).and_modify(|group| group.residual = Some((sum, other)));
            }
        }
        for mut group in found.into_values() {
            let result = group.result();
            group.sums = sums.get(&result).copied();
            let dropped = |(id, node): (NodeId, &Node)| {
                let dropout = row_dropout(graph, id)?;
                (runs[id] && node.inputs[0] == result && self.runs_with(id) == id).then_some((id, dropout))
            };
            if group.sums.is_none() {
                group.drop = nodes.iter().enumerate().find_map(dropped);
                group.sums = group.drop.and_then(|(node, _)| sums.get(&Value { node, output: 0 }).copied());
            }
            if result.node != group.norm || group.drop.is_some() || group.sums.is_some() {
                let norm = Some(group.norm).filter(|&norm| norm != result.node);
                let others = [norm, group.drop.map(|(drop, _)| drop), group.sums];
                self.leaders.extend(others.into_iter().flatten().map(|node| (node, result.node)));
                self.by_leader.insert(result.node, FusionGroup::LayerNormGrad(group));
            }
        }
    }

    /// Gradients of activations whose column sums are computed; the gradient leads, and the sums run early, with it.
    fn find_activation_grads(&mut self, graph: &Graph, runs: &[bool], sums: &HashMap<Value, NodeId>) {
        for (grad, node) in graph.nodes().iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::ActivationGrad(op) = node.op else { continue };
            let Some(&sums) = sums.get(&Value { node: grad, output: 0 }) else { continue };
            let grouped = self.by_leader.contains_key(&grad) || self.leaders.contains_key(&grad);
            if !grouped && supports_column_sums(graph.shape(Value { node: grad, output: 0 }).last()) {
                self.leaders.insert(sums, grad);
                self.by_leader.insert(grad, FusionGroup::ActivationGrad { activation: op.0, grad, sums });
            }
        }
    }

    /// Batch norms whose only use is a relu, or a sum whose only use is a relu.
    fn find_relus(&mut self, graph: &Graph, runs: &[bool]) {
        let (nodes, uses) = (graph.nodes(), graph.uses());
        let only_use = |v: Value| uses[v.node][v.output] == 1 && runs[v.node];
        let norm_of = |v: Value| match nodes[v.node].op {
            Op::BatchNorm(op) if v.output == 0 && only_use(v) => Some(op),
            _ => None,
        };
        for (relu, node) in nodes.iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::Activation(Activation::Relu) = node.op else { continue };
            let input = node.inputs[0];
            let mut group = Vec::new();
            let (op, norm, residual) = match (norm_of(input), &nodes[input.node].op) {
                (Some(op), _) => (op, input.node, None),
                (None, Op::Binary(Binary::Add)) if only_use(input) => {
                    let terms = &nodes[input.node].inputs;
                    let norm = terms.iter().enumerate().find_map(|(side, &v)| Some((side, norm_of(v)?)));
                    let Some((side, op)) = norm else { continue };
                    if graph.shape(terms[0]) != graph.shape(terms[1]) {
                        continue;
                    }
                    group.push(input.node);
                    (op, terms[side].node, Some(terms[1 - side]))
                }
                _ => continue,
            };
            group.extend([norm, relu]);
            group.sort_unstable();
            // The norm's other outputs are written in the place of the relu, so they must have no consumer before it.
            let in_group = |id: NodeId| group.contains(&id);
            let read_before = (norm + 1..relu)
                .any(|id| !in_group(id) && nodes[id].inputs.iter().any(|v| root_of(graph, *v).node == norm));
            if read_before || residual.is_some_and(|v| root_of(graph, v).node == norm) {
                continue;
            }
            self.unwritten.extend([Value { node: norm, output: 0 }]);
            self.unwritten.extend(residual.map(|_| input));
            self.add(&group, FusionGroup::BatchNormRelu { op, norm, relu, residual });
        }
    }

    /// Gradients of relus whose first consumer is the gradient of a batch norm.
    fn find_relu_grads(&mut self, graph: &Graph, runs: &[bool]) {
        let (nodes, uses) = (graph.nodes(), graph.uses());
        for (relu, node) in nodes.iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::ActivationGrad(ActivationGrad(Activation::Relu)) = node.op else { continue };
            let dx = Value { node: relu, output: 0 };
            let reads = |id: NodeId| nodes[id].inputs.iter().any(|v| root_of(graph, *v) == dx);
            let Some(norm) = (relu + 1..nodes.len()).find(|&id| reads(id)) else { continue };
            let inputs = &nodes[norm].inputs;
            if !matches!(nodes[norm].op, Op::BatchNormGrad(_)) || inputs[0] != dx || !runs[norm] {
                continue;
            }
            // `rewrite::relu_grad_from_output` has replaced the relu's input by its result.
            let (result, gradient) = (node.inputs[0], node.inputs[1]);
            // The result of the norm in the forward pass, the node that computed the mean.
            let forward = Value { node: inputs[3].node, output: 0 };
            let follows_norm = matches!(nodes[forward.node].op, Op::BatchNorm(_))
                && matches!(nodes[result.node].op, Op::Activation(Activation::Relu))
                && nodes[result.node].inputs[0] == forward;
            if follows_norm && uses[relu][0] == 1 {
                self.unwritten.insert(dx);
                let derivative = ReluDerivative::OfNorm { beta: nodes[forward.node].inputs[2] };
                self.add(&[relu, norm], FusionGroup::BatchNormReluGrad { relu, norm, derivative });
                continue;
            }
            let terms = &nodes[gradient.node].inputs;
            let is_sum = matches!(nodes[gradient.node].op, Op::Binary(Binary::Add))
                && uses[gradient.node][0] == 1
                && runs[gradient.node]
                && !self.by_leader.contains_key(&gradient.node)
                && graph.shape(terms[0]) == graph.shape(terms[1]);
            let mut group = vec![relu, norm];
            let mut gradients = vec![gradient];
            if is_sum {
                self.unwritten.insert(gradient);
                group.insert(0, gradient.node);
                gradients = terms.clone();
            }
            let derivative = ReluDerivative::OfResult { result, gradients };
            self.add(&group, FusionGroup::BatchNormReluGrad { relu, norm, derivative });
        }
    }
}

/// The dropout of a node that is stochastic depth over at least two axes, so that a sample consists of whole rows.
fn row_dropout(graph: &Graph, node: NodeId) -> Option<Dropout> {
    let node = graph.node(node);
    match node.op {
        Op::Dropout(op) if op.granularity == Granularity::Sample && node.outputs[0].shape.len() > 1 => Some(op),
        _ => None,
    }
}

/// By value: the node that sums its columns. A reshape to a matrix with the same columns may precede the sum.
fn column_sums(graph: &Graph, runs: &[bool]) -> HashMap<Value, NodeId> {
    let mut found = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| runs[*id]) {
        let Op::Reduce(reduce) = &node.op else { continue };
        let value = root_of(graph, node.inputs[0]);
        let (matrix, shape) = (graph.shape(node.inputs[0]), graph.shape(value));
        if *reduce == Reduce::sum([0]) && matrix.len() == 2 && !shape.is_empty() && shape.last() == matrix[1] {
            found.entry(value).or_insert(id);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use vit_graph::ops::{Activation, ActivationGrad, Input, Reduce};
    use vit_graph::{DType, Graph, Type};
    use vit_train::{StepOptions, TrainingStep};

    use crate::Precision;
    use crate::device::rewritten;
    use crate::plan::prepare::{LoweringTarget, Prepared};

    /// The launches of a training step, by name.
    fn steps(drop_path: f32) -> Vec<String> {
        let mut architecture = vit_models::variant("vit_tiny_patch16_224").unwrap().architecture;
        architecture.set_drop_path(drop_path);
        let graph = TrainingStep::new(&architecture, 2, StepOptions::default()).unwrap().graph;
        let target = LoweringTarget { precision: Precision::Bf16, multiprocessors: 132, hopper: true };
        let prepared = Prepared::new(rewritten(&graph).unwrap(), target).unwrap();
        let emitted = |id| Some((id, prepared.emit(id, None).unwrap()?));
        let all = (0..prepared.graph.nodes().len()).filter_map(emitted);
        all.flat_map(|(id, e)| vec![prepared.info(id, &e).op; e.requests.len()]).collect()
    }

    /// The kernels of fused operations compute with extents in u32, too.
    #[test]
    fn extents_of_fused_operations_are_checked() {
        let prepared = |rows: usize| {
            let mut graph = Graph::default();
            let ty = Type::new(DType::F32, [rows, 64]);
            let [x, dy] =
                ["x", "dy"].map(|name| graph.value(Input { name: name.into(), ty: ty.clone() }, &[]).unwrap());
            let dx = graph.value(ActivationGrad(Activation::Gelu), &[x, dy]).unwrap();
            let sums = graph.value(Reduce::sum([0]), &[dx]).unwrap();
            graph.set_output("dx", dx).unwrap();
            graph.set_output("sums", sums).unwrap();
            let target = LoweringTarget { precision: Precision::Bf16, multiprocessors: 132, hopper: true };
            Prepared::new(graph, target)
        };
        assert_eq!(prepared(16).unwrap().groups.by_leader.len(), 1);
        assert!(prepared(1 << 31).is_err());
    }

    #[test]
    fn stochastic_depth_needs_no_launches() {
        let (with, without) = (steps(0.1), steps(0.0));
        assert_eq!(with.len(), without.len(), "{with:?}");
        // The first of twelve blocks drops nothing; the branches of the others do, forward and backward.
        assert_eq!(with.iter().filter(|op| *op == "drop_path+add_layer_norm").count(), 22);
        assert_eq!(with.iter().filter(|op| op.contains("grad") && op.contains("+drop_path+sums")).count(), 2 * 22);
    }
}
