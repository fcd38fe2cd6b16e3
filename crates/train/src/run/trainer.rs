//! The loop: batches in, steps, measurements, checkpoints. What it computes depends on the setup alone; how long a step
//! took, when it was interrupted and how many threads there were changes nothing about the weights.

mod algorithms;
mod data_report;
mod observer;
mod session;

pub use observer::Observer;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vit_data::Samples;
use vit_data::loader::UnreadableLimit;
use vit_graph::device::Device;

use crate::error::TrainError;
use crate::evaluate::{Measured, Outcome, evaluate};
use crate::plots;
use crate::run::folder::{MetricsLog, Row, RunFolder, columns};
use crate::run::saving::{Best, Position, Snapshot};
use crate::run::setup::Setup;
use crate::step::{StepError, StepOptions, TrainingStep};
use crate::{Pace, Progress};
use algorithms::KeptAlgorithms;
use data_report::UnreadableImages;
use session::Session;

/// How a run is carried out; nothing here changes its result.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerOptions {
    /// Threads that prepare pictures.
    pub threads: usize,
    /// Bytes of decoded pictures that are kept in memory.
    pub cache_bytes: u64,
    /// The longest time between two saves.
    pub save_every: Duration,
    /// Compute activations again in the backward pass instead of keeping them.
    pub recompute: bool,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Whether it came to its end; otherwise it was asked to stop, and can be resumed.
    pub complete: bool,
    /// Whether it ended before the recipe's length, since evaluations no longer improved.
    pub early: bool,
    /// Where it stopped.
    pub position: Position,
    /// The share of the time in which steps waited for data.
    pub waiting: f64,
    /// Seconds of this session.
    pub seconds: f64,
}

/// Trains until the end of the recipe, or until `stop` is set, then saves.
pub fn train(
    device: &dyn Device,
    setup: &mut Setup,
    run: &RunFolder,
    from: Option<Snapshot>,
    options: &TrainerOptions,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Finished, TrainError> {
    let began = Instant::now();
    let mut log = match &from {
        Some(snapshot) => MetricsLog::resume(run, snapshot.position.step)?,
        None => MetricsLog::create(run)?,
    };
    let seconds_before = from.as_ref().map_or(0.0, |s| s.position.seconds);
    let mut algorithms = KeptAlgorithms::restore(device, run, observer)?;
    let mut session = Session::new(device, setup, from, options)?;
    algorithms.keep(device, run)?;
    setup.record_samples(run)?;
    let setup = &*setup;
    let mut unreadable = UnreadableImages::of(run);
    if session.position.step == 0 {
        // From the first moment on there is something to resume.
        run.last().save(&session.snapshot(setup)?)?;
        unreadable.write(setup, run)?;
    }
    let steps = session.steps;
    let evaluate_every = setup.recipe.evaluate_every.steps(session.steps_per_epoch, steps).max(1);
    let log_every = (session.steps_per_epoch / 10).clamp(1, 50);
    let mut pace = Pace::new(session.position.step, steps);
    let is_over = |session: &Session| session.position.step >= steps || is_stalled(session, setup);
    if session.position.step > 0 {
        let step = session.position.step;
        observer.note(&match is_over(&session) {
            true => format!("this run is finished: its last step was {step} of {steps}"),
            false => format!("going on after step {step} of {steps}"),
        });
    }
    let (mut saved, mut unsaved) = (Instant::now(), false);
    let mut complete = true;
    let at = Surroundings { device, setup, run, options, stop };

    // A measurement that was interrupted is made again.
    let unmeasured = session.position.step > 0 && !session.measured();
    if unmeasured && is_due(session.position.step, evaluate_every, steps) {
        complete = measure(at, &mut session, &mut log, &mut algorithms, &mut unreadable, observer)?;
        unsaved = true;
    }
    let mut interval = Interval::new(&session);
    while complete && !is_over(&session) {
        let stopping = stop.load(Ordering::Relaxed);
        if stopping && !session.is_ahead() {
            complete = false;
            break;
        }
        let due = is_due(session.position.step + 1, evaluate_every, steps);
        let saving = due || saved.elapsed() >= options.save_every;
        let losses = match session.step(!saving && !stopping) {
            Ok(losses) => losses,
            Err(error) => {
                // Where too many images cannot be read, the run's folder says which.
                unreadable.met_in_training(session.unreadable(), observer, true);
                unreadable.write(setup, run)?;
                return Err(error);
            }
        };
        unsaved = true;
        let step = session.position.step;
        if let Some(what) = losses.non_finite() {
            if !setup.settings.skip_non_finite {
                log.sync()?;
                return Err(session.non_finite(device, &losses, setup, run)?);
            }
            observer.note(&format!("step {step}: the {what} is not finite; the step changed nothing"));
        }
        interval.add(&losses);
        let progress = interval.progress(&session, &mut pace, began.elapsed());
        observer.step(&progress);
        if step.is_multiple_of(log_every) || due {
            let row = interval.row(&session, &progress);
            log.append(&row)?;
            observer.logged(&progress);
            unreadable.met_in_training(session.unreadable(), observer, due);
            interval = Interval::new(&session);
        }
        session.position.seconds = seconds_before + began.elapsed().as_secs_f64();
        let paused = Instant::now();
        if due {
            if !measure(at, &mut session, &mut log, &mut algorithms, &mut unreadable, observer)? {
                complete = false;
                break;
            }
            unreadable.write(setup, run)?;
        }
        if saving {
            log.sync()?;
            session.position.seconds = seconds_before + began.elapsed().as_secs_f64();
            run.last().save(&session.snapshot(setup)?)?;
            (saved, unsaved) = (Instant::now(), false);
        }
        interval.exclude(paused.elapsed());
    }
    if unsaved {
        session.position.seconds = seconds_before + began.elapsed().as_secs_f64();
        log.sync()?;
        run.last().save(&session.snapshot(setup)?)?;
    }
    unreadable.met_in_training(session.unreadable(), observer, true);
    unreadable.write(setup, run)?;
    Ok(Finished {
        complete,
        early: complete && session.position.step < steps,
        waiting: session.waiting.as_secs_f64() / began.elapsed().as_secs_f64().max(1e-9),
        seconds: began.elapsed().as_secs_f64(),
        position: session.position,
    })
}

/// Whether the recipe's patience with evaluations that bring no improvement is over.
fn is_stalled(session: &Session, setup: &Setup) -> bool {
    let patience = setup.recipe.patience;
    patience > 0 && session.evaluations_without_improvement() >= patience
}

/// Whether the model is measured after this step.
fn is_due(step: u64, every: u64, steps: u64) -> bool {
    step.is_multiple_of(every) || step == steps
}

/// A run's step, from whose graph a device tells what it needs.
pub fn training_step(setup: &Setup, options: &TrainerOptions) -> Result<TrainingStep, StepError> {
    let how = StepOptions { recompute: options.recompute, ..setup.recipe.step_options() };
    TrainingStep::new(&setup.config.architecture, setup.recipe.batch, how)
}

/// What a run would take.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The time of one step.
    pub step: Duration,
    /// Steps in an epoch.
    pub steps_per_epoch: u64,
    /// Steps in all.
    pub steps: u64,
}

