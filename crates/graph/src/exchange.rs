//! The exchange between the processes that train one model, as far as devices need it: sums over all processes, and
//! gathering of values of which each process has a slice.

use std::ops::Range;

use crate::GraphError;
use crate::memory::root_of;
use crate::ops::{AllGather, Op, ReduceScatter, Shards};
use crate::{Graph, NodeId, Value};

/// A group of processes that run the same graph on different parts of a batch.
pub trait Exchange: Send + Sync {
    /// The number of processes.
    fn processes(&self) -> usize;

    /// The rank of this process, from 0.
    fn rank(&self) -> usize;

    /// Whether values are added in the order of a binary tree over the ranks, instead of the fastest order.
    fn fixed_order(&self) -> bool;

    /// The bytes of every process, in the order of ranks.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, GraphError>;

    /// Replaces values by their sums over all processes: the same bits everywhere. All processes call it equally often
    /// and with equal lengths.
    fn all_reduce(&self, values: &mut [f32]) -> Result<(), GraphError>;

    /// Replaces this process's slice of the values by its sum over all processes, in a fixed order with the bits of
    /// [`Exchange::all_reduce`]; the other elements are unspecified afterwards. Slices are contiguous, in the order of
    /// ranks; `lengths` has the number of elements of each.
    fn reduce_scatter(&self, values: &mut [f32], lengths: &[usize]) -> Result<(), GraphError>;

    /// Receives the slices of the other processes: this one's is valid already. `lengths` as in
    /// [`Exchange::reduce_scatter`].
    fn all_gather_slices(&self, values: &mut [f32], lengths: &[usize]) -> Result<(), GraphError>;
}

/// An operation that exchanges its result with other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
}

impl Collective {
    /// The collective that an operation is, if it is one.
    pub fn of(op: &Op) -> Option<Collective> {
        match op {
            Op::AllReduce(_) => Some(Collective::AllReduce),
            Op::ReduceScatter(_) => Some(Collective::ReduceScatter),
            Op::AllGather(_) => Some(Collective::AllGather),
            _ => None,
        }
    }

    /// Exchanges a message with the layout of [`ExchangeBuckets::layout`].
    pub fn exchange(self, exchange: &dyn Exchange, message: &mut [f32], lengths: &[usize]) -> Result<(), GraphError> {
        match self {
            Collective::AllReduce => exchange.all_reduce(message),
            Collective::ReduceScatter => exchange.reduce_scatter(message, lengths),
            Collective::AllGather => exchange.all_gather_slices(message, lengths),
        }
    }
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

    fn reduce_scatter(&self, _: &mut [f32], _: &[usize]) -> Result<(), GraphError> {
        Ok(())
    }

    fn all_gather_slices(&self, _: &mut [f32], _: &[usize]) -> Result<(), GraphError> {
        Ok(())
    }
}

/// Bytes at which a bucket is complete: enough to outweigh the latency of a message, and a small fraction of a model's
/// gradients, so that most of them are sent during the backward pass.
const BUCKET_BYTES: usize = 4 << 20;

/// The [`Collective`] operations of a graph in buckets, each of which is exchanged as one message. The buckets follow
/// from the graph alone, so that all processes have the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExchangeBuckets {
    /// The nodes of each bucket, in the order of the graph.
    pub nodes: Vec<Vec<NodeId>>,
}

/// The message of a bucket. If processes have slices, it holds all slices of rank 0, then those of rank 1, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageLayout {
    /// How it is exchanged.
    pub collective: Collective,
    /// Its pieces in order: an index into the bucket's nodes, and a range of the elements of that node's result.
    pub pieces: Vec<(usize, Range<usize>)>,
    /// The number of elements of each process; empty if every process has all of them.
    pub lengths: Vec<usize>,
}

