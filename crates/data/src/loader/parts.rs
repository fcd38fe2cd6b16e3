//! The parts of a batch, which several processes share.

use std::ops::Range;

/// A batch in equal parts, and those of them that one process loads. The number of parts belongs to the recipe: results
/// follow from it, and not from the number of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchParts {
    /// All parts of a batch; the size of a batch is a multiple of it.
    pub count: usize,
    /// The parts of this process.
    pub own: Range<usize>,
}

impl Default for BatchParts {
    /// The whole batch as one part.
    fn default() -> Self {
        Self::all(1)
    }
}

impl BatchParts {
    /// All parts, in a single process.
    pub fn all(count: usize) -> Self {
        Self { count, own: 0..count }
    }

    /// The parts of process `rank`: a whole subtree of the balanced tree of parts if both numbers are powers of two.
    pub fn of_process(count: usize, rank: usize, processes: usize) -> Self {
        Self { count, own: rank * count / processes..(rank + 1) * count / processes }
    }

    /// The places of this process in a batch of so many samples.
    pub fn places(&self, batch: usize) -> Range<usize> {
        let length = batch / self.count;
        self.own.start * length..self.own.end * length
    }
}
