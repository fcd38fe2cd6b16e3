//! The training loop: steps, evaluations, checkpoints. Its result depends on the setup alone, to the bit: interruptions,
//! the numbers of processes and threads and the time that steps take do not change it.

mod algorithms;
mod data_report;
mod evaluation;
mod first_parameters;
mod interval;
mod non_finite;
mod observer;
mod read_back;
mod record;
mod session;

pub use observer::Observer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vit_graph::device::Device;
use vit_models::Config;

use crate::error::TrainError;
use crate::evaluate::evaluator::Evaluator;
use crate::processes::Processes;
use crate::recipe::Recipe;
use crate::run::folder::RunFolder;
use crate::run::progress::Pace;
use crate::run::saving::{RunPosition, Snapshot};
use crate::run::setup::Setup;
use crate::step::sharding::{ShardedState, Sharding};
use crate::step::{StepError, StepOptions, TrainingStep};
use interval::Interval;
use record::Record;
use session::{Requests, Session};

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
    /// The processes that train together; the device must have their exchange.
    pub processes: Processes,
    /// The state that these divide among them.
    pub sharded: ShardedState,
}

impl TrainerOptions {
    /// The step that this process takes.
    pub(crate) fn step_options(&self, recipe: &Recipe, config: &Config) -> StepOptions {
        let (rank, processes) = (self.processes.rank(), self.processes.size());
        let sharding = Sharding { parameters: self.sharded == ShardedState::All, rank, processes };
        StepOptions {
            parts: self.processes.parts(recipe.parts),
            exchange: processes > 1,
            sharding: (processes > 1 && self.sharded != ShardedState::None).then_some(sharding),
            recompute: self.recompute,
            ..recipe.step_for(config)
        }
    }
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

/// Trains to the end of the recipe, or until `stop` is set, and saves. Of several processes, rank 0 calls it and the others
/// call [`assist`].
pub fn train(
    device: &dyn Device,
    setup: &mut Setup,
    run: &RunFolder,
    from: Option<Snapshot>,
    options: &TrainerOptions,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Finished, TrainError> {
    carry_out(device, setup, Some((run, observer)), from, options, stop)
}

/// Takes part in a run whose folder rank 0 has. Setup and snapshot are those of rank 0; if `stop` is set, all processes
/// stop and rank 0 saves.
pub fn assist(
    device: &dyn Device,
    setup: &mut Setup,
    from: Option<Snapshot>,
    options: &TrainerOptions,
    stop: &AtomicBool,
) -> Result<Finished, TrainError> {
    carry_out(device, setup, None, from, options, stop)
}

fn carry_out<'a>(
    device: &'a dyn Device,
    setup: &'a mut Setup,
    output: Option<(&'a RunFolder, &'a mut dyn Observer)>,
    from: Option<Snapshot>,
    options: &'a TrainerOptions,
    stop: &'a AtomicBool,
) -> Result<Finished, TrainError> {
    let finished = Trainer::new(device, setup, output, from, options, stop).and_then(|mut trainer| {
        let complete = trainer.train()?;
        trainer.finish(complete)
    });
    if let Err(error) = &finished
        && !error.is_of_another_process()
    {
        options.processes.fail(&error.to_string());
    }
    finished
}

struct Trainer<'a> {
    device: &'a dyn Device,
    setup: &'a Setup,
    options: &'a TrainerOptions,
    stop: &'a AtomicBool,
    session: Session,
    /// Compiled with the step, so that a run whose evaluation does not fit into memory fails before its first step.
    evaluator: Option<Evaluator>,
    /// Of rank 0.
    record: Option<Record<'a>>,
    pace: Pace,
    interval: Interval,
    /// Steps between two evaluations.
    evaluate_every: u64,
    /// Steps between two rows of the metrics.
    log_every: u64,
    /// The steps after which the processes stop and save, if they have agreed on it.
    stop_after: Option<u64>,
    save_after: Option<u64>,
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
        output: Option<(&'a RunFolder, &'a mut dyn Observer)>,
        from: Option<Snapshot>,
        options: &'a TrainerOptions,
        stop: &'a AtomicBool,
    ) -> Result<Trainer<'a>, TrainError> {
        let (began, processes) = (Instant::now(), &options.processes);
        let step = from.as_ref().map(|snapshot| snapshot.position.step);
        setup.ensure_same(processes, step)?;
        let mut record = output.map(|(run, observer)| Record::new(run, observer, step)).transpose()?;
        let seconds_before = from.as_ref().map_or(0.0, |snapshot| snapshot.position.seconds);
        let (session, evaluator) = algorithms::shared(device, processes, record.as_mut(), || {
            let session = Session::new(device, setup, from, options)?;
            let evaluator = session.evaluator(device, setup)?;
            Ok((session, evaluator))
        })?;
        if let Some(record) = &record {
            setup.record_samples(record.run)?;
        }
        // Rank 0 replaces the checkpoint that the others have read by now.
        processes.barrier()?;
        let setup = &*setup;
        let mut trainer = Trainer {
            pace: Pace::new(session.position.step, session.steps),
            interval: Interval::new(&session),
            evaluate_every: setup.recipe.evaluate_every.steps(session.steps_per_epoch, session.steps).max(1),
            log_every: (session.steps_per_epoch / 10).clamp(1, 50),
            stop_after: None,
            save_after: None,
            saved: Instant::now(),
            unsaved: false,
            device,
            setup,
            options,
            stop,
            session,
            evaluator,
            record,
            began,
            seconds_before,
        };
        let (step, is_over, steps) = (trainer.session.position.step, trainer.is_over(), trainer.session.steps);
        if let Some(record) = &mut trainer.record {
            match step {
                0 => record.unreadable.write(setup, record.run)?,
                _ => record.observer.note(&match is_over {
                    true => format!("this run is finished: its last step was {step} of {steps}"),
                    false => format!("going on after step {step} of {steps}"),
                }),
            }
        }
        if step == 0 {
            // A run that is killed before its first save can be resumed, too.
            trainer.save()?;
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
            let (alone, next) = (self.options.processes.size() == 1, self.session.position.step + 1);
            let stopping = if alone { self.stop.load(Ordering::Relaxed) } else { self.stop_after.is_some() };
            let may_stop = if alone { !self.session.is_ahead() } else { self.stop_after.is_some_and(|at| at < next) };
            if stopping && may_stop {
                return Ok(false);
            }
            let evaluating = self.is_evaluated_after(next);
            let save_due = self.record.is_some() && self.saved.elapsed() >= self.options.save_every;
            self.session.requests = Requests { stop: self.stop.load(Ordering::Relaxed), save: save_due && !alone };
            let saving = evaluating || if alone { save_due } else { self.save_after == Some(next) };
            // What is read after this step must not be changed by the next one.
            self.step(!saving && !stopping, evaluating)?;
            let paused = Instant::now();
            if evaluating {
                if !self.evaluate()? {
                    return Ok(false);
                }
                if let Some(record) = &self.record {
                    record.unreadable.write(self.setup, record.run)?;
                }
            }
            if saving || self.save_after == Some(next) {
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
                if let Some(record) = &mut self.record {
                    record.met_in_training(self.session.unreadable(), true);
                    record.unreadable.write(self.setup, record.run)?;
                }
                return Err(error);
            }
        };
        self.unsaved = true;
        let step = self.session.position.step;
        let Requests { stop, save } = losses.requests;
        self.stop_after = self.stop_after.or(stop.then(|| self.session.latest_started(step)));
        self.save_after = if save { Some(self.session.latest_started(step)) } else { self.save_after };
        if let Some(what) = losses.non_finite() {
            if !self.setup.settings.skip_non_finite {
                if let Some(record) = &mut self.record {
                    record.log.sync()?;
                }
                return Err(self.non_finite(&losses)?);
            }
            if let Some(record) = &mut self.record {
                record.observer.note(&format!("step {step}: the {what} is not finite; the step changed nothing"));
            }
        }
        self.interval.add(&losses);
        let progress = self.interval.progress(&self.session, &mut self.pace, self.began.elapsed());
        if let Some(record) = &mut self.record {
            record.observer.step(&progress);
        }
        if step.is_multiple_of(self.log_every) || evaluating {
            if let Some(record) = &mut self.record {
                record.append(&self.interval.row(&self.session, &progress))?;
                record.observer.logged(&progress);
                record.met_in_training(self.session.unreadable(), evaluating);
            }
            self.interval = Interval::new(&self.session);
        }
        self.set_seconds();
        Ok(())
    }

    /// Writes the checkpoint that a resumed run continues from: rank 0 does, and the others send it their slices.
    fn save(&mut self) -> Result<(), TrainError> {
        self.set_seconds();
        match &mut self.record {
            Some(record) => {
                record.log.sync()?;
                record.run.last().save(&self.session.checkpoint(self.setup))?;
                record.run.publish()?;
            }
            None => self.session.contribute_to_checkpoint()?,
        }
        (self.saved, self.unsaved) = (Instant::now(), false);
        Ok(())
    }

    fn finish(mut self, complete: bool) -> Result<Finished, TrainError> {
        if self.unsaved {
            self.save()?;
        }
        self.gather_unreadable()?;
        if let Some(record) = &self.record {
            record.unreadable.write(self.setup, record.run)?;
            record.run.publish()?;
        }
        // No process ends while another may still need it.
        self.options.processes.barrier()?;
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
    TrainingStep::new(
        &setup.config.architecture,
        setup.recipe.batch,
        options.step_options(&setup.recipe, &setup.config),
    )
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
    device.connect()?;
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
