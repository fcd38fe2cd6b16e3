//! Samples that cannot be read. A few are normal in a large data set and are replaced; many mean that something is
//! wrong with all of it, and the run should stop and say so.

use super::LoaderError;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A sample that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its number in the data set.
    pub sample: usize,
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// When unreadable samples are too many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnreadableLimit {
    /// The greatest share of the samples seen that may be unreadable.
    pub share: f64,
    /// How many samples must have been seen before the share counts, if the data set has as many.
    pub after: usize,
}

impl UnreadableLimit {
    /// Whether so many of so many samples are too many. A single one says nothing about all of them, however few they are.
    pub fn is_exceeded(&self, found: usize, of: usize) -> bool {
        found as f64 > self.share * of as f64 && (found > 1 || self.share == 0.0)
    }
}

impl Default for UnreadableLimit {
    fn default() -> Self {
        Self { share: 0.05, after: 200 }
    }
}

/// What all threads know to be unreadable, so that nothing is tried twice.
#[derive(Default)]
pub(super) struct Known {
    any: AtomicBool,
    samples: Mutex<HashMap<usize, Arc<Unreadable>>>,
}

impl Known {
    pub(super) fn get(&self, sample: usize) -> Option<Arc<Unreadable>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).get(&sample).cloned()
    }

    pub(super) fn add(&self, unreadable: Unreadable) -> Arc<Unreadable> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let added = samples.entry(unreadable.sample).or_insert_with(|| Arc::new(unreadable)).clone();
        self.any.store(true, Ordering::Release);
        added
    }
}

/// What the consumer has met, in the order of batches and so independent of timing.
#[derive(Default)]
pub(super) struct Met {
    seen: usize,
    pub(super) unreadable: BTreeMap<usize, Arc<Unreadable>>,
}

impl Met {
    /// Takes note of a batch; an error if it is one too many.
    pub(super) fn batch(
        &mut self,
        count: usize,
        unreadable: Vec<Arc<Unreadable>>,
        samples: usize,
        limit: UnreadableLimit,
    ) -> Result<(), LoaderError> {
        self.seen = (self.seen + count).min(samples);
        self.unreadable.extend(unreadable.into_iter().map(|one| (one.sample, one)));
        let found = self.unreadable.len();
        if self.seen >= limit.after.min(samples) && limit.is_exceeded(found, self.seen) {
            return Err(LoaderError::TooManyUnreadable {
                found,
                seen: self.seen,
                limit: limit.share,
                examples: examples(self.unreadable.values().map(|one| &**one)),
            });
        }
        Ok(())
    }
}

/// Some of them, for a person to look at.
pub(super) fn examples<'a>(unreadable: impl Iterator<Item = &'a Unreadable>) -> String {
    let some: Vec<String> = unreadable.take(3).map(|one| format!("{} ({})", one.name, one.reason)).collect();
    some.join(", ")
}
