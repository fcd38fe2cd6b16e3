//! When the steps of a run start an exchange with other processes, and when they wait for one.

use std::sync::Arc;

use vit_graph::exchange::{ExchangeBuckets, MessageLayout};
use vit_graph::{GraphError, NodeId, Value};

use super::step::Addresses;
use crate::exchange::{Bucket, BucketRange, ExchangeThread};

/// The exchanges of a graph. Without any, nothing is stored and nothing is done.
#[derive(Default)]
pub(super) struct Exchanges {
    buckets: Vec<Arc<Bucket>>,
    /// The numbers ([`ExchangeThread::start`]) of the buckets that were started in this run, in the order of `buckets`.
    numbers: Vec<u64>,
    /// By step.
    steps: Vec<StepExchange>,
}

#[derive(Default)]
struct StepExchange {
    /// The buckets with operands of the step.
    reads: Vec<usize>,
    /// The bucket that is complete after the step.
    completes: Option<usize>,
}

impl Exchanges {
    /// The exchanges of a graph whose steps are the kernels of these nodes.
    pub fn new(addresses: &Addresses<'_>, nodes: &[NodeId]) -> Self {
        let graph = addresses.graph;
        let found = ExchangeBuckets::of(graph, |node| nodes.binary_search(&node).is_ok());
        if found.nodes.is_empty() {
            return Exchanges::default();
        }
        let with_addresses = |bucket: usize| {
            let values: Vec<*mut [f32]> =
                found.nodes[bucket].iter().map(|&node| addresses.of(Value { node, output: 0 })).collect();
            let MessageLayout { collective, pieces, lengths } = found.layout(graph, bucket);
            let pieces = pieces.into_iter().map(|(value, range)| {
                // The layout's ranges are those of the values' elements.
                let start = values[value].cast::<f32>().wrapping_add(range.start);
                BucketRange(std::ptr::slice_from_raw_parts_mut(start, range.len()))
            });
            let only = if let [only] = values[..] { Some(BucketRange(only)) } else { None };
            Arc::new(Bucket { collective, pieces: pieces.collect(), lengths, only })
        };
        let step = |&node: &NodeId| StepExchange {
            reads: graph.node(node).inputs.iter().filter_map(|&value| found.of_value(graph, value)).collect(),
            completes: found.completed_by(node),
        };
        Exchanges {
            buckets: (0..found.nodes.len()).map(with_addresses).collect(),
            numbers: Vec::with_capacity(found.nodes.len()),
            steps: nodes.iter().map(step).collect(),
        }
    }

    /// Waits until the operands of a step are complete.
    pub fn before(&self, step: usize, thread: &ExchangeThread) -> Result<(), GraphError> {
        let Some(step) = self.steps.get(step) else { return Ok(()) };
        // Buckets are exchanged in order, so the last one that the step reads is the last to wait for.
        step.reads.iter().max().map_or(Ok(()), |&bucket| thread.wait(self.numbers[bucket]))
    }

    /// Starts the exchange of the bucket that a step has completed.
    ///
    /// # Safety
    /// The memory of the executable must stay allocated until `finish` has returned.
    pub unsafe fn after(&mut self, step: usize, thread: &ExchangeThread) {
        if let Some(bucket) = self.steps.get(step).and_then(|step| step.completes) {
            // SAFETY: the caller guarantees the allocation; values keep their ranges of the arena until their last
            // consumer, and `before` waits in front of every consumer.
            self.numbers.push(unsafe { thread.start(&self.buckets[bucket]) });
        }
    }

    /// Waits for all exchanges of the run.
    pub fn finish(&mut self, thread: &ExchangeThread) -> Result<(), GraphError> {
        let last = self.numbers.last().copied();
        self.numbers.clear();
        last.map_or(Ok(()), |last| thread.wait(last))
    }
}
