//! Batches for training, prepared ahead by worker threads. The order of samples is a function of seed and epoch, the
//! augmentation of a sample one of seed, epoch and sample, the mixing of a batch one of seed and step. So a run can be
//! resumed at any batch, with any number of threads, and sees the same bits.

mod cache;
mod order;
mod parts;
mod unreadable;
mod work;

use crate::mix::{Mix, MixError, Mixing};
use crate::pipeline::lock;
use crate::preprocess::Preprocess;
use crate::samples::Samples;
use crate::transform::{Augmentation, TrainTransform, TransformError};
use order::EpochPlan;
pub use parts::BatchParts;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;
use unreadable::UnreadableTally;
pub use unreadable::{Unreadable, UnreadableLimit};
use work::LoaderState;

/// A batch of a run: the epoch and the batch in it, both counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct BatchPosition {
    /// The epoch.
    pub epoch: u64,
    /// The batch of the epoch.
    pub batch: u64,
}

/// The treatment of samples that do not fill a batch at the end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBatch {
    /// Left out.
    Drop,
    /// A smaller batch.
    Short,
    /// A full batch, padded with zeros.
    Padded,
}

/// Labels per sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelCount {
    /// Exactly one.
    Single,
    /// Any number.
    Multiple,
    /// Labels are ignored, and batches have no targets.
    Ignored,
}

/// The settings of a [`Loader`].
#[derive(Clone, Debug)]
pub struct LoaderSettings {
    /// Samples per batch.
    pub batch: usize,
    /// The parts that each batch is mixed in, and those that are loaded.
    pub parts: BatchParts,
    /// The seed of shuffling, augmentation and mixing.
    pub seed: u64,
    /// Threads that decode and transform; 0 for one per core.
    pub threads: usize,
    /// Batches that are prepared ahead, at least 1.
    pub prefetch: usize,
    /// Whether every epoch is shuffled.
    pub shuffle: bool,
    /// The treatment of an incomplete last batch.
    pub last: LastBatch,
    /// The number of epochs; `None` for no end.
    pub epochs: Option<u64>,
    /// The transform of each image.
    pub transform: TrainTransform,
    /// Mixup, CutMix and label smoothing of each batch.
    pub mix: Mix,
    /// Labels per sample.
    pub labels: LabelCount,
    /// Memory for decoded images, in bytes; 0 for none.
    pub cache_bytes: u64,
    /// The share of unreadable samples that is an error.
    pub unreadable: UnreadableLimit,
}

impl LoaderSettings {
    /// Shuffled, without end, incomplete batches dropped.
    pub fn training(transform: TrainTransform, batch: usize, seed: u64) -> Self {
        Self {
            batch,
            parts: BatchParts::default(),
            seed,
            threads: 0,
            prefetch: 4,
            shuffle: true,
            last: LastBatch::Drop,
            epochs: None,
            transform,
            mix: Mix::default(),
            labels: LabelCount::Single,
            cache_bytes: 0,
            unreadable: UnreadableLimit::default(),
        }
    }

    /// Every sample once, in the order of the dataset, the last batch padded with zeros.
    pub fn evaluation(preprocess: &Preprocess, batch: usize) -> Result<Self, TransformError> {
        let transform = TrainTransform::new(preprocess, &Augmentation::default())?;
        let last = LastBatch::Padded;
        Ok(Self { shuffle: false, last, epochs: Some(1), ..Self::training(transform, batch, 0) })
    }

    /// Batches per epoch of this many samples.
    pub fn batches_per_epoch(&self, samples: usize) -> u64 {
        self.plan(samples).batches()
    }

    /// The targets of a sample.
    fn targets(&self, samples: &dyn Samples) -> usize {
        if self.labels == LabelCount::Ignored { 0 } else { samples.classes().len() }
    }

    fn plan(&self, samples: usize) -> EpochPlan {
        EpochPlan {
            samples,
            batch: self.batch,
            repeated: self.transform.augmentation().repeated,
            last: self.last,
            shuffle_seed: self.shuffle.then_some(self.seed),
        }
    }
}

