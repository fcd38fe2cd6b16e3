//! The state of a run in memory: the step on its device, the loader, the position. A snapshot can be taken after any step.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vit_data::loader::{Batch, BatchPosition, Loader, LoaderSettings, Unreadable, UnreadableLimit};
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::random::Seed;
use vit_models::weights::Weights;

use super::first_parameters::FirstParameters;
use super::{TrainerOptions, training_step};
use crate::error::TrainError;
use crate::pairs::{BatchCaptions, Captions};
use crate::processes::Processes;
use crate::recipe::PretrainingTask;
use crate::recipe::preprocess::loader_settings;
use crate::run::saving::{RunPosition, Snapshot};
use crate::run::setup::{FirstWeights, Setup};
use crate::run::teacher::Teacher;
use crate::step::TrainingStep;
use crate::step::average::Average;
use crate::step::objective::pretraining::DistillationSchedule;
use crate::step::schedule::{CosineRamp, Schedule};

/// The key of the step after which the model was last evaluated, in `state.json`.
const EVALUATED: &str = "measured";

/// The key of the number of evaluations since the last best, in `state.json`.
const WITHOUT_IMPROVEMENT: &str = "evaluations_without_improvement";

/// The scalar outputs of a step.
pub(super) struct Losses {
    pub loss: f64,
    pub grad_norm: f64,
    /// What any process asked for when the step was started.
    pub requests: Requests,
}

/// What processes ask the others for: as a part of each step, so that all of them act on it after the same step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Requests {
    /// To stop; of any process.
    pub stop: bool,
    /// To save; of rank 0.
    pub save: bool,
}

impl Requests {
    /// The value of rank 0's request to save: above the number of processes.
    const SAVE: f32 = (1 << 20) as f32;

    /// A process's term of the sum over processes.
    fn term(self) -> f32 {
        f32::from(u8::from(self.stop)) + if self.save { Self::SAVE } else { 0.0 }
    }

    /// The requests of all processes.
    fn of_sum(sum: f32) -> Requests {
        Requests { stop: sum % Self::SAVE >= 1.0, save: sum >= Self::SAVE }
    }
}

impl Losses {
    /// The first of them that is not finite.
    pub fn non_finite(&self) -> Option<&'static str> {
        if !self.loss.is_finite() {
            Some("loss")
        } else if !self.grad_norm.is_finite() {
            Some("gradient")
        } else {
            None
        }
    }
}

/// A batch with its captions or the teacher's logits.
pub(super) struct Loaded {
    pub batch: Batch,
    /// Of an image-text model.
    pub captions: Option<BatchCaptions>,
    pub teacher: Option<Vec<f32>>,
}

pub(super) struct Session {
    pub(super) graph: TrainingStep,
    pub(super) executable: Box<dyn Executable>,
    loader: Loader,
    /// The batch of the last finished step, and those of steps that were started after it. Kept to find the operation that is
    /// not finite.
    pub(super) batches: VecDeque<Loaded>,
    /// The number of steps started: at most one more than finished.
    pub(super) started: u64,
    /// The batch of the next step, already written to the device.
    next: Option<Loaded>,
    teacher: Option<Teacher>,
    /// Of an image-text model.
    captions: Option<Captions>,
    schedule: Schedule,
    average: Option<Average>,
    weight_decay: Option<CosineRamp>,
    distillation: Option<DistillationSchedule>,
    /// Parameters that steps do not change.
    pub(super) unchanged: Weights,
    has_seed: bool,
    /// Requests to the other processes in the next step.
    pub requests: Requests,
    pub(super) processes: Processes,
    /// The factor of the step's loss in logs.
    loss_scale: f64,
    pub steps: u64,
    pub steps_per_epoch: u64,
    pub batch: usize,
    /// The parts of this process.
    parts: usize,
    pub position: RunPosition,
    /// Time that steps waited for batches.
    pub waiting: Duration,
}

