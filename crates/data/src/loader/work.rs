//! The work of a loader's threads. A task is a few samples of a batch: a thread decodes and transforms them and copies
//! the result into the batch. The thread that finishes the last task of a batch writes its targets and mixes it.

use super::cache::ImageCache;
use super::order::{EpochOrder, EpochPlan, SampleTurn};
use super::unreadable::{KnownUnreadable, Unreadable, examples};
use super::{BatchBuffers, BatchPosition, BufferPool, LoaderError, LoaderSettings};
use crate::augment::SampleRandom;
use crate::mix::{Mixing, Target, write_targets};
use crate::pipeline::{OrderedQueue, lock, panic_message};
use crate::samples::Samples;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Samples tried in place of an unreadable one before the run fails.
const MAX_CONSECUTIVE_FAILURES: usize = 1000;

/// Values that a thread prepares before it locks a batch, for small images.
const VALUES_PER_TASK: usize = 1 << 16;

/// Samples whose reads are announced ahead of time, after those of the next batch. With a latency of 20 ms per read, 256
/// in flight give 12,800 samples per second.
const ANNOUNCED_SAMPLES: usize = 256;

/// The state that the consumer and the worker threads share.
pub(super) struct LoaderState {
    pub(super) samples: Arc<dyn Samples>,
    pub(super) settings: LoaderSettings,
    pub(super) plan: EpochPlan,
    pub(super) pool: Arc<BufferPool>,
    cache: ImageCache,
    known: KnownUnreadable,
    /// The places of a batch that are loaded.
    places: Range<usize>,
    /// Samples of a task; the last task of a batch may have fewer or none.
    per_task: usize,
    tasks_per_batch: usize,
    /// The tasks of all batches in order.
    queue: OrderedQueue<Arc<OpenBatch>>,
    opening: Mutex<OpeningState>,
}

/// The batch whose tasks are being taken.
#[derive(Default)]
struct OpeningState {
    batch: Option<Arc<OpenBatch>>,
    /// The orders of the batch's epoch and of the next, as far as they were needed.
    orders: Vec<(u64, Arc<EpochOrder>)>,
    /// The end of the batches whose samples were announced.
    announced: u64,
}

/// A batch that is being prepared.
pub(super) struct OpenBatch {
    pub(super) position: BatchPosition,
    pub(super) count: usize,
    step: u64,
    order: Arc<EpochOrder>,
    content: Mutex<BatchContent>,
}

/// The part of a batch that workers write.
#[derive(Default)]
pub(super) struct BatchContent {
    pub(super) buffers: BatchBuffers,
    pub(super) mixing: Mixing,
    pub(super) unreadable: Vec<Arc<Unreadable>>,
    pub(super) error: Option<LoaderError>,
    finished_tasks: usize,
}

/// Consecutive samples of a batch.
struct BatchTask {
    batch: Arc<OpenBatch>,
    places: Range<usize>,
}

impl LoaderState {
    pub(super) fn new(
        samples: Arc<dyn Samples>,
        settings: LoaderSettings,
        plan: EpochPlan,
        threads: usize,
        start: BatchPosition,
    ) -> Self {
        let fitting = VALUES_PER_TASK / settings.transform.output_len().max(1);
        let places = settings.parts.places(settings.batch);
        let per_task = fitting.min(places.len().div_ceil(threads)).clamp(1, 32);
        let tasks_per_batch = places.len().div_ceil(per_task);
        let task = |step: u64| step.saturating_mul(tasks_per_batch as u64);
        let end = settings.epochs.map_or(u64::MAX, |epochs| task(epochs.saturating_mul(plan.batches())));
        let tasks = task(plan.step(start))..end;
        Self {
            cache: ImageCache::new(samples.len(), settings.cache_bytes, settings.transform.source_side()),
            known: KnownUnreadable::default(),
            places,
            per_task,
            tasks_per_batch,
            queue: OrderedQueue::new(tasks, settings.prefetch.max(1) * tasks_per_batch),
            opening: Mutex::default(),
            pool: Arc::default(),
            samples,
            settings,
            plan,
        }
    }

    /// Ends all threads, each after its current sample.
    pub(super) fn stop(&self) {
        self.queue.stop();
    }

    /// Waits for the next batch; calls `waiting` if it is not ready yet.
    pub(super) fn receive(&self, waiting: impl FnOnce()) -> Result<Arc<OpenBatch>, LoaderError> {
        self.queue.receive(self.tasks_per_batch, waiting)?.ok_or(LoaderError::Stopped)
    }

