//! Counters of a model, which outlive its reloads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Counters of a model since start.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    /// Images answered.
    pub answered: u64,
    /// Images that failed.
    pub failed: u64,
    /// Runs of the model.
    pub batches: u64,
    /// Sums over answered images.
    pub decode: Duration,
    /// Sums over answered images.
    pub queue: Duration,
    /// Sums over runs.
    pub compute: Duration,
    /// Images admitted and waiting now.
    pub waiting: usize,
}

/// The counters behind [`Statistics`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    answered: AtomicU64,
    failed: AtomicU64,
    batches: AtomicU64,
    decode_ns: AtomicU64,
    queue_ns: AtomicU64,
    compute_ns: AtomicU64,
    /// Images admitted and not yet answered.
    pub pending: Arc<AtomicUsize>,
}

impl Counters {
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    pub fn answered(&self, decode: Duration, queue: Duration) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.decode_ns.fetch_add(decode.as_nanos() as u64, Ordering::Relaxed);
        self.queue_ns.fetch_add(queue.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub fn batch(&self, compute: Duration) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.compute_ns.fetch_add(compute.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn statistics(&self, waiting: usize) -> Statistics {
        let time = |counter: &AtomicU64| Duration::from_nanos(counter.load(Ordering::Relaxed));
        Statistics {
            answered: self.answered.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            decode: time(&self.decode_ns),
            queue: time(&self.queue_ns),
            compute: time(&self.compute_ns),
            waiting,
        }
    }
}
