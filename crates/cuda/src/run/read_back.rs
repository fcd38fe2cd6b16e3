//! Asynchronous read-back of scalars: copies are enqueued after a run, and awaited once the next run is enqueued.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use vit_graph::GraphError;

use crate::driver::memory::PinnedBuffer;
use crate::driver::{Event, Gpu, Stream, check, error};

/// Read-backs that may be pending at a time: that of the finished run and that of the current one.
const SLOTS: usize = 2;

pub(crate) struct ReadBack {
    /// `[SLOTS][capacity]` elements.
    buffer: PinnedBuffer,
    /// The most scalars of one read-back.
    capacity: usize,
    /// Recorded after the copies into each slot.
    copied: Vec<Event>,
    /// The slot of the next read-back.
    next: usize,
    /// The slots that were not collected yet, oldest first, each with its number of scalars.
    pending: VecDeque<(usize, usize)>,
}

impl ReadBack {
    pub fn new(gpu: &Arc<Gpu>, capacity: usize) -> Result<Self, GraphError> {
        let buffer = PinnedBuffer::new(gpu, 4 * SLOTS * capacity)?;
        let copied = (0..SLOTS).map(|_| Event::new()).collect::<Result<_, GraphError>>()?;
        Ok(ReadBack { buffer, capacity, copied, next: 0, pending: VecDeque::with_capacity(SLOTS) })
    }

    /// Enqueues the copies of the f32 scalars at these device addresses.
    ///
    /// # Safety
    ///
    /// Each address must hold an f32 in device memory that stays allocated, and `self` must live, until the stream has
    /// run the copies.
    pub unsafe fn read_async(&mut self, addresses: &[u64], stream: &Stream) -> Result<(), GraphError> {
        if addresses.len() > self.capacity {
            let (requested, capacity) = (addresses.len(), self.capacity);
            return Err(error(format!("a read-back of {requested} scalars, but at most {capacity} fit")));
        }
        if self.pending.len() == SLOTS {
            return Err(error("two read-backs are pending already; collect the first one before requesting another"));
        }
        let slot = self.next;
        for (i, &from) in addresses.iter().enumerate() {
            let to = self.buffer.element(slot * self.capacity + i);
            // SAFETY: `to` lies in the buffer. The slot is free: slots are used in turn and fewer than SLOTS are
            // pending, so `collect` has waited for the slot's last copies. `collect` reads it after the event below.
            // The caller guarantees `from` and that the buffer outlives the copy.
            let result = unsafe { cu::cuMemcpyDtoHAsync_v2(to.cast(), from, 4, stream.raw()) };
            check(result, "copying a scalar from the GPU")?;
        }
        self.copied[slot].record(stream)?;
        self.next = (slot + 1) % SLOTS;
        self.pending.push_back((slot, addresses.len()));
        Ok(())
    }

    /// Takes the scalars of the oldest read-back, waiting until they have arrived.
    pub fn collect(&mut self, into: &mut [f32]) -> Result<(), GraphError> {
        let Some(&(slot, requested)) = self.pending.front() else {
            return Err(error("no read-back is pending"));
        };
        if requested != into.len() {
            let size = into.len();
            return Err(error(format!("the oldest read-back has {requested} scalars, the destination {size}")));
        }
        self.pending.pop_front();
        self.copied[slot].synchronize()?;
        for (i, value) in into.iter_mut().enumerate() {
            // SAFETY: the event was recorded after the copy to this element.
            *value = unsafe { *self.buffer.element(slot * self.capacity + i) };
        }
        Ok(())
    }
}
