//! Nodes that run together: the optimiser's updates of all parameters, a norm's gradient with the sum that follows it.
//!
//! A group runs where its last node stands, so the memory plan is told that the inputs of the others live until then.

use std::collections::{HashMap, HashSet};

use vit_graph::memory::storage;
use vit_graph::ops::{Binary, Op};
use vit_graph::{Graph, NodeId, Value};

use crate::lower::alike;

/// Several nodes as one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Group {
    /// Updates of several parameters with the same numbers.
    Updates(Vec<NodeId>),
    /// The gradient of a layer norm, and the sum of its `dx` with another gradient.
    NormGradAndSum { norm: NodeId, sum: NodeId, other: Value },
}

/// All groups of a graph.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// By the node where a group runs.
    pub at: HashMap<NodeId, Group>,
    /// For nodes that run with a later one: which.
    later: HashMap<NodeId, NodeId>,
    /// Values that are never written, because only the group itself would read them.
    pub unwritten: HashSet<Value>,
}

impl Groups {
    /// Finds the groups among the nodes that run every time; `in_place` says which values are written over parameters.
    pub fn new(graph: &Graph, runs: &[bool], in_place: &HashMap<Value, Value>) -> Self {
        let mut groups = Groups::default();
        groups.find_updates(graph, runs, in_place);
        groups.find_norm_grads(graph, runs);
        groups
    }

    /// Where a node runs.
    pub fn runs_with(&self, node: NodeId) -> NodeId {
        self.later.get(&node).copied().unwrap_or(node)
    }

    fn add(&mut self, nodes: &[NodeId], group: Group) {
        let Some((&last, others)) = nodes.split_last() else { return };
        others.iter().for_each(|&node| {
            self.later.insert(node, last);
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

    fn find_norm_grads(&mut self, graph: &Graph, runs: &[bool]) {
        let uses = graph.uses();
        let nodes = graph.nodes();
        for (sum, node) in nodes.iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::Binary(Binary::Add) = node.op else { continue };
            let found = node.inputs.iter().position(|v| {
                matches!(nodes[v.node].op, Op::LayerNormGrad(_))
                    && v.output == 0
                    && uses[v.node][0] == 1
                    && runs[v.node]
            });
            let Some(side) = found else { continue };
            let (dx, other) = (node.inputs[side], node.inputs[1 - side]);
            let norm = dx.node;
            // What the norm gives besides `dx` is written where the sum stands, so nobody may read it before.
            let read_before =
                nodes[norm + 1..sum].iter().any(|n| n.inputs.iter().any(|v| storage(graph, *v).node == norm));
            if graph.shape(dx) == graph.shape(other) && storage(graph, other).node != norm && !read_before {
                self.unwritten.insert(dx);
                self.add(&[norm, sum], Group::NormGradAndSum { norm, sum, other });
            }
        }
    }
}
