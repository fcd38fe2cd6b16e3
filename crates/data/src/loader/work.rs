//! What the threads of a loader do. A bounded window of coming batches is open at any time; threads take a few samples
//! of the first batch that has any left, decode and transform them, and copy the result into the batch. Whoever
//! finishes a batch writes its targets and mixes it. The consumer takes batches from the front of the window.

use super::cache::Cache;
use super::order::{Order, Plan, Turn};
use super::unreadable::{Known, Unreadable, examples};
use super::{Buffers, LoaderError, LoaderSettings, Pool, Position, lock};
use crate::augment::SampleRandom;
use crate::decode::ImageError;
use crate::mix::{Mixing, Target, write_targets};
use crate::samples::Samples;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// After as many unreadable samples in a row there is no point in looking for a readable one.
const MOST_IN_A_ROW: usize = 1000;

/// Values that a thread prepares before it takes the lock of a batch, if pictures are small.
const VALUES_PER_TASK: usize = 1 << 16;

/// What consumer and threads share.
pub(super) struct Shared {
    pub(super) samples: Arc<dyn Samples>,
    pub(super) settings: LoaderSettings,
    pub(super) plan: Plan,
    pub(super) pool: Arc<Pool>,
    cache: Cache,
    known: Known,
    /// Samples that a thread takes at once.
    per_task: usize,
    window: Mutex<Window>,
    /// Something to do, or the end.
    work: Condvar,
    /// The first batch is finished.
    ready: Condvar,
    stopped: AtomicBool,
}

/// The batches that are being prepared.
struct Window {
    /// Opened and not delivered, in order.
    open: VecDeque<Arc<Open>>,
    /// How many samples of the last of them have been handed out.
    handed_out: usize,
    /// The next to be opened.
    next_step: u64,
    order: Option<(u64, Arc<Order>)>,
    /// Set if a thread has ended before its time: then a batch may never be finished.
    broken: Option<LoaderError>,
}

/// A batch in the making.
pub(super) struct Open {
    pub(super) position: Position,
    pub(super) count: usize,
    step: u64,
    order: Arc<Order>,
    /// Set with the window locked, so that the consumer cannot miss it.
    is_ready: AtomicBool,
    content: Mutex<Content>,
}

/// What threads write.
#[derive(Default)]
pub(super) struct Content {
    pub(super) buffers: Buffers,
    pub(super) mixing: Mixing,
    pub(super) unreadable: Vec<Arc<Unreadable>>,
    pub(super) error: Option<LoaderError>,
    finished: usize,
}

/// Some samples of a batch.
struct Task {
    batch: Arc<Open>,
    places: Range<usize>,
}

impl Shared {
    pub(super) fn new(
        samples: Arc<dyn Samples>,
        settings: LoaderSettings,
        plan: Plan,
        threads: usize,
        start: Position,
    ) -> Self {
        let fitting = VALUES_PER_TASK / settings.transform.output_len().max(1);
        Self {
            cache: Cache::new(samples.len(), settings.cache_bytes),
            known: Known::default(),
            per_task: fitting.min(settings.batch.div_ceil(threads)).clamp(1, 32),
            window: Mutex::new(Window {
                open: VecDeque::with_capacity(settings.prefetch),
                handed_out: 0,
                next_step: plan.step(start),
                order: None,
                broken: None,
            }),
            work: Condvar::new(),
            ready: Condvar::new(),
            stopped: AtomicBool::new(false),
            pool: Arc::default(),
            samples,
            settings,
            plan,
        }
    }

    /// Ends all threads, each after the sample that it is at.
    pub(super) fn stop(&self) {
        let _window = lock(&self.window);
        self.stopped.store(true, Ordering::Relaxed);
        self.work.notify_all();
    }

