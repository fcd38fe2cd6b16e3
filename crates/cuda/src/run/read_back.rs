//! Single numbers on their way from the GPU: copied when a run is done, while the next one begins.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use vit_graph::GraphError;

use crate::driver::memory::PinnedBuffer;
use crate::driver::{Gpu, check, error};
use crate::gemm::tuning::Event;

/// Questions that may wait at a time: that of the run that is done and that of the run under way.
const QUESTIONS: usize = 2;

/// Where numbers arrive on the host.
pub(crate) struct ReadBack {
    buffer: PinnedBuffer,
    /// The most numbers of one question.
    numbers: usize,
    /// When each place was last filled.
    there: Vec<Event>,
    /// The next place to be filled.
    next: usize,
    /// Places that are being filled, each with how many numbers it gets.
    waiting: VecDeque<(usize, usize)>,
}

impl ReadBack {
    /// Room for questions of at most so many numbers.
    pub fn new(gpu: &Arc<Gpu>, numbers: usize) -> Result<Self, GraphError> {
        let buffer = PinnedBuffer::new(gpu, 4 * QUESTIONS * numbers)?;
        let there = (0..QUESTIONS).map(|_| Event::new()).collect::<Result<_, GraphError>>()?;
        Ok(ReadBack { buffer, numbers, there, next: 0, waiting: VecDeque::with_capacity(QUESTIONS) })
    }

    /// Copies the numbers at these addresses, once the stream has come here.
    pub fn ask(&mut self, addresses: &[u64], stream: cu::CUstream) -> Result<(), GraphError> {
        if self.waiting.len() == QUESTIONS || addresses.len() > self.numbers {
            return Err(error("two read-backs are pending already; take the first one before requesting another"));
        }
        let place = self.next;
        for (i, &from) in addresses.iter().enumerate() {
            let to = self.buffer.number(place * self.numbers + i);
            // SAFETY: the number's place is inside the buffer, which outlives the copy (its owner waits for the stream
            // before it goes), and nobody reads or fills it again before the event below.
            check(unsafe { cu::cuMemcpyDtoHAsync_v2(to.cast(), from, 4, stream) }, "copying a number from the GPU")?;
        }
        self.there[place].record(stream)?;
        self.next = (place + 1) % QUESTIONS;
        self.waiting.push_back((place, addresses.len()));
        Ok(())
    }

    /// The answer to the oldest question.
    pub fn take(&mut self, into: &mut [f32]) -> Result<(), GraphError> {
        let Some(&(place, _)) = self.waiting.front().filter(|(_, count)| *count == into.len()) else {
            let requested = self.waiting.front().map_or(0, |(_, count)| *count);
            return Err(error(format!("{} values were read back, but {requested} were requested", into.len())));
        };
        self.waiting.pop_front();
        self.there[place].wait()?;
        for (i, number) in into.iter_mut().enumerate() {
            // SAFETY: the copy to this place is done: the event was recorded behind it.
            *number = unsafe { *self.buffer.number(place * self.numbers + i) };
        }
        Ok(())
    }
}
