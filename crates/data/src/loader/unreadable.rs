//! Samples that cannot be read. A few are normal in a large dataset and are replaced; a larger share is an error of
//! the run.

use super::LoaderError;
use crate::decode::ImageError;
use crate::pipeline::lock;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A sample that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its index in the dataset.
    pub sample: usize,
    /// Its name.
    pub name: String,
    /// The error's text.
    pub reason: String,
}

impl Unreadable {
    /// A sample and the error of reading it. The reason does not repeat the path, which the name has already.
    pub fn new(sample: usize, name: String, error: &ImageError) -> Self {
        let reason = match error {
            ImageError::File { error, .. } => error.to_string(),
            other => other.to_string(),
        };
        Self { sample, name, reason }
    }
}

/// The share of unreadable samples above which a run fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnreadableLimit {
    /// The greatest share of the samples seen that may be unreadable.
    pub share: f64,
    /// Samples to be seen before the share counts, or all if the dataset has fewer.
    pub after: usize,
}

impl UnreadableLimit {
    /// Whether `found` unreadable samples of `of` are too many. A single one is never too many, unless none is allowed.
    pub fn is_exceeded(&self, found: usize, of: usize) -> bool {
        found as f64 > self.share * of as f64 && (found > 1 || self.share == 0.0)
    }
}

impl Default for UnreadableLimit {
    fn default() -> Self {
        Self { share: 0.05, after: 200 }
    }
}

/// The unreadable samples that any thread has met, so that none is decoded twice.
#[derive(Default)]
pub(super) struct KnownUnreadable {
    any: AtomicBool,
    samples: Mutex<HashMap<usize, Arc<Unreadable>>>,
}

impl KnownUnreadable {
    pub(super) fn get(&self, sample: usize) -> Option<Arc<Unreadable>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.samples).get(&sample).cloned()
    }

    pub(super) fn add(&self, unreadable: Unreadable) -> Arc<Unreadable> {
        let mut samples = lock(&self.samples);
        let added = samples.entry(unreadable.sample).or_insert_with(|| Arc::new(unreadable)).clone();
        self.any.store(true, Ordering::Release);
        added
    }
}

/// The unreadable samples in the batches delivered so far: in the order of batches, and so independent of timing.
#[derive(Default)]
pub(super) struct UnreadableTally {
    seen: usize,
    pub(super) unreadable: BTreeMap<usize, Arc<Unreadable>>,
}

impl UnreadableTally {
    /// Counts a batch; an error if the share of unreadable samples is above the limit.
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

/// The first of them with their reasons, for an error's text.
pub(super) fn examples<'a>(unreadable: impl Iterator<Item = &'a Unreadable>) -> String {
    let some: Vec<String> = unreadable.take(3).map(|one| format!("{} ({})", one.name, one.reason)).collect();
    some.join(", ")
}