    /// The first batch of the window, once it is finished; calls `waiting` if it is not yet.
    pub(super) fn take_first(&self, waiting: impl FnOnce()) -> Result<Arc<Open>, LoaderError> {
        let mut window = lock(&self.window);
        let is_ready =
            |window: &Window| window.open.front().is_some_and(|batch| batch.is_ready.load(Ordering::Relaxed));
        if !is_ready(&window) {
            waiting();
        }
        loop {
            if is_ready(&window)
                && let Some(batch) = window.open.pop_front()
            {
                self.work.notify_all();
                return Ok(batch);
            }
            if let Some(error) = &window.broken {
                return Err(error.clone());
            }
            window = self.ready.wait(window).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The life of a thread.
    pub(super) fn run(&self) {
        // Panics over a sample are caught where it can be named; this is for all others.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.prepare_batches())) {
            let error = LoaderError::Panic { name: "a batch".to_owned(), message: message(&*panic) };
            lock(&self.window).broken = Some(error);
            self.ready.notify_all();
        }
    }

    fn prepare_batches(&self) {
        let length = self.settings.transform.output_len();
        let mut values = vec![0.0; self.per_task * length];
        while let Some(task) = self.next_task() {
            let values = &mut values[..task.places.len() * length];
            let mut unreadable = Vec::new();
            let outcome = self.prepare(&task, values, &mut unreadable);
            self.deliver(task, values, unreadable, outcome);
        }
    }

    fn next_task(&self) -> Option<Task> {
        let mut window = lock(&self.window);
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(task) = self.hand_out(&mut window) {
                return Some(task);
            }
            window = self.work.wait(window).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn hand_out(&self, window: &mut Window) -> Option<Task> {
        if window.open.back().is_none_or(|batch| window.handed_out == batch.count) {
            let position = self.plan.position(window.next_step);
            let is_over = self.settings.epochs.is_some_and(|epochs| position.epoch >= epochs);
            if is_over || window.open.len() >= self.settings.prefetch.max(1) {
                return None;
            }
            let batch = self.open(window, position);
            window.open.push_back(batch);
            window.handed_out = 0;
            window.next_step += 1;
        }
        let batch = window.open.back()?.clone();
        let places = window.handed_out..(window.handed_out + self.per_task).min(batch.count);
        window.handed_out = places.end;
        Some(Task { batch, places })
    }

    fn open(&self, window: &mut Window, position: Position) -> Arc<Open> {
        let order = match &window.order {
            Some((epoch, order)) if *epoch == position.epoch => order.clone(),
            _ => {
                let order = Arc::new(self.plan.order(position.epoch));
                window.order = Some((position.epoch, order.clone()));
                order
            }
        };
        let count = self.plan.count(position.batch);
        let rows = if self.settings.last == super::LastBatch::Padded { self.settings.batch } else { count };
        let mut buffers = self.pool.take();
        let length = self.settings.transform.output_len();
        buffers.images.resize(rows * length, 0.0);
        buffers.images[count * length..].fill(0.0);
        buffers.targets.resize(rows * self.samples.classes().len(), 0.0);
        buffers.samples.clear();
        buffers.samples.resize(count, 0);
        buffers.replaced.clear();
        Arc::new(Open {
            position,
            count,
            step: window.next_step,
            order,
            is_ready: AtomicBool::new(false),
            content: Mutex::new(Content { buffers, ..Content::default() }),
        })
    }

    /// Transforms the samples of a task. Which samples were shown in the end is in the result.
    fn prepare(
        &self,
        task: &Task,
        values: &mut [f32],
        unreadable: &mut Vec<Arc<Unreadable>>,
    ) -> Result<Vec<usize>, LoaderError> {
        let length = self.settings.transform.output_len();
        let mut shown = Vec::with_capacity(task.places.len());
        for (place, values) in task.places.clone().zip(values.chunks_exact_mut(length)) {
            if self.stopped.load(Ordering::Relaxed) {
                return Err(LoaderError::Stopped);
            }
            let turn = task.batch.order.turn(task.batch.position.batch, place);
            let epoch = task.batch.position.epoch;
            let work = AssertUnwindSafe(|| self.show(&task.batch.order, epoch, turn, values, unreadable));
            let sample = catch_unwind(work).unwrap_or_else(|panic| {
                let name = catch_unwind(AssertUnwindSafe(|| self.samples.name(turn.sample)));
                Err(LoaderError::Panic { name: name.unwrap_or_default(), message: message(&*panic) })
            })?;
            shown.push(sample);
        }
        Ok(shown)
    }

    /// Writes a sample, or the first behind it in the epoch's order that can be read. Either way the random numbers
    /// are those of the turn, so that the substitute is not the same picture twice.
    fn show(
        &self,
        order: &Order,
        epoch: u64,
        turn: Turn,
        values: &mut [f32],
        unreadable: &mut Vec<Arc<Unreadable>>,
    ) -> Result<usize, LoaderError> {
        let mut in_a_row = Vec::new();
        for further in 0..self.plan.samples.min(MOST_IN_A_ROW) {
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

    /// The outer error is a sample that cannot be read, the inner one a transform that cannot be applied to any.
    fn transform(
        &self,
        epoch: u64,
        turn: Turn,
        sample: usize,
        values: &mut [f32],
    ) -> Result<Result<(), LoaderError>, Arc<Unreadable>> {
        let outcome = self.cache.with(&*self.samples, sample, |image| {
            let mut random = SampleRandom::new(self.settings.seed, epoch, turn.sample as u64, turn.repetition);
            self.settings.transform.apply(image, &mut random, values).map_err(LoaderError::from)
        });
        outcome.map_err(|error| {
            let reason = match error {
                // The name already says which file it is.
                ImageError::File { error, .. } => error.to_string(),
                other => other.to_string(),
            };
            self.known.add(Unreadable { sample, name: self.samples.name(sample), reason })
        })
    }

    /// Copies finished samples into their batch and completes it with the last of them.
    fn deliver(
        &self,
        task: Task,
        values: &[f32],
        mut unreadable: Vec<Arc<Unreadable>>,
        outcome: Result<Vec<usize>, LoaderError>,
    ) {
        let batch = &*task.batch;
        let mut content = lock(&batch.content);
        content.finished += task.places.len();
        content.unreadable.append(&mut unreadable);
        match outcome {
            Ok(shown) => {
                let length = self.settings.transform.output_len();
                let buffers = &mut content.buffers;
                buffers.images[task.places.start * length..task.places.end * length].copy_from_slice(values);
                for (place, sample) in task.places.zip(shown) {
                    buffers.samples[place] = sample;
                    if sample != batch.order.turn(batch.position.batch, place).sample {
                        buffers.replaced.push(place);
                    }
                }
            }
            Err(error) => content.error = content.error.take().or(Some(error)),
        }
        if content.finished < batch.count {
            return;
        }
        if content.error.is_none() {
            self.complete(batch, &mut content);
        }
        drop(content);
        let _window = lock(&self.window);
        batch.is_ready.store(true, Ordering::Relaxed);
        self.ready.notify_all();
    }

    fn complete(&self, batch: &Open, content: &mut Content) {
        let preprocess = self.settings.transform.preprocess();
        let [height, width] = preprocess.image_size;
        let classes = self.samples.classes().len();
        let mixing = self.settings.mix.choose(self.settings.seed, batch.step, height, width);
        let Buffers { images, targets, samples, replaced } = &mut content.buffers;
        let images = &mut images[..batch.count * preprocess.output_len()];
        mixing.mix(images, batch.count, height, width);
        let (targets, padding) = targets.split_at_mut(batch.count * classes);
        let target = |place: usize| match self.samples.shares(samples[place]) {
            Some((classes, shares)) => Target { classes, shares: Some(shares) },
            None => Target::from(self.samples.labels(samples[place])),
        };
        write_targets(targets, classes, target, self.settings.mix.smoothing, mixing.lambda());
        padding.fill(0.0);
        // Tasks end in any order.
        replaced.sort_unstable();
        content.unreadable.sort_by_key(|one| one.sample);
        content.mixing = mixing;
    }
}

impl Open {
    /// What the threads have left, when they are done.
    pub(super) fn into_content(self: Arc<Self>) -> Content {
        std::mem::take(&mut *lock(&self.content))
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
