//! Finding groups of nodes that are fused ([`FusionGroup`]).
//!
//! A group runs in the place of one of its nodes, its leader. The memory plan reads that from
//! [`FusionGroups::runs_with`], so that the live ranges of the group's inputs and outputs include that place.

use std::collections::{HashMap, HashSet};

use vit_graph::memory::root_of;
use vit_graph::ops::{Activation, ActivationGrad, Binary, Op, Reduce};
use vit_graph::{Graph, Node, NodeId, Value};

use crate::lower::{is_optimiser, share_launch, supports_column_sums};
use crate::plan::group::{FusionGroup, LayerNormGradGroup, ReluDerivative, stochastic_depth};

/// All groups of a graph.
#[derive(Debug, Default)]
pub(crate) struct FusionGroups {
    /// By the leader of a group.
    pub by_leader: HashMap<NodeId, FusionGroup>,
    /// The leader of each other node of a group.
    leaders: HashMap<NodeId, NodeId>,
    /// Values within a group, which are never written.
    pub unwritten: HashSet<Value>,
}

impl FusionGroups {
    /// Finds the groups among the nodes that run every time; `in_place` has the values that overwrite parameters.
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

    /// In-place updates whose new values have no consumer before the last of the group. Consumers of an old value
    /// precede its update, else that would not be in place. Moving averages of the new values are a separate group,
    /// which follows, and so are guarded updates, any two of which share a launch.
    fn find_updates(&mut self, graph: &Graph, runs: &[bool], in_place: &HashMap<Value, Value>) {
        let (mut optimiser, mut averages, mut guarded): (Vec<NodeId>, Vec<NodeId>, Vec<NodeId>) = Default::default();
        for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| runs[*id]) {
            let in_place = (0..node.outputs.len()).all(|output| in_place.contains_key(&Value { node: id, output }));
            let reads = |of: &[NodeId]| node.inputs.iter().any(|v| of.contains(&root_of(graph, *v).node));
            if reads(&guarded) {
                self.add_updates(std::mem::take(&mut guarded));
            }
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

    /// Ends both groups. Updates after the last average are a separate group, since averages run after the updates that
    /// they read.
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
            let Op::AddLayerNorm(_) = node.op else { continue };
            let fuses = |v: &Value| runs[v.node] && drops_rows(graph, v.node) && uses[v.node][0] == 1;
            let Some(side) = node.inputs[..2].iter().position(fuses) else { continue };
            let (dropped, other) = (node.inputs[side], node.inputs[1 - side]);
            self.unwritten.insert(dropped);
            let group = FusionGroup::DroppedAddNorm { norm, drop: dropped.node, other };
            self.add(&[dropped.node, norm], group);
        }
    }

    /// Gradients of layer norms, each with the sum that is the only use of its `dx`, with stochastic depth and with
    /// column sums of the result. The sum leads, or else the norm; nodes after it read only its result and a seed.
    fn find_norm_grads(&mut self, graph: &Graph, runs: &[bool], sums: &HashMap<Value, NodeId>) {
        let uses = graph.uses();
        let nodes = graph.nodes();
        let mut found: HashMap<NodeId, LayerNormGradGroup> = (nodes.iter().enumerate())
            .filter(|(id, node)| runs[*id] && matches!(node.op, Op::LayerNormGrad(_)))
            .map(|(norm, _)| (norm, LayerNormGradGroup { norm, residual: None, drop: None, sums: None }))
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
                found.insert(norm, LayerNormGradGroup { norm, residual: Some((sum, other)), drop: None, sums: None });
            }
        }
        for mut group in found.into_values() {
            let result = group.result();
            group.sums = sums.get(&result).copied();
            let drops = |(id, node): &(NodeId, &Node)| {
                runs[*id] && drops_rows(graph, *id) && node.inputs[0] == result && self.runs_with(*id) == *id
            };
            if group.sums.is_none() {
                group.drop = nodes.iter().enumerate().find(drops).map(|(id, _)| id);
                group.sums = group.drop.and_then(|node| sums.get(&Value { node, output: 0 }).copied());
            }
            if result.node != group.norm || group.drop.is_some() || group.sums.is_some() {
                let others = [Some(group.norm).filter(|&norm| norm != result.node), group.drop, group.sums];
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
        let is_norm = |v: Value| matches!(nodes[v.node].op, Op::BatchNorm(_)) && v.output == 0 && only_use(v);
        for (relu, node) in nodes.iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::Activation(Activation::Relu) = node.op else { continue };
            let before = node.inputs[0];
            let mut group = Vec::new();
            let (norm, residual) = match &nodes[before.node].op {
                _ if is_norm(before) => (before.node, None),
                Op::Binary(Binary::Add) if only_use(before) => {
                    let terms = &nodes[before.node].inputs;
                    let Some(side) = terms.iter().position(|&v| is_norm(v)) else { continue };
                    if graph.shape(terms[0]) != graph.shape(terms[1]) {
                        continue;
                    }
                    group.push(before.node);
                    (terms[side].node, Some(terms[1 - side]))
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
            self.unwritten.extend(residual.map(|_| before));
            self.add(&group, FusionGroup::BatchNormRelu { norm, relu, residual });
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
            // The forward node of the norm, which computed its mean.
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

/// Whether a node is stochastic depth over at least two axes, so that a sample consists of whole rows.
fn drops_rows(graph: &Graph, node: NodeId) -> bool {
    stochastic_depth(graph.node(node)).is_some() && graph.node(node).outputs[0].shape.len() > 1
}

/// The nodes that compute the column sums of a value, possibly reshaped to a matrix with its columns, by that value.
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
