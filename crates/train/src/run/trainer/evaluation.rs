//! Evaluation between steps: the model's metrics, the best checkpoint, the curves.

use std::path::Path;
use std::sync::atomic::Ordering;

use vit_data::Samples;
use vit_data::loader::{Unreadable, UnreadableLimit};

use super::Trainer;
use super::record::Record;
use crate::error::TrainError;
use crate::evaluate::evaluator::{Evaluated, EvaluationEffort};
use crate::evaluate::{EvaluationOutcome, TaskEvaluation};
use crate::plots;
use crate::run::folder::{MetricsRow, columns};
use crate::run::saving::Best;
use crate::run::setup::Setup;

impl Trainer<'_> {
    /// Evaluates the model, logs its metrics, keeps it if it is the best so far, and draws the curves. `false` if it was
    /// interrupted: a resumed run repeats the evaluation.
    pub(super) fn evaluate(&mut self) -> Result<bool, TrainError> {
        let Trainer { setup, stop, options, .. } = *self;
        self.gather_unreadable()?;
        if let (Some(validation), Some(evaluator)) = (&setup.validation, &mut self.evaluator) {
            self.session.set_parameters_of(evaluator)?;
            let progress = |done, total| {
                self.record.iter_mut().for_each(|record| record.observer.evaluating(done, total));
                !stop.load(Ordering::Relaxed)
            };
            let effort = EvaluationEffort { threads: options.threads, worst: 0, processes: &options.processes };
            let outcome = match evaluator.run(validation.as_ref(), &effort, progress)? {
                Evaluated::Interrupted => return Ok(false),
                Evaluated::Elsewhere => None,
                Evaluated::Here(outcome) => Some(outcome),
            };
            let better = outcome.as_ref().map(|outcome| self.conclude(outcome, validation.len())).transpose()?;
            // Of all processes, since each may have slices of the model.
            let better = options.processes.of_root(better.unwrap_or(false))?;
            if better {
                self.save_best()?;
            }
            if let (Some(outcome), Some(record)) = (&outcome, &mut self.record) {
                self.session.set_improved(better);
                record.observer.evaluated(self.session.position.step, outcome, better);
            }
            self.session.share_position()?;
        }
        self.session.set_evaluated();
        if let Some(Record { run, .. }) = &self.record {
            let scene = plots::curves(&title(setup), &run.rows()?);
            if let Ok(png) = scene.png(2.0) {
                run.write_curves(&scene.svg(), &png)?;
            }
        }
        Ok(true)
    }

    /// Logs an evaluation, unless too many of its images could not be read. Whether the model is the best so far.
    fn conclude(&mut self, outcome: &EvaluationOutcome, images: usize) -> Result<bool, TrainError> {
        let Some(Record { run, observer, unreadable, .. }) = &mut self.record else { return Ok(false) };
        unreadable.met_in_validation(&outcome.unreadable, *observer);
        let limit = UnreadableLimit { share: self.setup.settings.max_unreadable, ..UnreadableLimit::default() };
        if limit.is_exceeded(outcome.unreadable.len(), images) {
            unreadable.write(self.setup, run)?;
            // Slices of other processes are not at hand here.
            if self.session.has_all_state() {
                self.save()?;
            }
            return Err(too_many(&outcome.unreadable, images, limit.share));
        }
        self.log_evaluation(outcome)
    }

    /// Saves the model as the best: rank 0 does, and the others send it their slices.
    fn save_best(&mut self) -> Result<(), TrainError> {
        match &self.record {
            Some(record) => record.run.best().save(&self.session.best_snapshot(self.setup)?)?,
            None if self.session.has_all_state() => {}
            None => drop(self.session.best_snapshot(self.setup)?),
        }
        Ok(())
    }

    /// Logs an evaluation. Whether the model is the best so far.
    fn log_evaluation(&mut self, outcome: &EvaluationOutcome) -> Result<bool, TrainError> {
        let (session, Some(record)) = (&mut self.session, &mut self.record) else { return Ok(false) };
        let step = session.position.step;
        let ((metric, value), loss) = (outcome.evaluation.score(), outcome.evaluation.loss());
        let flaw = flaw(outcome, metric, value);
        let best = session.position.best.as_ref().filter(|best| best.metric == metric);
        let better = flaw.is_none() && best.is_none_or(|best| best.is_beaten_by(value, loss));
        if let Some(why) = flaw {
            record.observer.note(&format!("step {step}: {why}; this model is not kept as the best"));
        }
        let epoch = step as f64 / session.steps_per_epoch as f64;
        record.append(&measurements(MetricsRow::new(step).epoch(epoch), &outcome.evaluation))?;
        if better {
            session.position.best = Some(Best { metric: metric.into(), value, loss: Some(loss), step });
        }
        Ok(better)
    }
}

fn too_many(unreadable: &[Unreadable], of: usize, limit: f64) -> TrainError {
    let example = |one: &Unreadable| format!("{} ({})", one.name, one.reason);
    let examples: Vec<String> = unreadable.iter().take(3).map(example).collect();
    TrainError::UnreadableValidation { found: unreadable.len(), of, limit, examples: examples.join(", ") }
}

/// Why an evaluated model cannot be the best: its logits or its score are not finite.
fn flaw(outcome: &EvaluationOutcome, metric: &str, value: f64) -> Option<String> {
    match outcome.non_finite.as_slice() {
        [] if value.is_finite() => None,
        [] => Some(format!("{metric} cannot be computed, since no validation image that could be read has a label")),
        [first, ..] => {
            let (count, all) = (outcome.non_finite.len(), outcome.evaluation.samples());
            Some(format!("the logits of {count} of {all} validation images are NaN or infinite, first of {first}"))
        }
    }
}

/// The title of a run's curves.
fn title(setup: &Setup) -> String {
    let data = setup.settings.data.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let model = Path::new(&setup.settings.model);
    // Of a checkpoint's path only the last component; a name such as B/16 is not a path.
    let model = model.file_name().filter(|_| model.is_absolute()).unwrap_or(model.as_os_str());
    format!("{} on {data}", model.to_string_lossy())
}

/// The metrics of an evaluation as columns.
fn measurements(row: MetricsRow, evaluation: &TaskEvaluation) -> MetricsRow {
    match evaluation {
        TaskEvaluation::Single(evaluation) => {
            let m = evaluation.metrics();
            row.with(columns::VAL_LOSS, m.loss)
                .with(columns::VAL_TOP1, m.top1)
                .with(columns::VAL_TOP5, m.top5)
                .with("val/macro_f1", m.macro_f1)
                .with("val/ece", m.ece)
        }
        TaskEvaluation::Pairs(evaluation) => {
            let m = evaluation.metrics();
            row.with(columns::VAL_LOSS, m.loss)
                .with(columns::VAL_R1, m.r1())
                .with(columns::VAL_IMAGE_TO_TEXT, m.image_to_text_r1)
                .with("val/image_to_text_r5", m.image_to_text_r5)
                .with(columns::VAL_TEXT_TO_IMAGE, m.text_to_image_r1)
                .with("val/text_to_image_r5", m.text_to_image_r5)
        }
        TaskEvaluation::Neighbours(evaluation) => row.with(columns::VAL_NEIGHBOURS, evaluation.metrics().top1),
        TaskEvaluation::Multi(evaluation) => {
            let m = evaluation.metrics();
            row.with(columns::VAL_LOSS, m.loss)
                .with(columns::VAL_MAP, m.mean_average_precision)
                .with("val/micro_f1", m.micro_f1)
                .with("val/macro_f1", m.macro_f1)
        }
    }
}
