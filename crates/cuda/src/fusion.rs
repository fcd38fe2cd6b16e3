//! Nodes that run together: the optimiser's updates of all parameters, a norm's gradient with the sum that follows it.
//!
//! A group runs where its last node stands, so the memory plan is told that the inputs of the others live until then.

use std::collections::{HashMap, HashSet};

use vit_graph::memory::storage;
use vit_graph::ops::{AdamW, Binary, Op};
use vit_graph::{Graph, NodeId, Value};

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

    /// Runs of updates with nothing that computes between them, all in place: whoever reads the old values stands before.
    fn find_updates(&mut self, graph: &Graph, runs: &[bool], in_place: &HashMap<Value, Value>) {
        let mut open: Vec<NodeId> = Vec::new();
        for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| runs[*id]) {
            let Op::AdamW(op) = &node.op else {
                self.close(&mut open);
                continue;
            };
            let writes_in_place = (0..3).all(|output| in_place.contains_key(&Value { node: id, output }));
            let agrees = open.last().is_none_or(|&other| {
                let Op::AdamW(first) = &graph.node(other).op else { return false };
                AdamW { weight_decay: first.weight_decay, ..*op } == *first
                    && node.inputs[4..] == graph.node(other).inputs[4..]
            });
            if !writes_in_place || !agrees {
                self.close(&mut open);
            }
            if writes_in_place {
                open.push(id);
            }
        }
        self.close(&mut open);
    }

    fn close(&mut self, open: &mut Vec<NodeId>) {
        if open.len() > 1 {
            self.add(open, Group::Updates(open.clone()));
        }
        open.clear();
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
