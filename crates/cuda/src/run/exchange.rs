//! The collectives of a graph (all-reduce, reduce-scatter, all-gather), in buckets as in PyTorch's DDP. The step of a
//! collective only copies its input into its result. When all results of a bucket are copied, a second stream exchanges
//! them in place, while the first stream, which runs the steps, continues; a step that reads such a result waits for
//! the second stream. All of it is captured with the run. NCCL carries the values between GPUs; processes that share a
//! GPU, or have no NCCL, exchange through host memory.

mod host;
mod nccl;

use std::cell::Cell;
use std::sync::Arc;

use vit_graph::exchange::{Collective, ExchangeBuckets, MessageLayout, shards};
use vit_graph::ops::Shards;
use vit_graph::{GraphError, NodeId, Value};

use self::host::HostCarrier;
use self::nccl::NcclCarrier;
pub(crate) use self::nccl::ProcessGroup;
use crate::driver::{Event, Gpu, Stream};
use crate::plan::prepare::{Bases, Prepared};

/// The buckets of a graph, and the second stream.
pub(crate) struct CollectiveStream {
    buckets: Vec<StreamBucket>,
    /// By step: the bucket that is complete after it.
    completed_by: Vec<Option<usize>>,
    /// How many buckets were started in this run. They start in the order of `buckets`.
    started: Cell<usize>,
    /// How many of these the first stream has waited for.
    joined: Cell<usize>,
    stream: Stream,
    carrier: Carrier,
}

/// Values that are exchanged as one message.
struct StreamBucket {
    collective: Collective,
    values: Vec<BucketValue>,
    /// What the message consists of, in its order.
    pieces: Vec<BucketPiece>,
    /// The elements of the message in the slices of each process; empty if the values are not in slices.
    lengths: Vec<usize>,
    /// Recorded in the first stream when the values are complete.
    complete: Event,
    /// Recorded in the second stream when they are exchanged.
    exchanged: Event,
}

/// The result of a collective, f32 in device memory.
struct BucketValue {
    address: u64,
    bytes: usize,
    /// The slice of it that each process has; `None` if all have the whole.
    shards: Option<Shards>,
}

/// A result or one process's slice of it.
#[derive(Clone, Copy)]
struct BucketPiece {
    address: u64,
    bytes: usize,
    /// In bytes from the start of the message.
    offset: usize,
}

impl StreamBucket {
    fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}

/// How a message travels.
enum Carrier {
    Host(HostCarrier),
    Nccl(NcclCarrier),
}

impl CollectiveStream {
    /// The collectives among these nodes, which are the steps of a run in order; `None` if there are none.
    pub fn new(
        gpu: &Arc<Gpu>,
        p: &Prepared,
        bases: &Bases,
        steps: &[NodeId],
        group: &ProcessGroup,
    ) -> Result<Option<Self>, GraphError> {
        let found = ExchangeBuckets::of(&p.graph, |node| steps.contains(&node));
        if found.nodes.is_empty() {
            return Ok(None);
        }
        let bucket = |index: usize| {
            let value = |node: &NodeId| BucketValue {
                address: p.operand(Value { node: *node, output: 0 }, Some(bases)).address,
                bytes: p.graph.node(*node).outputs[0].bytes(),
                shards: shards(&p.graph.node(*node).op).cloned(),
            };
            let values: Vec<BucketValue> = found.nodes[index].iter().map(value).collect();
            let MessageLayout { collective, pieces, lengths } = found.layout(&p.graph, index);
            let mut offset = 0;
            let pieces = pieces.into_iter().map(|(value, range)| {
                let (address, bytes) = (values[value].address + 4 * range.start as u64, 4 * range.len());
                offset += bytes;
                BucketPiece { address, bytes, offset: offset - bytes }
            });
            // An empty value has nothing to copy.
            let pieces = pieces.filter(|piece| piece.bytes > 0).collect();
            let (complete, exchanged) = (Event::new()?, Event::new()?);
            Ok(StreamBucket { collective, values, pieces, lengths, complete, exchanged })
        };
        let buckets = (0..found.nodes.len()).map(bucket).collect::<Result<Vec<_>, GraphError>>()?;
        let carrier = match group.nccl() {
            Some(nccl) => Carrier::Nccl(NcclCarrier::new(gpu, &buckets, nccl)?),
            None => Carrier::Host(HostCarrier::new(gpu, &buckets, group.exchange())?),
        };
        Ok(Some(CollectiveStream {
            buckets,
            completed_by: steps.iter().map(|node| found.completed_by(*node)).collect(),
            started: Cell::new(0),
            joined: Cell::new(0),
            stream: Stream::new()?,
            carrier,
        }))
    }

    /// Called before each step is enqueued: makes the first stream wait for the results that it reads, at these
    /// addresses.
    pub fn before(&self, step: usize, reads: &[u64], stream: &Stream) -> Result<(), GraphError> {
        if step == 0 {
            self.started.set(0);
            self.joined.set(0);
        }
        let reads = |bucket: &StreamBucket| bucket.values.iter().any(|value| reads.contains(&value.address));
        // Until a bucket is started, there may be other values at its addresses. The second stream is in order, so
        // waiting for the last bucket that is read covers those before it.
        let pending = self.joined.get()..self.started.get();
        match pending.rev().find(|&bucket| reads(&self.buckets[bucket])) {
            Some(bucket) => self.join(bucket, stream),
            None => Ok(()),
        }
    }

    /// Called after each step is enqueued: starts the exchange of the bucket that the step completes, if any.
    ///
    /// # Safety
    ///
    /// The context must be current, and `stream` the same in all calls. `self` and the memory of the values must live
    /// until both streams are synchronised, or if this is being captured, until the last launch of the captured graph
    /// has ended.
    pub unsafe fn after(&self, step: usize, stream: &Stream) -> Result<(), GraphError> {
        let Some(index) = self.completed_by.get(step).copied().flatten() else { return Ok(()) };
        let bucket = &self.buckets[index];
        bucket.complete.record(stream)?;
        self.stream.wait_event(&bucket.complete)?;
        // SAFETY: the caller guarantees context and memory; all buckets are enqueued in the second stream, and `bucket`
        // is the one at `index`.
        unsafe {
            match &self.carrier {
                Carrier::Host(carrier) => carrier.enqueue(index, bucket, &self.stream)?,
                Carrier::Nccl(carrier) => carrier.enqueue(index, &self.stream)?,
            }
        }
        bucket.exchanged.record(&self.stream)?;
        self.started.set(index + 1);
        Ok(())
    }

    /// Makes the first stream wait for everything that was started: at the end of a run and of each captured segment.
    pub fn join_all(&self, stream: &Stream) -> Result<(), GraphError> {
        if self.joined.get() < self.started.get() { self.join(self.started.get() - 1, stream) } else { Ok(()) }
    }

    fn join(&self, bucket: usize, stream: &Stream) -> Result<(), GraphError> {
        self.joined.set(bucket + 1);
        stream.wait_event(&self.buckets[bucket].exchanged)
    }

    /// An error if an exchange has failed. It does not wait.
    pub fn failure(&self) -> Result<(), GraphError> {
        match &self.carrier {
            Carrier::Host(carrier) => carrier.failure(),
            Carrier::Nccl(carrier) => carrier.failure(),
        }
    }

    /// Blocks until the second stream is empty.
    pub fn synchronize(&self) -> Result<(), GraphError> {
        self.stream.synchronize()
    }
}