/// Takes a few steps to see what a run would take; nothing is kept.
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

/// What stays the same throughout a session.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    device: &'a dyn Device,
    setup: &'a Setup,
    run: &'a RunFolder,
    options: &'a TrainerOptions,
    stop: &'a AtomicBool,
}

/// Evaluates, logs, keeps the model if it is the best so far, and draws the curves. `false` if it was asked to stop: the
/// measurement is made again when the run is resumed.
fn measure(
    Surroundings { device, setup, run, options, stop }: Surroundings,
    session: &mut Session,
    log: &mut MetricsLog,
    algorithms: &mut KeptAlgorithms,
    unreadable: &mut UnreadableImages,
    observer: &mut dyn Observer,
) -> Result<bool, TrainError> {
    let step = session.position.step;
    if let Some(validation) = &setup.validation {
        let how = session.evaluation_options(setup, options);
        let mut weights = session.evaluated_weights()?;
        let mut watch = |done, total| {
            observer.evaluating(done, total);
            !stop.load(Ordering::Relaxed)
        };
        let Some(outcome) = evaluate(device, &setup.config, &mut weights, validation.as_ref(), &how, &mut watch)?
        else {
            return Ok(false);
        };
        algorithms.keep(device, run)?;
        unreadable.met_in_validation(&outcome.unreadable, observer);
        let limit = UnreadableLimit { share: setup.settings.max_unreadable, ..UnreadableLimit::default() };
        if limit.is_exceeded(outcome.unreadable.len(), validation.len()) {
            unreadable.write(setup, run)?;
            // The measurement is made again when the run goes on.
            log.sync()?;
            run.last().save(&session.snapshot(setup)?)?;
            return Err(too_many(&outcome.unreadable, validation.len(), limit.share));
        }
        let ((metric, value), loss) = (outcome.measured.score(), outcome.measured.loss());
        let flaw = flaw(&outcome, metric, value);
        let best = session.position.best.as_ref().filter(|best| best.metric == metric);
        let better = flaw.is_none() && best.is_none_or(|best| best.is_beaten_by(value, loss));
        if let Some(why) = flaw {
            observer.note(&format!("step {step}: {why}; this model is not kept as the best"));
        }
        let epoch = step as f64 / session.steps_per_epoch as f64;
        log.append(&measurements(Row::new(step).epoch(epoch), &outcome.measured))?;
        if better {
            session.position.best = Some(Best { metric: metric.into(), value, loss: Some(loss), step });
            run.best().save(&session.best_snapshot(setup)?)?;
        }
        session.set_improved(better);
        observer.evaluated(step, &outcome, better);
    }
    session.set_measured();
    let rows = run.rows()?;
    let scene = plots::curves(&title(setup), &rows);
    if let Ok(png) = scene.png(2.0) {
        run.write_curves(&scene.svg(), &png)?;
    }
    Ok(true)
}

