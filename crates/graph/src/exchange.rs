//! The exchange between the processes that train one model, as far as devices need it: a sum over all processes.

use crate::GraphError;
use crate::memory::storage;
use crate::ops::Op;
use crate::{Graph, NodeId, Value};

/// A group of processes that run the same graph on different parts of a batch.
pub trait Exchange: Send + Sync {
    /// The number of processes.
    fn processes(&self) -> usize;

    /// The number of this process, from 0.
    fn rank(&self) -> usize;

    /// Whether values are added in the order of a binary tree over the ranks, instead of the fastest order.
    fn fixed_order(&self) -> bool;

    /// The bytes of every process, in the order of ranks.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, GraphError>;

    /// Replaces values by their sums over all processes: the same bits everywhere. All processes call it equally often
    /// and with equal lengths.
    fn all_reduce(&self, values: &mut [f32]) -> Result<(), GraphError>;
}

/// A single process, whose sums are its own values.
pub struct Alone;

impl Exchange for Alone {
    fn processes(&self) -> usize {
        1
    }

    fn rank(&self) -> usize {
        0
    }

    fn fixed_order(&self) -> bool {
        true
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, GraphError> {
        Ok(vec![bytes.to_vec()])
    }

    fn all_reduce(&self, _: &mut [f32]) -> Result<(), GraphError> {
        Ok(())
    }
}

/// Bytes at which a bucket is complete: enough to outweigh the latency of a message, and a small part of the gradients of
/// a model, so that most of them are sent during the backward pass.
const BUCKET_BYTES: usize = 4 << 20;

/// The [`AllReduce`](crate::ops::AllReduce) operations of a graph in buckets, each of which is one message. They follow
/// from the graph alone, so that all processes have the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExchangeBuckets {
    /// The nodes of each bucket, in the order of the graph.
    pub nodes: Vec<Vec<NodeId>>,
}

impl ExchangeBuckets {
    /// The buckets of a graph, of the nodes that are `computed`.
    pub fn of(graph: &Graph, computed: impl Fn(NodeId) -> bool) -> ExchangeBuckets {
        let mut nodes: Vec<Vec<NodeId>> = Vec::new();
        let (mut open, mut bytes) = (false, 0);
        for (id, node) in graph.nodes().iter().enumerate() {
            // A bucket is complete before any of its values is read.
            let members = nodes.last().filter(|_| open);
            open &= !members.is_some_and(|m| node.inputs.iter().any(|&v| m.contains(&storage(graph, v).node)));
            if !matches!(node.op, Op::AllReduce(_)) || !computed(id) {
                continue;
            }
            match nodes.last_mut().filter(|_| open) {
                Some(members) => members.push(id),
                None => {
                    nodes.push(vec![id]);
                    bytes = 0;
                }
            }
            bytes += node.outputs[0].bytes();
            open = bytes < BUCKET_BYTES;
        }
        ExchangeBuckets { nodes }
    }

    /// The bucket that a value is exchanged in, if it is.
    pub fn of_value(&self, graph: &Graph, value: Value) -> Option<usize> {
        let root = storage(graph, value).node;
        let is_exchanged = matches!(graph.node(root).op, Op::AllReduce(_));
        self.nodes.iter().position(|nodes| is_exchanged && nodes.contains(&root))
    }

    /// The bucket that is complete once a node has run.
    pub fn completed_by(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|nodes| nodes.last() == Some(&node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{AllReduce, Input, PartSum};
    use crate::{Shape, Type};

    #[test]
    fn a_bucket_is_complete_before_its_values_are_read_and_when_it_is_large() {
        let mut graph = Graph::new();
        let mut input = |name: &str, elements: usize| {
            let ty = Type::f32(Shape::from([elements]));
            graph.value(Input { name: name.into(), ty }, &[]).unwrap()
        };
        let (small, large) = (input("small", 3), input("large", BUCKET_BYTES / 4));
        let reduced = |graph: &mut Graph, value| graph.value(AllReduce, &[value]).unwrap();
        let (a, b) = (reduced(&mut graph, small), reduced(&mut graph, small));
        let sum = graph.value(PartSum, &[a, b]).unwrap();
        let (c, d) = (reduced(&mut graph, sum), reduced(&mut graph, large));
        let e = reduced(&mut graph, small);
        let buckets = ExchangeBuckets::of(&graph, |_| true);
        assert_eq!(buckets.nodes, [vec![a.node, b.node], vec![c.node, d.node], vec![e.node]]);
        assert_eq!(buckets.of_value(&graph, d), Some(1));
        assert_eq!(buckets.of_value(&graph, sum), None);
        assert_eq!((buckets.completed_by(c.node), buckets.completed_by(d.node)), (None, Some(1)));
    }
}
