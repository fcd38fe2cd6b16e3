//! One replica of a model: a thread that takes batches from the queue and runs them on its device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use vit::graph::Device;
use vit::{DeviceOptions, Error, Model};

use super::batching::{BatchTimes, batch_of};
use super::cpu_turns::CpuTurns;
use super::health::{Flight, ReplicaHealth};
use super::outputs::{BatchOutputs, NeededOutputs};
use super::queue::{Due, Lane, ModelQueue, ReadyImage};
use super::statistics::Counters;
use super::{Answer, Timing, WorkError};

/// How long a lost device rests before it is tried again.
const REST: Duration = Duration::from_secs(1);

/// The share of a run's measured time after which the next batch is staged, full or not, while the run goes on.
const STAGE_AT: f64 = 0.8;

/// The device of a replica, and what its threads share.
#[derive(Clone)]
pub(super) struct ReplicaContext {
    pub device: Arc<dyn Device>,
    pub options: DeviceOptions,
    pub times: BatchTimes,
    pub max_delay: Duration,
    pub queue: Arc<ModelQueue>,
    /// Given on the CPU.
    pub turns: Option<Arc<CpuTurns>>,
    pub counters: Arc<Counters>,
    pub health: Arc<ReplicaHealth>,
}

impl ReplicaContext {
    /// The measured time of so many images.
    pub fn time_of(&self, images: usize) -> Duration {
        self.times.iter().find(|(size, _)| *size >= images).map_or(Duration::ZERO, |(_, time)| *time)
    }

    /// Follows the time of runs, which changes with the load of the machine.
    fn observe(&mut self, images: usize, time: Duration) {
        if let Some((_, known)) = self.times.iter_mut().find(|(size, _)| *size >= images) {
            *known = (*known * 7 + time) / 8;
        }
    }
}

/// A model on a device.
pub(super) struct Replica {
    pub model: Model,
    pub lane: Lane,
    pub context: ReplicaContext,
}

/// A batch on the device.
struct Batch {
    flight: Arc<Flight>,
    needed: Vec<NeededOutputs>,
    inputs: Vec<Vec<f32>>,
    started: Instant,
}

/// A batch whose outputs have been read.
struct FinishedBatch {
    batch: Batch,
    outputs: BatchOutputs,
    compute: Duration,
}

impl Replica {
    /// Runs batches until the queue is closed and empty. Where the device runs by itself, the next batch is staged while
    /// one runs.
    pub fn run(mut self) {
        let mut running: Option<Batch> = None;
        loop {
            let stage_at = |batch: &Batch| batch.started + self.context.time_of(batch.inputs.len()).mul_f64(STAGE_AT);
            let until = running.as_ref().map(stage_at);
            match self.context.queue.wait_until_due(self.lane, self.context.max_delay, until) {
                Due::Closed if running.is_none() => return,
                _ => {}
            }
            let turns = self.context.turns.clone();
            let turn = turns.as_ref().map(|turns| turns.begin());
            let images = match self.context.health.is_lost() {
                true => Vec::new(),
                false => self.context.queue.take_ready(self.lane, |ready| batch_of(ready, &self.context.times)),
            };
            let staged = if images.is_empty() { None } else { self.stage(images) };
            // Answers are sent while the device runs the next batch.
            let finished = running.take().and_then(|batch| self.finish(batch));
            let started = staged.and_then(|batch| self.start(batch));
            finished.into_iter().for_each(|batch| self.answer(batch));
            match started {
                Some(batch) if self.model.is_async() => running = Some(batch),
                Some(batch) => self.finish(batch).into_iter().for_each(|batch| self.answer(batch)),
                None => {}
            }
            drop(turn);
            while self.context.health.is_lost() && !self.context.queue.is_closed() {
                self.probe();
            }
        }
    }

    fn stage(&mut self, images: Vec<ReadyImage>) -> Option<Batch> {
        let (mut tasks, mut inputs, mut needed) = (Vec::new(), Vec::new(), Vec::new());
        for ReadyImage { input, decoded, task, .. } in images {
            inputs.push(input);
            needed.extend(task.needed());
            tasks.push((task, decoded));
        }
        let flight = self.context.health.begin(tasks, 2 * self.context.time_of(inputs.len()));
        let batch = Batch { flight, needed, inputs, started: Instant::now() };
        self.guarded(batch, |replica, batch| {
            let inputs: Vec<&[f32]> = batch.inputs.iter().map(Vec::as_slice).collect();
            replica.model.stage(&inputs)
        })
    }

    fn start(&mut self, mut batch: Batch) -> Option<Batch> {
        batch.started = Instant::now();
        self.guarded(batch, |replica, _| replica.model.start())
    }

    /// Waits for the end of a batch and reads its outputs.
    fn finish(&mut self, batch: Batch) -> Option<FinishedBatch> {
        let mut outputs = None;
        let read = |replica: &mut Self, batch: &Batch| {
            outputs = Some(replica.outputs(batch)?);
            Ok(())
        };
        let batch = self.guarded(batch, read)?;
        let compute = batch.started.elapsed();
        // An asynchronous run may have ended earlier.
        if !self.model.is_async() {
            self.context.observe(batch.inputs.len(), compute);
        }
        self.context.counters.batch(compute);
        self.context.health.end(&batch.flight);
        Some(FinishedBatch { batch, outputs: outputs?, compute })
    }

    fn answer(&self, FinishedBatch { batch, outputs, compute }: FinishedBatch) {
        let Some(tasks) = batch.flight.take() else { return };
        let images = tasks.len();
        for (index, (task, decoded)) in tasks.into_iter().enumerate() {
            let timing = Timing {
                decode: decoded.saturating_duration_since(task.admitted),
                queue: batch.started.saturating_duration_since(decoded),
                compute,
                batch: images,
            };
            match outputs.answer(batch.needed[index], index) {
                Ok(answer) => task.answer(Answer { timing, ..answer }),
                Err(error) => task.fail(error),
            }
        }
        self.context.queue.recycle(batch.inputs);
    }

    /// The outputs that the tasks of a batch need.
    fn outputs(&self, batch: &Batch) -> Result<BatchOutputs, Error> {
        let images = batch.inputs.len();
        let mut outputs = Vec::new();
        for (name, shape) in self.model.outputs() {
            if batch.needed.iter().any(|needed| needed.contains(name)) {
                outputs.push((name.clone(), self.model.output(name, images)?, shape.clone()));
            }
        }
        Ok(BatchOutputs { images, outputs })
    }

    /// Runs a step of a batch. A panic fails the batch, an error of the device loses the replica.
    fn guarded(&mut self, batch: Batch, step: impl FnOnce(&mut Self, &Batch) -> Result<(), Error>) -> Option<Batch> {
        match catch_unwind(AssertUnwindSafe(|| step(self, &batch))) {
            Ok(Ok(())) => return Some(batch),
            Ok(Err(error)) => self.context.health.lose(&error.to_string()),
            Err(_) => {
                self.context.health.end(&batch.flight);
                batch.flight.fail(&WorkError::Internal("the model panicked".into()));
            }
        }
        None
    }

    /// Tries a lost device again after a while.
    fn probe(&mut self) {
        thread::sleep(REST);
        let blank = vec![0.0; self.model.preprocess().output_len()];
        let output = self.model.outputs()[0].0.clone();
        let run = || {
            self.model.stage(&[&blank])?;
            self.model.start()?;
            self.model.output(&output, 1)
        };
        if let Ok(Ok(_)) = catch_unwind(AssertUnwindSafe(run)) {
            self.context.health.recover();
        }
    }
}
