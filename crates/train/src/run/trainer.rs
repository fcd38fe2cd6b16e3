//! The training loop: steps, evaluations, checkpoints. Its result depends on the setup alone, to the bit: interruptions,
//! the number of threads and the time that steps take do not change it.

mod algorithms;
mod data_report;
mod evaluation;
mod first_parameters;
mod interval;
mod non_finite;
mod observer;
mod read_back;
mod session;

pub use observer::Observer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vit_graph::device::Device;

use crate::error::TrainError;
use crate::evaluate::evaluator::Evaluator;
use crate::run::folder::{MetricsLog, RunFolder};
use crate::run::progress::Pace;
use crate::run::saving::{RunPosition, Snapshot};
use crate::run::setup::Setup;
use crate::step::{StepError, StepOptions, TrainingStep};
use algorithms::KeptAlgorithms;
use data_report::UnreadableImages;
use interval::Interval;
use session::Session;

/// How a run is carried out; nothing here changes its result.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerOptions {
    /// Threads that prepare images.
    pub threads: usize,
    /// Bytes of decoded images that are cached.
    pub cache_bytes: u64,
    /// The longest time between two saves.
    pub save_every: Duration,
    /// Recompute activations in the backward pass instead of keeping them.
    pub recompute: bool,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Whether the run is over; otherwise it was interrupted and can be resumed.
    pub complete: bool,
    /// Whether it ended before the recipe's length because evaluations no longer improved.
    pub early: bool,
    /// Where it stopped.
    pub position: RunPosition,
    /// The share of the time in which steps waited for data.
    pub waiting: f64,
    /// Seconds of this session.
    pub seconds: f64,
}

/// Trains to the end of the recipe, or until `stop` is set, and saves.
pub fn train(
    device: &dyn Device,
    setup: &mut Setup,
    run: &RunFolder,
    from: Option<Snapshot>,
    options: &TrainerOptions,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Finished, TrainError> {
    let mut trainer = Trainer::new(device, setup, run, from, options, observer, stop)?;
    let complete = trainer.train()?;
    trainer.finish(complete)
}

struct Trainer<'a> {
    device: &'a dyn Device,
    setup: &'a Setup,
    run: &'a RunFolder,
    options: &'a TrainerOptions,
    observer: &'a mut dyn Observer,
    stop: &'a AtomicBool,
    session: Session,
    /// Compiled with the step, so that a run whose evaluation does not fit into memory fails before its first step.
    evaluator: Option<Evaluator>,
    log: MetricsLog,
    unreadable: UnreadableImages,
    pace: Pace,
    interval: Interval,
    /// Steps between two evaluations.
    evaluate_every: u64,
    /// Steps between two rows of the metrics.
    log_every: u64,
    began: Instant,
    /// Seconds of the sessions before this one.
    seconds_before: f64,
    saved: Instant,
    unsaved: bool,
}

