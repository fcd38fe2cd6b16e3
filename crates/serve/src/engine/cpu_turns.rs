//! The cores of the CPU, for which batches and decoders compete.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
struct Turns {
    /// The number of the next batch to ask, and of the one that runs or may run.
    next: u64,
    serving: u64,
}

/// Batches on the CPU run one at a time, in the order in which they ask: each uses all cores, and two at a time would
/// share the device's threads badly. Decoders start no image while a batch runs.
#[derive(Default)]
pub(super) struct CpuTurns {
    turns: Mutex<Turns>,
    changed: Condvar,
}

/// The right to run a batch, until it is dropped.
pub(super) struct Turn<'a>(&'a CpuTurns);

impl CpuTurns {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the batches that asked earlier.
    pub fn begin(&self) -> Turn<'_> {
        let mut turns = self.lock();
        let number = turns.next;
        turns.next += 1;
        while turns.serving != number {
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }

    /// Waits until no batch runs, at most so long: images must be decoded even if batches follow each other closely.
    pub fn wait_idle(&self, most: Duration) {
        let turns = self.lock();
        let running = |turns: &mut Turns| turns.next != turns.serving;
        drop(self.changed.wait_timeout_while(turns, most, running).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().serving += 1;
        self.0.changed.notify_all();
    }
}