fn too_many(unreadable: &[(String, String)], of: usize, limit: f64) -> TrainError {
    let examples: Vec<String> = unreadable.iter().take(3).map(|(name, why)| format!("{name} ({why})")).collect();
    TrainError::UnreadableValidation { found: unreadable.len(), of, limit, examples: examples.join(", ") }
}

/// Why a measurement cannot make its model the best: something in it is not finite.
fn flaw(outcome: &Outcome, metric: &str, value: f64) -> Option<String> {
    match outcome.non_finite.as_slice() {
        [] if value.is_finite() => None,
        [] => Some(format!("{metric} cannot be computed, since no validation image that could be read has a label")),
        [first, ..] => {
            let (count, all) = (outcome.non_finite.len(), outcome.measured.samples());
            Some(format!("the logits of {count} of {all} validation images are NaN or infinite, first of {first}"))
        }
    }
}

/// What a run's curves are called.
fn title(setup: &Setup) -> String {
    let data = setup.settings.data.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let model = Path::new(&setup.settings.model);
    // A checkpoint's whole path would fill the title; a name such as B/16 is no path.
    let model = model.file_name().filter(|_| model.is_absolute()).unwrap_or(model.as_os_str());
    format!("{} on {data}", model.to_string_lossy())
}

/// The measurements of an evaluation as columns.
fn measurements(row: Row, measured: &Measured) -> Row {
    match measured {
        Measured::Single(evaluation) => {
            let m = evaluation.measures();
            row.with(columns::VAL_LOSS, m.loss)
                .with(columns::VAL_TOP1, m.top1)
                .with(columns::VAL_TOP5, m.top5)
                .with("val/macro_f1", m.macro_f1)
                .with("val/ece", m.ece)
        }
        Measured::Multi(evaluation) => {
            let m = evaluation.measures();
            row.with(columns::VAL_LOSS, m.loss)
                .with(columns::VAL_MAP, m.mean_average_precision)
                .with("val/micro_f1", m.micro_f1)
                .with("val/macro_f1", m.macro_f1)
        }
    }
}

/// What happened since the last logged step.
struct Interval {
    began: Instant,
    excluded: Duration,
    images: u64,
    waited: Duration,
    loss: f64,
    grad_norm: f64,
    steps: u32,
}

impl Interval {
    fn new(session: &Session) -> Interval {
        Interval::at(Instant::now(), session.position.images, session.waiting)
    }

    fn at(began: Instant, images: u64, waited: Duration) -> Interval {
        Interval { began, excluded: Duration::ZERO, images, waited, loss: 0.0, grad_norm: 0.0, steps: 0 }
    }

    /// Leaves time out that no step took, such as that of an evaluation.
    fn exclude(&mut self, time: Duration) {
        self.excluded += time;
    }

    fn seconds(&self, now: Instant) -> f64 {
        (now - self.began).saturating_sub(self.excluded).as_secs_f64().max(1e-9)
    }

    fn add(&mut self, losses: &session::Losses) {
        if losses.non_finite().is_none() {
            self.loss += losses.loss;
            self.grad_norm += losses.grad_norm;
            self.steps += 1;
        }
    }

    fn progress(&self, session: &Session, pace: &mut Pace, elapsed: Duration) -> Progress {
        let seconds = self.seconds(Instant::now());
        let (step, per_epoch) = (session.position.step, session.steps_per_epoch);
        Progress {
            epoch: step.saturating_sub(1) / per_epoch + 1,
            epochs: session.steps.div_ceil(per_epoch),
            step,
            steps: session.steps,
            steps_per_epoch: per_epoch,
            loss: (self.steps > 0).then(|| self.loss / f64::from(self.steps)),
            rate: session.rate(),
            images_per_second: Some((session.position.images - self.images) as f64 / seconds),
            waiting: (session.waiting.saturating_sub(self.waited)).as_secs_f64() / seconds,
            memory: Some(session.memory_bytes()),
            elapsed,
            remaining: pace.observe(step, elapsed),
        }
    }

    fn row(&self, session: &Session, progress: &Progress) -> Row {
        let epoch = progress.step as f64 / session.steps_per_epoch as f64;
        let mut row = Row::new(progress.step).epoch(epoch).with(columns::RATE, progress.rate);
        if self.steps > 0 {
            let mean = |sum: f64| sum / f64::from(self.steps);
            row = row.with(columns::TRAIN_LOSS, mean(self.loss)).with("train/grad_norm", mean(self.grad_norm));
        }
        row.with(columns::IMAGES_PER_SECOND, progress.images_per_second.unwrap_or(0.0))
            .with("train/waiting", progress.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_evaluation_is_not_part_of_the_speed() {
        let began = Instant::now();
        let mut interval = Interval::at(began, 0, Duration::ZERO);
        interval.exclude(Duration::from_secs(3590));
        assert_eq!(interval.seconds(began + Duration::from_secs(3600)), 10.0);
    }
}