impl ExchangeBuckets {
    /// The buckets of a graph, without the nodes that a device does not compute.
    pub fn of(graph: &Graph, computed: impl Fn(NodeId) -> bool) -> ExchangeBuckets {
        let mut nodes: Vec<Vec<NodeId>> = Vec::new();
        let (mut open, mut bytes) = (None, 0);
        for (id, node) in graph.nodes().iter().enumerate() {
            // A bucket is complete before any of its values is read.
            let members = nodes.last().filter(|_| open.is_some());
            if members.is_some_and(|m| node.inputs.iter().any(|&v| m.contains(&root_of(graph, v).node))) {
                open = None;
            }
            let Some(collective) = Collective::of(&node.op).filter(|_| computed(id)) else { continue };
            match nodes.last_mut().filter(|_| open == Some(collective)) {
                Some(members) => members.push(id),
                None => {
                    nodes.push(vec![id]);
                    bytes = 0;
                }
            }
            bytes += node.outputs[0].bytes();
            open = (bytes < BUCKET_BYTES).then_some(collective);
        }
        ExchangeBuckets { nodes }
    }

    /// The message of a bucket.
    pub fn layout(&self, graph: &Graph, bucket: usize) -> MessageLayout {
        let nodes = &self.nodes[bucket];
        let shards: Option<Vec<&Shards>> = nodes.iter().map(|&node| shards(&graph.node(node).op)).collect();
        let collective = Collective::of(&graph.node(nodes[0]).op).expect("buckets hold collective operations");
        let Some(shards) = shards else {
            let elements = nodes.iter().map(|&node| graph.node(node).outputs[0].shape.elements());
            return MessageLayout { collective, pieces: elements.map(|n| 0..n).enumerate().collect(), lengths: vec![] };
        };
        let ranks = 0..shards[0].lengths.len();
        let pieces = ranks.clone().flat_map(|rank| shards.iter().map(move |s| s.range(rank)).enumerate()).collect();
        let lengths = ranks.map(|rank| shards.iter().map(|s| s.lengths[rank]).sum()).collect();
        MessageLayout { collective, pieces, lengths }
    }

    /// The bucket that a value, or the one it is a view of, is exchanged in, if any.
    pub fn of_value(&self, graph: &Graph, value: Value) -> Option<usize> {
        let root = root_of(graph, value).node;
        self.nodes.iter().position(|nodes| nodes.contains(&root))
    }

    /// The bucket that is complete once a node has run.
    pub fn completed_by(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|nodes| nodes.last() == Some(&node))
    }
}

/// The slices of an operation's result, if it exchanges any.
pub fn shards(op: &Op) -> Option<&Shards> {
    match op {
        Op::ReduceScatter(ReduceScatter(shards)) | Op::AllGather(AllGather { shards, .. }) => Some(shards),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{AllReduce, Input, PartSum};
    use crate::{Shape, Type};

    #[test]
    fn the_slices_of_a_process_are_contiguous_in_a_message() {
        let mut graph = Graph::new();
        let mut scattered = |name: &str, lengths: [usize; 2]| {
            let ty = Type::f32(Shape::from([lengths[0] + lengths[1]]));
            let value = graph.value(Input { name: name.into(), ty }, &[]).unwrap();
            graph.value(ReduceScatter(Shards { rank: 1, lengths: lengths.to_vec() }), &[value]).unwrap()
        };
        let (a, b) = (scattered("a", [2, 3]), scattered("b", [4, 5]));
        let c = graph.value(AllReduce, &[b]).unwrap();
        let buckets = ExchangeBuckets::of(&graph, |_| true);
        assert_eq!(buckets.nodes, [vec![a.node, b.node], vec![c.node]]);
        let layout = buckets.layout(&graph, 0);
        assert_eq!(layout.collective, Collective::ReduceScatter);
        assert_eq!(layout.pieces, [(0, 0..2), (1, 0..4), (0, 2..5), (1, 4..9)]);
        assert_eq!(layout.lengths, [6, 8]);
        assert_eq!(buckets.layout(&graph, 1).pieces, [(0, 0..9)]);
    }

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