/// The inputs of a step besides its batch.
pub(super) struct StepInputs {
    /// By name, those that the step has.
    pub scalars: Vec<(&'static str, f32)>,
    pub seed: [i32; 4],
}

impl Session {
    /// Compiles the step of a run, at its beginning or from a snapshot.
    pub fn new(
        device: &dyn Device,
        setup: &mut Setup,
        from: Option<Snapshot>,
        options: &TrainerOptions,
    ) -> Result<Session, TrainError> {
        let recipe = &setup.recipe;
        let graph = training_step(setup, options)?;
        let mut position = RunPosition { seed: recipe.seed, ..RunPosition::default() };
        let mut state = Weights::default();
        let mut first = std::mem::replace(&mut setup.weights, FirstWeights::Random);
        if let Some(snapshot) = from {
            position = snapshot.position;
            first = FirstWeights::Given(snapshot.weights);
            state = snapshot.optimiser;
        }
        let changed: HashSet<String> = graph
            .graph
            .updates()
            .iter()
            .filter_map(|(parameter, _)| graph.graph.parameters().find(|(node, _)| *node == parameter.node))
            .map(|(_, parameter)| parameter.name.clone())
            .collect();
        let mut parameters = FirstParameters {
            first,
            state,
            names: &graph.state,
            shards: &graph.shards,
            seed: recipe.seed,
            averages: (recipe.pretraining.task == PretrainingTask::Dino).then(HashMap::new),
            changed: &changed,
            unchanged: Weights::default(),
        };
        let executable = device.compile(&graph.graph, &mut parameters)?;
        let unchanged = parameters.unchanged;
        let teacher = match recipe.objective.teacher.as_str() {
            "" => None,
            path => Some(Teacher::open(Path::new(path), &setup.config, recipe.batch / recipe.parts.max(1), device)?),
        };
        let samples: Arc<dyn vit_data::Samples> = setup.train.clone();
        let settings = LoaderSettings {
            threads: options.threads,
            parts: options.processes.parts(recipe.parts),
            cache_bytes: options.cache_bytes,
            unreadable: UnreadableLimit { share: setup.settings.max_unreadable, ..UnreadableLimit::default() },
            ..loader_settings(recipe, &setup.config, samples.len())?
        };
        let start = BatchPosition { epoch: position.epoch, batch: position.batch };
        let loader = Loader::new(samples, settings, start)?;
        let steps_per_epoch = loader.batches_per_epoch();
        let has_seed = graph.graph.inputs().any(|(_, input)| input.name == "seed");
        Ok(Session {
            schedule: recipe.schedule(steps_per_epoch),
            steps: recipe.steps(steps_per_epoch),
            average: recipe.average(steps_per_epoch),
            weight_decay: recipe.weight_decay(steps_per_epoch),
            distillation: recipe.distillation_schedule(steps_per_epoch),
            has_seed,
            requests: Requests::default(),
            processes: options.processes.clone(),
            loss_scale: recipe.objective.loss.logged_scale(setup.config.architecture.classes()),
            batch: recipe.batch,
            parts: options.processes.parts(recipe.parts).own.len(),
            waiting: Duration::ZERO,
            batches: VecDeque::new(),
            started: position.step,
            next: None,
            graph,
            captions: setup.captions.as_ref().map(|captions| captions.train.clone()),
            executable,
            loader,
            teacher,
            unchanged,
            steps_per_epoch,
            position,
        })
    }

    pub(super) fn inputs(&self, step: u64) -> StepInputs {
        let mut scalars = vec![("rate", self.schedule.rate(step - 1) as f32), ("step", step as f32)];
        scalars.extend(self.average.map(|average| ("average_decay", average.decay_at(step))));
        scalars.extend(self.weight_decay.map(|decay| ("weight_decay", decay.at(step - 1) as f32)));
        if let Some(schedule) = &self.distillation {
            scalars
                .extend([("teacher_sharpness", schedule.sharpness(step)), ("last_layer", schedule.last_layer(step))]);
        }
        StepInputs { scalars, seed: Seed::new(self.position.seed, step).0 }
    }

    /// The learning rate of the last step.
    pub fn rate(&self) -> f64 {
        self.schedule.rate(self.position.step.saturating_sub(1))
    }

    /// Fetches the next batch and writes it to the device.
    fn load(&mut self) -> Result<(), TrainError> {
        let batch = self.loader.next()?;
        let teacher = self.teacher.as_mut().map(|teacher| teacher.answer(&batch.images)).transpose()?;
        if let Some(logits) = &teacher {
            self.executable.write("teacher", Elements::F32(logits))?;
        }
        self.executable.write("image", Elements::F32(&batch.images))?;
        if !batch.targets.is_empty() {
            self.executable.write("targets", Elements::F32(&batch.targets))?;
        }
        let captions = self.captions.as_ref().map(|captions| captions.of_batch(&batch.samples, self.parts));
        for (name, elements) in captions.iter().flat_map(BatchCaptions::inputs) {
            self.executable.write(&name, elements)?;
        }
        self.next = Some(Loaded { batch, captions, teacher });
        Ok(())
    }

