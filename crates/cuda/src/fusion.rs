//! Nodes that run together: the optimiser's updates of all parameters, a norm's gradient with the sum that follows it,
//! and gradients with their sums over all rows, which are those of a bias.
//!
//! The memory plan is told where each node runs, so that inputs live until then and outputs from then on.

use std::collections::{HashMap, HashSet};

use vit_graph::memory::storage;
use vit_graph::ops::{Activation, Binary, Op, Reduce};
use vit_graph::{Graph, NodeId, Value};

use crate::lower::{alike, takes_sums};

/// Several nodes as one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Group {
    /// Updates of several parameters with the same numbers.
    Updates(Vec<NodeId>),
    /// The gradient of a layer norm.
    NormGrad(NormGrad),
    /// The gradient of an activation, and its sums over all rows.
    ActivationGrad { activation: Activation, grad: NodeId, sums: NodeId },
}

/// What runs with a layer norm's gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NormGrad {
    pub norm: NodeId,
    /// The sum of its `dx` with another gradient.
    pub residual: Option<(NodeId, Value)>,
    /// The sums of that, or of `dx`, over all rows.
    pub sums: Option<NodeId>,
}

impl NormGrad {
    /// What takes the place of `dx`.
    pub fn result(&self) -> Value {
        Value { node: self.residual.map_or(self.norm, |(sum, _)| sum), output: 0 }
    }
}

/// All groups of a graph.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// By the node where a group runs.
    pub at: HashMap<NodeId, Group>,
    /// For nodes that run with another one: which.
    elsewhere: HashMap<NodeId, NodeId>,
    /// Values that are never written, because only the group itself would read them.
    pub unwritten: HashSet<Value>,
}

impl Groups {
    /// Finds the groups among the nodes that run every time; `in_place` says which values are written over parameters.
    pub fn new(graph: &Graph, runs: &[bool], in_place: &HashMap<Value, Value>) -> Self {
        let mut groups = Groups::default();
        groups.find_updates(graph, runs, in_place);
        let sums = column_sums(graph, runs);
        groups.find_norm_grads(graph, runs, &sums);
        groups.find_activation_grads(graph, runs, &sums);
        groups
    }

    /// Where a node runs.
    pub fn runs_with(&self, node: NodeId) -> NodeId {
        self.elsewhere.get(&node).copied().unwrap_or(node)
    }

    fn add(&mut self, nodes: &[NodeId], group: Group) {
        let Some((&last, others)) = nodes.split_last() else { return };
        others.iter().for_each(|&node| {
            self.elsewhere.insert(node, last);
        });
        self.at.insert(last, group);
    }

    /// Updates in place, of which nobody reads the new values before the last of them: whoever reads the old values
    /// stands before. Moving averages of what they give follow them, as a group of their own.
    fn find_updates(&mut self, graph: &Graph, runs: &[bool], in_place: &HashMap<Value, Value>) {
        let (mut open, mut averages): (Vec<NodeId>, Vec<NodeId>) = (Vec::new(), Vec::new());
        for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| runs[*id]) {
            let average = matches!(node.op, Op::MovingAverage(_));
            let update = average || matches!(node.op, Op::Adam(_) | Op::Sgd(_));
            let joins =
                update && (0..node.outputs.len()).all(|output| in_place.contains_key(&Value { node: id, output }));
            let reads = |of: &[NodeId]| node.inputs.iter().any(|v| of.contains(&storage(graph, *v).node));
            let agrees = open.last().is_none_or(|&other| {
                let other = graph.node(other);
                let numbers = node.inputs.len().saturating_sub(2);
                alike(&node.op, &other.op) && node.inputs[numbers..] == other.inputs[numbers..]
            });
            let waits = if average && joins { reads(&averages) } else { reads(&open) || reads(&averages) };
            if waits || (joins && !average && !agrees) {
                self.close(&mut open, &mut averages);
            }
            match (joins, average) {
                (true, true) => averages.push(id),
                (true, false) => open.push(id),
                (false, _) => {}
            }
        }
        self.close(&mut open, &mut averages);
    }

    /// Ends both groups. Updates after the last average make a group of their own: averages run after what they read.
    fn close(&mut self, open: &mut Vec<NodeId>, averages: &mut Vec<NodeId>) {
        let last = averages.last().copied().unwrap_or(0);
        let (before, after): (Vec<NodeId>, Vec<NodeId>) = open.drain(..).partition(|&id| id < last);
        for group in [before, after, std::mem::take(averages)] {
            if group.len() > 1 {
                self.add(&group, Group::Updates(group.clone()));
            }
        }
    }

    fn find_norm_grads(&mut self, graph: &Graph, runs: &[bool], sums: &HashMap<Value, NodeId>) {
        let uses = graph.uses();
        let nodes = graph.nodes();
        let mut found: HashMap<NodeId, NormGrad> = (nodes.iter().enumerate())
            .filter(|(id, node)| runs[*id] && matches!(node.op, Op::LayerNormGrad(_)))
            .map(|(norm, _)| (norm, NormGrad { norm, residual: None, sums: None }))
            .collect();
        for (sum, node) in nodes.iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::Binary(Binary::Add) = node.op else { continue };
            let suits = |v: &Value| found.contains_key(&v.node) && v.output == 0 && uses[v.node][0] == 1;
            let Some(side) = node.inputs.iter().position(suits) else { continue };
            let (dx, other) = (node.inputs[side], node.inputs[1 - side]);
            let norm = dx.node;
            // What the norm gives besides `dx` is written where the sum stands, so nobody may read it before.
            let read_before =
                nodes[norm + 1..sum].iter().any(|n| n.inputs.iter().any(|v| storage(graph, *v).node == norm));
            if graph.shape(dx) == graph.shape(other) && storage(graph, other).node != norm && !read_before {
                self.unwritten.insert(dx);
                found.insert(norm, NormGrad { norm, residual: Some((sum, other)), sums: None });
            }
        }
        for mut group in found.into_values() {
            let result = group.result();
            group.sums = sums.get(&result).copied();
            if result.node != group.norm || group.sums.is_some() {
                let others = [Some(group.norm).filter(|&norm| norm != result.node), group.sums];
                self.elsewhere.extend(others.into_iter().flatten().map(|node| (node, result.node)));
                self.at.insert(result.node, Group::NormGrad(group));
            }
        }
    }

    fn find_activation_grads(&mut self, graph: &Graph, runs: &[bool], sums: &HashMap<Value, NodeId>) {
        for (grad, node) in graph.nodes().iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::ActivationGrad(op) = node.op else { continue };
            let Some(&sums) = sums.get(&Value { node: grad, output: 0 }) else { continue };
            if takes_sums(graph.shape(Value { node: grad, output: 0 }).last()) {
                self.elsewhere.insert(sums, grad);
                self.at.insert(grad, Group::ActivationGrad { activation: op.0, grad, sums });
            }
        }
    }
}

/// The nodes that add up a value over all axes but the last, by that value.
fn column_sums(graph: &Graph, runs: &[bool]) -> HashMap<Value, NodeId> {
    let mut found = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| runs[*id]) {
        let Op::Reduce(reduce) = &node.op else { continue };
        let value = storage(graph, node.inputs[0]);
        let (rows, shape) = (graph.shape(node.inputs[0]), graph.shape(value));
        if *reduce == Reduce::sum([0]) && rows.len() == 2 && !shape.is_empty() && shape.last() == rows[1] {
            found.entry(value).or_insert(id);
        }
    }
    found
}