    /// The loop of a worker thread.
    pub(super) fn work(&self) {
        let length = self.settings.transform.output_len();
        let mut values = vec![0.0; self.per_task * length];
        self.queue.work(
            |task| self.open(task),
            |task| {
                let values = &mut values[..task.places.len() * length];
                let mut unreadable = Vec::new();
                let outcome = self.prepare(&task, values, &mut unreadable);
                self.deliver(task, values, unreadable, outcome)
            },
        );
    }

    /// A task of the open batch, or the first one of a new batch. Called in the order of tasks.
    fn open(&self, task: u64) -> BatchTask {
        let (step, part) = (task / self.tasks_per_batch as u64, (task % self.tasks_per_batch as u64) as usize);
        let mut opening = lock(&self.opening);
        let opened = opening.batch.take().filter(|batch| batch.step == step);
        let batch = opened.unwrap_or_else(|| self.open_batch(step, &mut opening));
        opening.batch = Some(batch.clone());
        let start = (part * self.per_task).min(batch.count);
        let end = (start + self.per_task).min(batch.count);
        BatchTask { batch, places: start..end }
    }

    fn open_batch(&self, step: u64, opening: &mut OpeningState) -> Arc<OpenBatch> {
        let position = self.plan.position(step);
        opening.orders.retain(|(epoch, _)| *epoch >= position.epoch);
        let order = self.order(position.epoch, opening);
        self.announce(step, opening);
        let count = self.count(position);
        let rows = if self.settings.last == super::LastBatch::Padded { self.settings.batch } else { count };
        let mut buffers = self.pool.take();
        let length = self.settings.transform.output_len();
        buffers.images.resize(rows * length, 0.0);
        buffers.images[count * length..].fill(0.0);
        buffers.targets.resize(rows * self.settings.targets(&*self.samples), 0.0);
        buffers.samples.clear();
        buffers.samples.resize(count, 0);
        buffers.replaced.clear();
        let content = Mutex::new(BatchContent { buffers, ..BatchContent::default() });
        Arc::new(OpenBatch { position, count, step, order, content })
    }

    fn order(&self, epoch: u64, opening: &mut OpeningState) -> Arc<EpochOrder> {
        if let Some((_, order)) = opening.orders.iter().find(|(known, _)| *known == epoch) {
            return order.clone();
        }
        let order = Arc::new(self.plan.order(epoch));
        opening.orders.push((epoch, order.clone()));
        order
    }

    /// Announces the samples of the batch that is opened and of those after it.
    fn announce(&self, step: u64, opening: &mut OpeningState) {
        let end = step + 2 + (ANNOUNCED_SAMPLES / self.places.len()) as u64;
        let end = self.settings.epochs.map_or(end, |epochs| end.min(epochs.saturating_mul(self.plan.batches())));
        for step in opening.announced.max(step)..end {
            let position = self.plan.position(step);
            let order = self.order(position.epoch, opening);
            let places = self.places.start..self.places.start + self.count(position);
            let samples = places.map(|place| order.turn(position.batch, place).sample);
            let samples: Vec<usize> = samples.filter(|sample| !self.cache.contains(*sample)).collect();
            self.samples.announce(&samples);
        }
        opening.announced = opening.announced.max(end);
    }

    /// The number of loaded samples of a batch.
    fn count(&self, position: BatchPosition) -> usize {
        self.plan.count(position.batch).min(self.places.end) - self.places.start
    }

    /// The turn at an index of the loaded samples of a batch.
    fn turn(&self, batch: &OpenBatch, index: usize) -> SampleTurn {
        batch.order.turn(batch.position.batch, self.places.start + index)
    }

    /// Transforms the samples of a task and returns their indices: an unreadable sample is replaced by another.
    fn prepare(
        &self,
        task: &BatchTask,
        values: &mut [f32],
        unreadable: &mut Vec<Arc<Unreadable>>,
    ) -> Result<Vec<usize>, LoaderError> {
        let length = self.settings.transform.output_len();
        let mut shown = Vec::with_capacity(task.places.len());
        for (place, values) in task.places.clone().zip(values.chunks_exact_mut(length)) {
            if self.queue.is_stopped() {
                return Err(LoaderError::Stopped);
            }
            let turn = self.turn(&task.batch, place);
            let epoch = task.batch.position.epoch;
            let work = AssertUnwindSafe(|| self.write_sample(&task.batch.order, epoch, turn, values, unreadable));
            let sample = catch_unwind(work).unwrap_or_else(|panic| {
                let name = catch_unwind(AssertUnwindSafe(|| self.samples.name(turn.sample)));
                Err(LoaderError::Panic { name: name.unwrap_or_default(), message: panic_message(&*panic) })
            })?;
            shown.push(sample);
        }
        Ok(shown)
    }