    /// Starts the next step, and fetches the batch after it while an asynchronous device runs.
    fn start(&mut self) -> Result<(), TrainError> {
        if self.next.is_none() {
            self.load()?;
        }
        let step = self.started + 1;
        let inputs = self.inputs(step);
        for (name, value) in inputs.scalars {
            self.executable.write(name, Elements::F32(&[value]))?;
        }
        if self.has_seed {
            self.executable.write("seed", Elements::I32(&inputs.seed))?;
        }
        if self.processes.size() > 1 {
            self.executable.write("stop", Elements::F32(&[self.requests.term()]))?;
        }
        let scalars = self.scalars();
        self.executable.run()?;
        self.executable.read_async(scalars)?;
        self.started = step;
        self.batches.extend(self.next.take());
        if step < self.steps {
            self.load()?;
        }
        Ok(())
    }

    /// Whether a step was started whose losses were not read yet.
    pub fn is_ahead(&self) -> bool {
        self.started > self.position.step
    }

    /// Takes one step. With `go_on`, an asynchronous device is given the next step before the losses of this one are read;
    /// without, no step is running afterwards.
    pub fn step(&mut self, go_on: bool) -> Result<Losses, TrainError> {
        if !self.is_ahead() {
            self.start()?;
        }
        let step = self.position.step + 1;
        if go_on && self.executable.is_async() && step < self.steps {
            self.start()?;
        }
        let losses = self.read_losses()?;
        self.set_step(step);
        let running = (self.started - step) as usize;
        self.batches.drain(..self.batches.len() - 1 - running);
        self.waiting = self.loader.waited();
        Ok(losses)
    }

    /// The losses of the oldest step whose losses were not read yet.
    pub(super) fn read_losses(&mut self) -> Result<Losses, TrainError> {
        let (mut scalars, count) = ([0.0; 3], self.scalars().len());
        self.executable.collect(&mut scalars[..count])?;
        let [loss, grad_norm, requests] = scalars;
        Ok(Losses {
            loss: self.loss_scale * f64::from(loss),
            grad_norm: f64::from(grad_norm),
            requests: Requests::of_sum(requests),
        })
    }

    /// The scalar outputs that are read after every step.
    fn scalars(&self) -> &'static [&'static str] {
        if self.processes.size() > 1 { &["loss", "grad_norm", "stop"] } else { &["loss", "grad_norm"] }
    }

    /// The last step that may be running when the losses of a step are known: the same in all processes.
    pub fn latest_started(&self, step: u64) -> u64 {
        if self.executable.is_async() { step + 1 } else { step }
    }

    /// Sets the position to just after a step.
    pub(super) fn set_step(&mut self, step: u64) {
        self.position.images = self.position.images + step * self.batch as u64 - self.position.step * self.batch as u64;
        self.position.step = step;
        self.position.epoch = step / self.steps_per_epoch;
        self.position.batch = step % self.steps_per_epoch;
    }

    /// Sets the position to that of rank 0, which has evaluated the model.
    pub fn share_position(&mut self) -> Result<(), TrainError> {
        if self.processes.size() > 1 {
            let text = self.processes.broadcast(serde_json::to_vec(&self.position).unwrap_or_default())?;
            let unreadable =
                |error: serde_json::Error| TrainError::Unsuitable(format!("the position of rank 0: {error}"));
            self.position = serde_json::from_slice(&text).map_err(unreadable)?;
        }
        Ok(())
    }

    /// Whether the model was evaluated after the last step.
    pub fn is_evaluated(&self) -> bool {
        self.position.more.get(EVALUATED).and_then(|step| step.as_u64()) == Some(self.position.step)
    }

    /// Records that the model was evaluated after the last step.
    pub fn set_evaluated(&mut self) {
        self.position.more.insert(EVALUATED.into(), self.position.step.into());
    }

    /// Counts an evaluation towards the recipe's patience.
    pub fn set_improved(&mut self, improved: bool) {
        let count = if improved { 0 } else { self.evaluations_without_improvement() + 1 };
        self.position.more.insert(WITHOUT_IMPROVEMENT.into(), count.into());
    }

    /// Evaluations since the last best.
    pub fn evaluations_without_improvement(&self) -> u64 {
        self.position.more.get(WITHOUT_IMPROVEMENT).and_then(|count| count.as_u64()).unwrap_or(0)
    }

    /// Samples that could not be read.
    pub fn unreadable(&self) -> impl ExactSizeIterator<Item = &Unreadable> {
        self.loader.unreadable()
    }

    /// Whether this process has the whole model and the whole state of the optimiser.
    pub fn has_all_state(&self) -> bool {
        self.graph.shards.is_empty()
    }

    /// Bytes of the step on its device.
    pub fn memory_bytes(&self) -> u64 {
        self.executable.memory_bytes() as u64
    }
}