/// An error of a loader.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum LoaderError {
    /// A dataset without samples or classes.
    #[error("the dataset has {samples} samples and {classes} classes; both are needed")]
    Empty {
        /// Samples found.
        samples: usize,
        /// Classes found.
        classes: usize,
    },
    /// More samples than a `u32` can number.
    #[error("the dataset has {0} samples; at most 4294967295 can be shuffled")]
    TooManySamples(usize),
    /// A batch size of 0.
    #[error("the batch size is 0, it must be at least 1")]
    Batch,
    /// A batch that cannot be cut into parts of one size.
    #[error(
        "a batch of {batch} cannot be cut into {parts} parts of one size; set a batch that is a multiple of {parts}"
    )]
    Parts {
        /// Samples per batch.
        batch: usize,
        /// Parts per batch.
        parts: usize,
    },
    /// Fewer samples than one batch.
    #[error(
        "the dataset has {samples} training samples, fewer than one batch of {batch}; set a batch of at most {samples}"
    )]
    NoBatch {
        /// Samples found.
        samples: usize,
        /// Samples per batch.
        batch: usize,
    },
    /// A sample with an unsuitable number of labels or an unknown class.
    #[error("{name} has {found}, but {expected}")]
    Label {
        /// The sample.
        name: String,
        /// Its labels.
        found: String,
        /// The labels it should have.
        expected: String,
    },
    /// An error of the transform.
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// An error of the mixing.
    #[error(transparent)]
    Mix(#[from] MixError),
    /// A thread could not be started.
    #[error("cannot start a thread for loading data: {0}; ask for fewer threads")]
    Thread(String),
    /// Too many unreadable samples.
    #[error(
        "{found} of the first {seen} images cannot be read, more than the {:.1}% allowed, such as {examples}; \
         repair or remove them, or allow more",
        limit * 100.0
    )]
    TooManyUnreadable {
        /// Unreadable samples.
        found: usize,
        /// Samples delivered so far.
        seen: usize,
        /// The share allowed.
        limit: f64,
        /// The first of them, with reasons.
        examples: String,
    },
    /// No readable sample was found to replace an unreadable one.
    #[error("none of {tried} samples in a row can be read, such as {examples}; check the dataset")]
    NoneReadable {
        /// Samples tried.
        tried: usize,
        /// The first of them, with reasons.
        examples: String,
    },
    /// A panic while a sample was read or transformed.
    #[error("reading or transforming {name} failed unexpectedly: {message}; please report this")]
    Panic {
        /// The sample.
        name: String,
        /// The panic's message.
        message: String,
    },
    /// All epochs were delivered.
    #[error("all {0} epochs have been delivered")]
    Finished(u64),
    /// The loader was dropped.
    #[error("the loader was stopped")]
    Stopped,
}

/// A batch. Its buffers return to the loader when it is dropped.
#[derive(Debug)]
pub struct Batch {
    /// Images: `[batch][channel][height][width]`, of the loaded parts, like everything below.
    pub images: Vec<f32>,
    /// Targets: `[batch][class]`.
    pub targets: Vec<f32>,
    /// The samples of the batch by index; the rest of a padded batch is zero.
    pub samples: Vec<usize>,
    /// The places in the batch of samples that replace unreadable ones, ascending.
    pub replaced: Vec<usize>,
    /// How the batch was mixed.
    pub mixing: Mixing,
    /// The batch's position in the run.
    pub position: BatchPosition,
    pool: Arc<BufferPool>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        let [images, targets] = [&mut self.images, &mut self.targets].map(std::mem::take);
        let [samples, replaced] = [&mut self.samples, &mut self.replaced].map(std::mem::take);
        self.pool.give(BatchBuffers { images, targets, samples, replaced });
    }
}

/// The buffers of a batch.
#[derive(Debug, Default)]
struct BatchBuffers {
    images: Vec<f32>,
    targets: Vec<f32>,
    samples: Vec<usize>,
    replaced: Vec<usize>,
}

/// Buffers of delivered batches, for reuse.
#[derive(Debug, Default)]
struct BufferPool(Mutex<Vec<BatchBuffers>>);

impl BufferPool {
    fn take(&self) -> BatchBuffers {
        lock(&self.0).pop().unwrap_or_default()
    }

    fn give(&self, buffers: BatchBuffers) {
        lock(&self.0).push(buffers);
    }
}

/// Delivers the batches of a dataset in order.
pub struct Loader {
    state: Arc<LoaderState>,
    threads: Vec<JoinHandle<()>>,
    next: u64,
    met: UnreadableTally,
    waited: Duration,
    waited_before: Duration,
    failed: Option<LoaderError>,
}