    /// Writes a sample, or the first readable one after it in the epoch's order. The random stream is that of the
    /// original turn, so that a replacement is not augmented as in its own turn.
    fn write_sample(
        &self,
        order: &EpochOrder,
        epoch: u64,
        turn: SampleTurn,
        values: &mut [f32],
        unreadable: &mut Vec<Arc<Unreadable>>,
    ) -> Result<usize, LoaderError> {
        let mut in_a_row = Vec::new();
        for further in 0..self.plan.samples.min(MAX_CONSECUTIVE_FAILURES) {
            let sample = order.sample(turn.place + further);
            let known = self.known.get(sample);
            let outcome = known.map_or_else(|| self.transform(epoch, turn, sample, values), Err);
            match outcome {
                Ok(outcome) => {
                    unreadable.append(&mut in_a_row);
                    return outcome.map(|()| sample);
                }
                Err(one) => in_a_row.push(one),
            }
        }
        Err(LoaderError::NoneReadable { tried: in_a_row.len(), examples: examples(in_a_row.iter().map(|one| &**one)) })
    }

    /// The outer error is an unreadable sample, the inner one an error of the transform.
    fn transform(
        &self,
        epoch: u64,
        turn: SampleTurn,
        sample: usize,
        values: &mut [f32],
    ) -> Result<Result<(), LoaderError>, Arc<Unreadable>> {
        let outcome = self.cache.with(&*self.samples, sample, |image| {
            let mut random = SampleRandom::new(self.settings.seed, epoch, turn.sample as u64, turn.repetition);
            self.settings.transform.apply(image, &mut random, values).map_err(LoaderError::from)
        });
        outcome.map_err(|error| self.known.add(Unreadable::new(sample, self.samples.name(sample), &error)))
    }

    /// Copies prepared samples into their batch; the last task completes the batch.
    fn deliver(
        &self,
        BatchTask { batch, places }: BatchTask,
        values: &[f32],
        mut unreadable: Vec<Arc<Unreadable>>,
        outcome: Result<Vec<usize>, LoaderError>,
    ) -> Arc<OpenBatch> {
        let mut content = lock(&batch.content);
        content.finished_tasks += 1;
        content.unreadable.append(&mut unreadable);
        match outcome {
            Ok(shown) => {
                let length = self.settings.transform.output_len();
                let buffers = &mut content.buffers;
                buffers.images[places.start * length..places.end * length].copy_from_slice(values);
                for (place, sample) in places.zip(shown) {
                    buffers.samples[place] = sample;
                    if sample != self.turn(&batch, place).sample {
                        buffers.replaced.push(place);
                    }
                }
            }
            Err(error) => content.error = content.error.take().or(Some(error)),
        }
        if content.finished_tasks == self.tasks_per_batch && content.error.is_none() {
            self.complete(&batch, &mut content);
        }
        drop(content);
        batch
    }

    fn complete(&self, batch: &OpenBatch, content: &mut BatchContent) {
        let [height, width] = self.settings.transform.preprocess().image_size;
        let (length, classes) = (self.settings.transform.output_len(), self.settings.targets(&*self.samples));
        let mixing = self.settings.mix.choose(self.settings.seed, batch.step, height, width);
        let BatchBuffers { images, targets, samples, replaced } = &mut content.buffers;
        let images = &mut images[..batch.count * length];
        let (targets, padding) = targets.split_at_mut(batch.count * classes);
        let target = |sample: usize| match self.samples.shares(sample) {
            Some((classes, shares)) => Target { classes, shares: Some(shares) },
            None => Target::from(self.samples.labels(sample)),
        };
        // Partners are in the same part, which one process has.
        let part = batch.count / self.settings.parts.own.len();
        let images = images.chunks_mut(part * length);
        // Without classes there is nothing to write, nor to mix.
        let targets = targets.chunks_mut((part * classes).max(1));
        for ((images, targets), samples) in images.zip(targets).zip(samples.chunks(part)) {
            mixing.mix(images, part, height, width);
            let label = |place: usize| target(samples[place]);
            write_targets(targets, classes, label, self.settings.mix.smoothing, mixing.lambda());
        }
        padding.fill(0.0);
        // Tasks finish in any order.
        replaced.sort_unstable();
        content.unreadable.sort_by_key(|one| one.sample);
        content.mixing = mixing;
    }
}

impl OpenBatch {
    /// The content of a finished batch.
    pub(super) fn into_content(self: Arc<Self>) -> BatchContent {
        std::mem::take(&mut *lock(&self.content))
    }
}
