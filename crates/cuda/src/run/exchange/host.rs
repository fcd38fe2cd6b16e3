//! Messages through host memory: copied from the GPU, exchanged by the processes in a host function, and copied back.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys as cu;
use vit_graph::GraphError;
use vit_graph::exchange::{Collective, Exchange};

use super::StreamBucket;
use crate::driver::memory::PinnedBuffer;
use crate::driver::{Gpu, Stream, check};

pub(super) struct HostCarrier {
    /// By bucket. Host functions have the addresses of the elements, so the vector never changes.
    messages: Vec<HostMessage>,
    /// The first failed exchange; later messages are not exchanged any more.
    failure: Arc<Mutex<Option<GraphError>>>,
    /// Holds the message of one bucket at a time: the stream is in order.
    _staging: PinnedBuffer,
}

/// The argument of a host function.
struct HostMessage {
    /// The staging memory.
    values: *mut f32,
    elements: usize,
    collective: Collective,
    lengths: Vec<usize>,
    exchange: Arc<dyn Exchange>,
    failure: Arc<Mutex<Option<GraphError>>>,
}

impl HostCarrier {
    pub fn new(
        gpu: &Arc<Gpu>,
        buckets: &[StreamBucket],
        exchange: &Arc<dyn Exchange>,
    ) -> Result<HostCarrier, GraphError> {
        let largest = buckets.iter().map(StreamBucket::bytes).max().unwrap_or(0);
        let staging = PinnedBuffer::new(gpu, largest.max(4))?;
        let failure = Arc::new(Mutex::new(None));
        let message = |bucket: &StreamBucket| {
            let (values, elements) = (staging.element(0), bucket.bytes() / 4);
            let (collective, lengths) = (bucket.collective, bucket.lengths.clone());
            let (exchange, failure) = (exchange.clone(), failure.clone());
            HostMessage { values, elements, collective, lengths, exchange, failure }
        };
        Ok(HostCarrier { messages: buckets.iter().map(message).collect(), failure, _staging: staging })
    }

    /// # Safety
    ///
    /// The context must be current. `bucket` must be the one at `index` of those that `new` was given. All messages
    /// must be enqueued in the same stream, since they share the staging memory. `self` and the memory of the values
    /// must live until the stream is synchronised, or if it is being captured, until the last launch of the captured
    /// graph has ended.
    pub unsafe fn enqueue(&self, index: usize, bucket: &StreamBucket, stream: &Stream) -> Result<(), GraphError> {
        let message = &self.messages[index];
        for piece in &bucket.pieces {
            // SAFETY: the staging memory has room for all pieces of any bucket; the caller guarantees the values' memory.
            // What this stream did with the staging memory before is done when this copy runs.
            let result = unsafe {
                let to = message.values.byte_add(piece.offset).cast();
                cu::cuMemcpyDtoHAsync_v2(to, piece.address, piece.bytes, stream.raw())
            };
            check(result, "copying gradients from the GPU")?;
        }
        let data: *const HostMessage = message;
        // SAFETY: the message never moves, and the caller keeps it until the stream has run the function.
        let result = unsafe { cu::cuLaunchHostFunc(stream.raw(), Some(exchange_message), data.cast_mut().cast()) };
        check(result, "exchanging gradients")?;
        for piece in &bucket.pieces {
            // SAFETY: as above.
            let result = unsafe {
                let from = message.values.byte_add(piece.offset).cast();
                cu::cuMemcpyHtoDAsync_v2(piece.address, from, piece.bytes, stream.raw())
            };
            check(result, "copying gradients to the GPU")?;
        }
        Ok(())
    }

    pub fn failure(&self) -> Result<(), GraphError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }
}

/// The host function that exchanges a message with all processes. The driver calls it when the stream reaches it, on a
/// thread of its own.
unsafe extern "C" fn exchange_message(message: *mut c_void) {
    // SAFETY: `HostCarrier::enqueue` passes a message that lives until the stream has run this function.
    let message = unsafe { &*message.cast::<HostMessage>() };
    let failure = || message.failure.lock().unwrap_or_else(PoisonError::into_inner);
    if failure().is_some() {
        return;
    }
    // SAFETY: only the copies and host functions of one stream use the staging memory, in order: the copies before this
    // function are done, and those after it start when it returns.
    let values = unsafe { std::slice::from_raw_parts_mut(message.values, message.elements) };
    if let Err(error) = message.collective.exchange(message.exchange.as_ref(), values, &message.lengths) {
        *failure() = Some(error);
    }
}