impl<'a> Trainer<'a> {
    fn new(
        device: &'a dyn Device,
        setup: &'a mut Setup,
        run: &'a RunFolder,
        from: Option<Snapshot>,
        options: &'a TrainerOptions,
        observer: &'a mut dyn Observer,
        stop: &'a AtomicBool,
    ) -> Result<Trainer<'a>, TrainError> {
        let began = Instant::now();
        let log = match &from {
            Some(snapshot) => MetricsLog::resume(run, snapshot.position.step)?,
            None => MetricsLog::create(run)?,
        };
        let seconds_before = from.as_ref().map_or(0.0, |snapshot| snapshot.position.seconds);
        let mut algorithms = KeptAlgorithms::restore(device, run, observer)?;
        let session = Session::new(device, setup, from, options)?;
        let evaluator = session.evaluator(device, setup)?;
        algorithms.keep(device, run)?;
        setup.record_samples(run)?;
        let setup = &*setup;
        let mut trainer = Trainer {
            unreadable: UnreadableImages::of(run),
            pace: Pace::new(session.position.step, session.steps),
            interval: Interval::new(&session),
            evaluate_every: setup.recipe.evaluate_every.steps(session.steps_per_epoch, session.steps).max(1),
            log_every: (session.steps_per_epoch / 10).clamp(1, 50),
            saved: Instant::now(),
            unsaved: false,
            device,
            setup,
            run,
            options,
            observer,
            stop,
            session,
            evaluator,
            log,
            began,
            seconds_before,
        };
        match trainer.session.position.step {
            0 => {
                // A run that is killed before its first save can be resumed, too.
                trainer.save()?;
                trainer.unreadable.write(setup, run)?;
            }
            step => {
                let steps = trainer.session.steps;
                trainer.observer.note(&match trainer.is_over() {
                    true => format!("this run is finished: its last step was {step} of {steps}"),
                    false => format!("going on after step {step} of {steps}"),
                });
            }
        }
        Ok(trainer)
    }

    /// Trains until the run is over; `false` if it was interrupted.
    fn train(&mut self) -> Result<bool, TrainError> {
        if self.evaluation_was_interrupted() {
            self.unsaved = true;
            if !self.evaluate()? {
                return Ok(false);
            }
        }
        self.interval = Interval::new(&self.session);
        while !self.is_over() {
            let stopping = self.stop.load(Ordering::Relaxed);
            if stopping && !self.session.is_ahead() {
                return Ok(false);
            }
            let evaluating = self.is_evaluated_after(self.session.position.step + 1);
            let saving = evaluating || self.saved.elapsed() >= self.options.save_every;
            // What is read after this step must not be changed by the next one.
            self.step(!saving && !stopping, evaluating)?;
            let paused = Instant::now();
            if evaluating {
                if !self.evaluate()? {
                    return Ok(false);
                }
                self.unreadable.write(self.setup, self.run)?;
            }
            if saving {
                self.save()?;
            }
            self.interval.exclude(paused.elapsed());
        }
        Ok(true)
    }

    /// Takes one step and reports it; with `go_on`, the device may start the next one. Steps before an evaluation are
    /// always logged.
    fn step(&mut self, go_on: bool, evaluating: bool) -> Result<(), TrainError> {
        let losses = match self.session.step(go_on) {
            Ok(losses) => losses,
            Err(error) => {
                // If too many images cannot be read, the run's folder lists them.
                self.unreadable.met_in_training(self.session.unreadable(), self.observer, true);
                self.unreadable.write(self.setup, self.run)?;
                return Err(error);
            }
        };
        self.unsaved = true;
        let step = self.session.position.step;
        if let Some(what) = losses.non_finite() {
            if !self.setup.settings.skip_non_finite {
                self.log.sync()?;
                return Err(self.session.non_finite(self.device, &losses, self.setup, self.run)?);
            }
            self.observer.note(&format!("step {step}: the {what} is not finite; the step changed nothing"));
        }
        self.interval.add(&losses);
        let progress = self.interval.progress(&self.session, &mut self.pace, self.began.elapsed());
        self.observer.step(&progress);
        if step.is_multiple_of(self.log_every) || evaluating {
            self.log.append(&self.interval.row(&self.session, &progress))?;
            self.observer.logged(&progress);
            self.unreadable.met_in_training(self.session.unreadable(), self.observer, evaluating);
            self.interval = Interval::new(&self.session);
        }
        self.set_seconds();
        Ok(())
    }

    /// Writes the checkpoint that a resumed run continues from.
    fn save(&mut self) -> Result<(), TrainError> {
        self.log.sync()?;
        self.set_seconds();
        self.run.last().save(&self.session.checkpoint(self.setup))?;
        self.run.publish()?;
        (self.saved, self.unsaved) = (Instant::now(), false);
        Ok(())
    }

    fn finish(mut self, complete: bool) -> Result<Finished, TrainError> {
        if self.unsaved {
            self.save()?;
        }
        self.unreadable.met_in_training(self.session.unreadable(), self.observer, true);
        self.unreadable.write(self.setup, self.run)?;
        self.run.publish()?;
        let seconds = self.began.elapsed().as_secs_f64();
        Ok(Finished {
            complete,
            early: complete && self.session.position.step < self.session.steps,
            waiting: self.session.waiting.as_secs_f64() / seconds.max(1e-9),
            seconds,
            position: self.session.position,
        })
    }

    /// Whether the last step was taken, or evaluations stopped improving for longer than the recipe's patience.
    fn is_over(&self) -> bool {
        let patience = self.setup.recipe.patience;
        let stalled = patience > 0 && self.session.evaluations_without_improvement() >= patience;
        self.session.position.step >= self.session.steps || stalled
    }

    fn is_evaluated_after(&self, step: u64) -> bool {
        step.is_multiple_of(self.evaluate_every) || step == self.session.steps
    }

    /// Whether the session before this one ended within an evaluation, which is then repeated.
    fn evaluation_was_interrupted(&self) -> bool {
        let step = self.session.position.step;
        step > 0 && !self.session.is_evaluated() && self.is_evaluated_after(step)
    }

    fn set_seconds(&mut self) {
        self.session.position.seconds = self.seconds_before + self.began.elapsed().as_secs_f64();
    }
}

/// The training step of a run.
pub fn training_step(setup: &Setup, options: &TrainerOptions) -> Result<TrainingStep, StepError> {
    let how = StepOptions { recompute: options.recompute, ..setup.recipe.step_options() };
    TrainingStep::new(&setup.config.architecture, setup.recipe.batch, how)
}

/// The time that a run would take.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The time of one step.
    pub step: Duration,
    /// Steps in an epoch.
    pub steps_per_epoch: u64,
    /// Steps in all.
    pub steps: u64,
}

/// Estimates the time of a run by taking a few steps, which are discarded.
pub fn estimate(device: &dyn Device, setup: &mut Setup, options: &TrainerOptions) -> Result<Estimate, TrainError> {
    let mut session = Session::new(device, setup, None, options)?;
    let mut times = Vec::new();
    for _ in 0..session.steps.min(5) {
        let began = Instant::now();
        session.step(false)?;
        times.push(began.elapsed());
    }
    times.sort();
    Ok(Estimate {
        step: times.get(times.len() / 2).copied().unwrap_or_default(),
        steps_per_epoch: session.steps_per_epoch,
        steps: session.steps,
    })
}