impl Loader {
    /// Checks the settings and starts to prepare batches from `start`. A batch index beyond the end of an epoch
    /// continues in the next one.
    pub fn new(samples: Arc<dyn Samples>, settings: LoaderSettings, start: BatchPosition) -> Result<Self, LoaderError> {
        let plan = check(&*samples, &settings)?;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if settings.threads == 0 { cores() } else { settings.threads };
        let state = Arc::new(LoaderState::new(samples, settings, plan, threads, start));
        let mut loader = Self {
            next: plan.step(start),
            state,
            threads: Vec::with_capacity(threads),
            met: UnreadableTally::default(),
            waited: Duration::ZERO,
            waited_before: Duration::ZERO,
            failed: None,
        };
        for number in 0..threads {
            let state = loader.state.clone();
            let thread = std::thread::Builder::new().name(format!("vit-loader-{number}"));
            // On failure the loader is dropped, which ends the threads started so far.
            let thread = thread.spawn(move || state.work()).map_err(|error| LoaderError::Thread(error.to_string()))?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// The next batch; waits until it is ready. After an error, every call returns that error.
    #[allow(clippy::should_implement_trait, reason = "an iterator could neither stop at an error nor end with one")]
    pub fn next(&mut self) -> Result<Batch, LoaderError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let batch = self.take();
        if let Err(error) = &batch {
            self.failed = Some(error.clone());
            self.state.stop();
        }
        batch
    }

    fn take(&mut self) -> Result<Batch, LoaderError> {
        if let Some(epochs) = self.state.settings.epochs
            && self.position().epoch >= epochs
        {
            return Err(LoaderError::Finished(epochs));
        }
        let mut since = None;
        let batch = self.state.receive(|| since = Some(Instant::now()))?;
        self.waited += since.map_or(Duration::ZERO, |since| since.elapsed());
        self.next += 1;
        let (position, count) = (batch.position, batch.count);
        let content = batch.into_content();
        if let Some(error) = content.error {
            return Err(error);
        }
        let (parts, limit) = (&self.state.settings.parts, self.state.settings.unreadable);
        let samples = self.state.plan.samples * parts.own.len() / parts.count;
        self.met.batch(count, content.unreadable, samples, limit)?;
        let BatchBuffers { images, targets, samples, replaced } = content.buffers;
        let pool = self.state.pool.clone();
        Ok(Batch { images, targets, samples, replaced, mixing: content.mixing, position, pool })
    }

    /// The position of the next batch, for resuming.
    pub fn position(&self) -> BatchPosition {
        self.state.plan.position(self.next)
    }

    /// Batches per epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.state.plan.batches()
    }

    /// The unreadable samples found so far, each once, by index.
    pub fn unreadable(&self) -> impl ExactSizeIterator<Item = &Unreadable> {
        self.met.unreadable.values().map(|one| &**one)
    }

    /// The total time that [`next`](Self::next) has waited for batches.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// The time that [`next`](Self::next) has waited since the last call of this function.
    pub fn waited_since(&mut self) -> Duration {
        let since = self.waited - self.waited_before;
        self.waited_before = self.waited;
        since
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.state.stop();
        for thread in self.threads.drain(..) {
            // The queue catch_panic and reported a panic.
            let _ = thread.join();
        }
    }
}

fn check(samples: &dyn Samples, settings: &LoaderSettings) -> Result<EpochPlan, LoaderError> {
    let classes = samples.classes().len();
    let ignored = settings.labels == LabelCount::Ignored;
    if samples.is_empty() || (classes == 0 && !ignored) {
        return Err(LoaderError::Empty { samples: samples.len(), classes });
    }
    if u32::try_from(samples.len()).is_err() {
        return Err(LoaderError::TooManySamples(samples.len()));
    }
    if settings.batch == 0 {
        return Err(LoaderError::Batch);
    }
    let parts = settings.parts.count;
    if parts == 0 || !settings.batch.is_multiple_of(parts) || (parts > 1 && settings.last != LastBatch::Drop) {
        return Err(LoaderError::Parts { batch: settings.batch, parts });
    }
    settings.mix.validate()?;
    for index in (0..samples.len()).filter(|_| !ignored) {
        let labels = samples.labels(index);
        let wrong = |found: String, expected: String| LoaderError::Label { name: samples.name(index), found, expected };
        if settings.labels == LabelCount::Single && labels.len() != 1 {
            let found = format!("{} labels", labels.len());
            return Err(wrong(found, "each sample needs exactly one; train with multiple labels instead".to_owned()));
        }
        if let Some(label) = labels.iter().find(|label| **label as usize >= classes) {
            return Err(wrong(format!("label {label}"), format!("there are only {classes} classes")));
        }
    }
    let plan = settings.plan(samples.len());
    if plan.batches() == 0 {
        return Err(LoaderError::NoBatch { samples: samples.len(), batch: settings.batch });
    }
    Ok(plan)
}
