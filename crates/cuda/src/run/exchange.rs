//! Values that several processes add or gather: in a second stream, buckets of values are exchanged while the first
//! stream continues: the step of a collective only copies its input into its result, which the second stream then exchanges
//! in place. All of it is captured with the run. NCCL carries the values between GPUs; processes that share a
//! GPU, or have no NCCL, exchange through host memory.

mod host;
mod nccl;

use std::cell::Cell;
use std::sync::Arc;

use vit_graph::exchange::{Collective, ExchangeBuckets, MessageLayout, shards};
use vit_graph::ops::Shards;
use vit_graph::{GraphError, NodeId, Value};

use self::host::HostCarrier;
pub(crate) use self::nccl::GpuExchange;
use self::nccl::NcclCarrier;
use crate::driver::{Event, Gpu, Stream};
use crate::plan::prepare::{Bases, Prepared};

/// The exchanges of a graph.
pub(crate) struct StreamExchange {
    buckets: Vec<StreamBucket>,
    /// By step: the bucket that is complete after it.
    completed_by: Vec<Option<usize>>,
    /// How many buckets were started in this run, and how many the first stream has waited for; buckets are in the order of
    /// the run.
    started: Cell<usize>,
    joined: Cell<usize>,
    stream: Stream,
    carrier: Carrier,
}

/// Values that are exchanged as one message.
struct StreamBucket {
    collective: Collective,
    values: Vec<BucketValue>,
    /// In the order of the message.
    pieces: Vec<BucketPiece>,
    /// Elements of each process, if processes have slices.
    lengths: Vec<usize>,
    /// Recorded in the first stream when the values are complete, in the second one when they are exchanged.
    complete: Event,
    exchanged: Event,
}

/// The result of a collective, in device memory.
struct BucketValue {
    address: u64,
    bytes: usize,
    /// The slices that processes have of it, if they do.
    shards: Option<Shards>,
}

/// Such a result, or a slice of it, and its place in the message of its bucket.
#[derive(Clone, Copy)]
struct BucketPiece {
    address: u64,
    bytes: usize,
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

impl StreamExchange {
    /// The exchanges of a graph whose steps are these nodes; `None` without any.
    pub fn new(
        gpu: &Arc<Gpu>,
        p: &Prepared,
        bases: &Bases,
        steps: &[NodeId],
        processes: &GpuExchange,
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
        let carrier = match processes.nccl() {
            Some(group) => Carrier::Nccl(NcclCarrier::new(gpu, &buckets, group)?),
            None => Carrier::Host(HostCarrier::new(gpu, &buckets, processes.processes())?),
        };
        Ok(Some(StreamExchange {
            buckets,
            completed_by: steps.iter().map(|node| found.completed_by(*node)).collect(),
            started: Cell::new(0),
            joined: Cell::new(0),
            stream: Stream::new()?,
            carrier,
        }))
    }

    /// Makes the first stream wait for the results that a step reads at these addresses.
    pub fn before(&self, step: usize, reads: &[u64], stream: &Stream) -> Result<(), GraphError> {
        if step == 0 {
            self.started.set(0);
            self.joined.set(0);
        }
        let reads = |bucket: &StreamBucket| bucket.values.iter().any(|value| reads.contains(&value.address));
        // An address of a bucket that was not started yet belongs to an earlier value.
        // The second stream is in order, so waiting for the last bucket that is read covers those before it.
        let pending = self.joined.get()..self.started.get();
        match pending.rev().find(|&bucket| reads(&self.buckets[bucket])) {
            Some(bucket) => self.join(bucket, stream),
            None => Ok(()),
        }
    }

    /// Starts the exchange of the bucket that a step has completed.
    ///
    /// # Safety
    ///
    /// The context must be current. `self` and the memory of the values must live until both streams are synchronised, or if
    /// this is being captured, until the last launch of the captured graph has ended.
    pub unsafe fn after(&self, step: usize, stream: &Stream) -> Result<(), GraphError> {
        let Some(index) = self.completed_by.get(step).copied().flatten() else { return Ok(()) };
        let bucket = &self.buckets[index];
        bucket.complete.record(stream)?;
        self.stream.wait_event(&bucket.complete)?;
        // SAFETY: the caller guarantees context and memory; the second stream runs the exchanges of all buckets in order.
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

    /// The first error of an exchange.
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
