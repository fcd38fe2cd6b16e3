//! Sums over several processes, through host memory: in a second stream, buckets of values are copied to the host, added by
//! the processes in a host function, and copied back, while the first stream goes on. All of it is captured with the run.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys as cu;
use vit_graph::exchange::{Exchange, ExchangeBuckets};
use vit_graph::{GraphError, NodeId, Value};

use crate::driver::memory::PinnedBuffer;
use crate::driver::{Event, Gpu, Stream, check};
use crate::plan::prepare::{Bases, Prepared};

/// The exchanges of a graph.
pub(crate) struct HostExchange {
    // Boxed, since host functions have their addresses.
    #[allow(clippy::vec_box)]
    buckets: Vec<Box<HostBucket>>,
    /// By step: the bucket that is complete after it.
    completed_by: Vec<Option<usize>>,
    /// The buckets that were started in this run, and those whose results the first stream waits for.
    started: Cell<usize>,
    joined: Cell<usize>,
    stream: Stream,
    failure: Arc<Mutex<Option<GraphError>>>,
    /// Holds one bucket at a time: the second stream is in order.
    _staging: PinnedBuffer,
}

/// Values that are exchanged as one message.
struct HostBucket {
    /// Device addresses and bytes, and the offset of each in the message.
    values: Vec<(u64, usize, usize)>,
    message: *mut f32,
    elements: usize,
    exchange: Arc<dyn Exchange>,
    failure: Arc<Mutex<Option<GraphError>>>,
    /// Recorded in the first stream when the values are complete, in the second one when they are exchanged.
    complete: Event,
    exchanged: Event,
}

// SAFETY: the message is used by the second stream and its host functions alone, which run in order.
unsafe impl Send for HostBucket {}

impl HostExchange {
    /// The exchanges of a graph whose steps are these nodes; `None` without any.
    pub fn new(
        gpu: &Arc<Gpu>,
        p: &Prepared,
        bases: &Bases,
        steps: &[NodeId],
        exchange: &Arc<dyn Exchange>,
    ) -> Result<Option<Self>, GraphError> {
        let found = ExchangeBuckets::of(&p.graph, |node| steps.contains(&node));
        if found.nodes.is_empty() {
            return Ok(None);
        }
        let bytes = |node: &NodeId| p.graph.node(*node).outputs[0].bytes();
        let largest = found.nodes.iter().map(|nodes| nodes.iter().map(bytes).sum::<usize>()).max().unwrap_or(0);
        let staging = PinnedBuffer::new(gpu, largest.max(4))?;
        let failure = Arc::new(Mutex::new(None));
        let bucket = |nodes: &Vec<NodeId>| {
            let mut offset = 0;
            let values = nodes.iter().map(|node| {
                let start = offset;
                offset += bytes(node);
                (p.operand(Value { node: *node, output: 0 }, Some(bases)).address, bytes(node), start)
            });
            Ok(Box::new(HostBucket {
                values: values.collect(),
                message: staging.element(0),
                elements: offset / 4,
                exchange: exchange.clone(),
                failure: failure.clone(),
                complete: Event::new()?,
                exchanged: Event::new()?,
            }))
        };
        Ok(Some(HostExchange {
            buckets: found.nodes.iter().map(bucket).collect::<Result<_, GraphError>>()?,
            completed_by: steps.iter().map(|node| found.completed_by(*node)).collect(),
            started: Cell::new(0),
            joined: Cell::new(0),
            stream: Stream::new()?,
            failure,
            _staging: staging,
        }))
    }

    /// Makes the first stream wait for the results that a step reads at these addresses.
    pub fn before(&self, step: usize, reads: &[u64], stream: &Stream) -> Result<(), GraphError> {
        if step == 0 {
            (self.started.set(0), self.joined.set(0));
        }
        let reads = |bucket: &HostBucket| bucket.values.iter().any(|(address, ..)| reads.contains(address));
        // An address of a bucket that was not started yet belongs to an earlier value.
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
    /// `self` and the memory of the values must live until both streams are synchronised.
    pub unsafe fn after(&self, step: usize, stream: &Stream) -> Result<(), GraphError> {
        let Some(bucket) = self.completed_by.get(step).copied().flatten() else { return Ok(()) };
        let (index, bucket) = (bucket, &*self.buckets[bucket]);
        bucket.complete.record(stream)?;
        self.stream.wait_event(&bucket.complete)?;
        let own = self.stream.raw();
        for &(address, bytes, offset) in bucket.values.iter().filter(|(_, bytes, _)| *bytes > 0) {
            // SAFETY: the message has the length of all values; the caller guarantees their memory. The copies and the host
            // function before it in this stream are done with the message.
            let result =
                unsafe { cu::cuMemcpyDtoHAsync_v2(bucket.message.byte_add(offset).cast(), address, bytes, own) };
            check(result, "copying gradients from the GPU")?;
        }
        let data: *const HostBucket = bucket;
        // SAFETY: the bucket is boxed, and the caller keeps it until the stream has run the function.
        check(unsafe { cu::cuLaunchHostFunc(own, Some(exchange), data.cast_mut().cast()) }, "exchanging gradients")?;
        for &(address, bytes, offset) in bucket.values.iter().filter(|(_, bytes, _)| *bytes > 0) {
            // SAFETY: as above.
            let result =
                unsafe { cu::cuMemcpyHtoDAsync_v2(address, bucket.message.byte_add(offset).cast(), bytes, own) };
            check(result, "copying gradients to the GPU")?;
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
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// Blocks until the second stream is empty.
    pub fn synchronize(&self) -> Result<(), GraphError> {
        self.stream.synchronize()
    }
}

/// Adds the message of a bucket over all processes; on a thread of the driver, in the order of the stream.
unsafe extern "C" fn exchange(bucket: *mut c_void) {
    // SAFETY: `HostExchange::after` passes a bucket that lives until the stream has run this function.
    let bucket = unsafe { &*bucket.cast::<HostBucket>() };
    let failure = || bucket.failure.lock().unwrap_or_else(PoisonError::into_inner);
    if failure().is_some() {
        return;
    }
    // SAFETY: the stream has copied the message, and continues when this function returns.
    let message = unsafe { std::slice::from_raw_parts_mut(bucket.message, bucket.elements) };
    if let Err(error) = bucket.exchange.all_reduce(message) {
        *failure() = Some(error);
    }
}
