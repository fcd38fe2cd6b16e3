//! The static cost of a graph: FLOPs, parameters and activation bytes of every node.

use crate::ops::{Op, Operation};
use crate::{Graph, Type};

/// The cost of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeCost {
    /// The module it belongs to, prefixed by its phase unless that is forward: `backward.blocks.3`. A parameter belongs
    /// to the module in its name, all of the name but the last component.
    pub scope: String,
    /// The operation; empty in a sum by scope.
    pub op: &'static str,
    /// Floating-point operations of its matrix products, 2 per multiply-add.
    pub flops: u64,
    /// Elements, if it is a trainable parameter.
    pub parameters: u64,
    /// Bytes of its used outputs; 0 for sources and views.
    pub activation_bytes: u64,
}

/// The cost of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// One entry per node.
    pub nodes: Vec<NodeCost>,
}

impl Cost {
    /// The cost of every node.
    pub fn of(graph: &Graph) -> Cost {
        let uses = graph.uses();
        let count = |(id, node): (usize, &crate::Node)| {
            let inputs: Vec<Type> = node.inputs.iter().map(|&v| graph.ty(v).clone()).collect();
            let elements = node.outputs[0].shape.elements() as u64;
            let written = node.outputs.iter().zip(&uses[id]).filter(|(_, n)| **n > 0).map(|(t, _)| t.bytes() as u64);
            NodeCost {
                scope: match &node.op {
                    Op::Parameter(p) => p.name.rsplit_once('.').map_or(String::new(), |(scope, _)| scope.into()),
                    _ => node.path(),
                },
                op: node.op.name(),
                flops: node.op.flops(&inputs, &node.outputs),
                parameters: if matches!(&node.op, Op::Parameter(p) if p.trainable) { elements } else { 0 },
                activation_bytes: if node.op.computes() { written.sum() } else { 0 },
            }
        };
        Cost { nodes: graph.nodes().iter().enumerate().map(count).collect() }
    }

    /// The sum of all FLOPs.
    pub fn flops(&self) -> u64 {
        self.nodes.iter().map(|n| n.flops).sum()
    }

    /// The number of trainable parameters, as published: without running statistics.
    pub fn parameters(&self) -> u64 {
        self.nodes.iter().map(|n| n.parameters).sum()
    }

    /// Bytes of all computed and used outputs, in the types of the graph: before a device fuses nodes or stores bf16.
    pub fn activation_bytes(&self) -> u64 {
        self.nodes.iter().map(|n| n.activation_bytes).sum()
    }

    /// The sums of costs by the first `depth` names of the scope, in order of appearance.
    pub fn by_scope(&self, depth: usize) -> Vec<NodeCost> {
        let mut sums: Vec<NodeCost> = Vec::new();
        for node in &self.nodes {
            let scope: Vec<&str> = node.scope.split('.').take(depth).collect();
            let scope = scope.join(".");
            let index = sums.iter().position(|p| p.scope == scope).unwrap_or_else(|| {
                sums.push(NodeCost { scope, op: "", flops: 0, parameters: 0, activation_bytes: 0 });
                sums.len() - 1
            });
            sums[index].flops += node.flops;
            sums[index].parameters += node.parameters;
            sums[index].activation_bytes += node.activation_bytes;
        }
        sums
    }
}
