//! The result of a trained run: what it took, and how good its last weights are.

use std::collections::BTreeMap;

use vit_data::Samples;
use vit_data::loader::{Unreadable, UnreadableLimit};
use vit_graph::cost::Cost;
use vit_graph::device::Device;
use vit_models::{Mode, ProblemType};

use super::{BegunRun, PretrainingCost, Stage, Study, StudyProbe, StudyResult, StudyRun};
use crate::error::TrainError;
use crate::evaluate::probe::{NearestNeighbours, ProbeOptions, probe};
use crate::evaluate::{EvaluationOptions, evaluate, evaluation_batch};
use crate::run::folder::columns;
use crate::run::saving::Snapshot;
use crate::run::trainer::{Finished, TrainerOptions, training_step};

/// What the last weights scored on test images; `None` where logits or scores are not finite.
struct Tested {
    score: Option<f64>,
    loss: Option<f64>,
    images: usize,
}

impl Study {
    /// Measures the last weights of a trained run on the test images, and writes its result.
    pub fn finish(
        &self,
        run: &StudyRun,
        begun: &BegunRun,
        finished: &Finished,
        device: &dyn Device,
        options: &TrainerOptions,
    ) -> Result<StudyResult, TrainError> {
        let position = &finished.position;
        let rows = begun.folder.rows()?;
        let last = |column: &str| {
            let mut values =
                rows.iter().rev().filter(|row| row.step == position.step).filter_map(|row| row.get(column));
            values.next().filter(|value| value.is_finite())
        };
        let metric = match begun.setup.config.problem_type {
            _ if begun.setup.recipe.is_pretraining() => columns::VAL_NEIGHBOURS,
            ProblemType::SingleLabel => columns::VAL_TOP1,
            ProblemType::MultiLabel => columns::VAL_MAP,
        };
        let mut result = self.unmeasured(run, begun, options, position.step)?;
        result.seconds = position.seconds;
        result.seen = position.images;
        result.metric = metric.into();
        result.validation = last(metric);
        if run.stage == Stage::Training {
            let tested = self.test(run, begun, device, options)?.unwrap_or_else(|| Tested {
                score: result.validation,
                loss: last(columns::VAL_LOSS),
                images: begun.setup.validation.as_ref().map_or(0, |held_out| held_out.len()),
            });
            (result.score, result.loss, result.test_images) = (tested.score, tested.loss, tested.images);
            if result.score.is_none() {
                return self.diverged(run, begun, options, position.step);
            }
        }
        if let Some(pretraining) = self.pretraining_of(run) {
            result.few_shot = self.result(pretraining)?.map(|result| result.few_shot).unwrap_or_default();
        } else if let Some(how) = &self.file.probe {
            let (few_shot, images) = self.few_shot(run, begun, how, device, options)?;
            (result.few_shot, result.test_images) = (few_shot, result.test_images.max(images));
        }
        result.write(&run.folder)?;
        Ok(result)
    }

    /// Measures the last weights on the test images; `None` if these are the images that were held out of training.
    fn test(
        &self,
        run: &StudyRun,
        begun: &BegunRun,
        device: &dyn Device,
        options: &TrainerOptions,
    ) -> Result<Option<Tested>, TrainError> {
        let data = &self.grid.data[run.data_index];
        let Some(test) = data.test_samples(&begun.setup.config.labels)? else { return Ok(None) };
        let (batch, threads) = (evaluation_batch(&begun.setup.recipe), options.threads);
        let how = EvaluationOptions { batch, threads, worst: 0 };
        let Snapshot { config, mut weights, .. } = begun.folder.last().open()?.snapshot;
        let outcome = evaluate(device, &config, &mut weights, test.as_ref(), &how, |_, _| true)?;
        let outcome = outcome.filter(|outcome| outcome.non_finite.is_empty());
        let Some(outcome) = outcome else { return Ok(Some(Tested { score: None, loss: None, images: 0 })) };
        let limit = UnreadableLimit { share: run.settings.max_unreadable, ..UnreadableLimit::default() };
        if limit.is_exceeded(outcome.unreadable.len(), test.len()) {
            let Unreadable { name, reason, .. } = &outcome.unreadable[0];
            return Err(TrainError::Unsuitable(format!(
                "{} of the {} test images cannot be read, such as {name} ({reason})",
                outcome.unreadable.len(),
                test.len()
            )));
        }
        Ok(Some(Tested {
            score: Some(outcome.evaluation.score().1).filter(|score| score.is_finite()),
            loss: Some(outcome.evaluation.loss()).filter(|loss| loss.is_finite()),
            images: outcome.evaluation.samples(),
        }))
    }

    /// Few-shot accuracies with the features of the last weights, and the number of test images.
    fn few_shot(
        &self,
        run: &StudyRun,
        begun: &BegunRun,
        how: &StudyProbe,
        device: &dyn Device,
        options: &TrainerOptions,
    ) -> Result<(BTreeMap<usize, f64>, usize), TrainError> {
        let images = self.grid.data[run.data_index].probe_images(how.shots.iter().copied().max().unwrap_or(1))?;
        let how = ProbeOptions {
            batch: evaluation_batch(&begun.setup.recipe),
            threads: options.threads,
            shots: how.shots.clone(),
            draws: how.draws.max(1),
            seed: 0,
            nearest: NearestNeighbours::default(),
        };
        let Snapshot { config, mut weights, .. } = begun.folder.last().open()?.snapshot;
        let outcome = probe(device, &config, &mut weights, &images, &how, |_, _| true)?;
        let Some(outcome) = outcome else { return Ok(Default::default()) };
        let measured = outcome.few_shot.iter().filter(|few| few.l2.is_some());
        Ok((measured.map(|few| (few.shots, few.mean())).collect(), outcome.test))
    }

    /// Writes the result of a run whose loss was not finite after this step.
    pub fn diverged(
        &self,
        run: &StudyRun,
        begun: &BegunRun,
        options: &TrainerOptions,
        step: u64,
    ) -> Result<StudyResult, TrainError> {
        let result = StudyResult { diverged: true, ..self.unmeasured(run, begun, options, step)? };
        result.write(&run.folder)?;
        Ok(result)
    }

    /// The result of a run without its scores.
    fn unmeasured(
        &self,
        run: &StudyRun,
        begun: &BegunRun,
        options: &TrainerOptions,
        steps: u64,
    ) -> Result<StudyResult, TrainError> {
        let setup = &begun.setup;
        let graph = setup.config.architecture.build(1, Mode::Inference)?;
        let step = Cost::of(&training_step(setup, options)?.graph).flops() as f64;
        let pretraining = self.pretraining_of(run).map(|run| self.result(run)).transpose()?.flatten();
        Ok(StudyResult {
            run: run.name.clone(),
            stage: run.stage,
            model: run.model.clone(),
            family: run.family.clone(),
            teacher: run.teacher.clone(),
            parameters: Cost::of(&graph).parameters(),
            seed: run.seed,
            fraction: run.settings.fraction,
            images: setup.data_report.samples.train,
            steps,
            seen: steps * setup.recipe.batch as u64,
            flops: step * steps as f64,
            seconds: 0.0,
            pretraining: pretraining.map(|before| PretrainingCost {
                images: before.images,
                seen: before.seen,
                flops: before.flops,
                seconds: before.seconds,
            }),
            metric: columns::VAL_TOP1.into(),
            validation: None,
            score: None,
            loss: None,
            test_images: 0,
            few_shot: Default::default(),
            diverged: false,
        })
    }
}
