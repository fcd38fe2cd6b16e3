//! A model compiled for evaluation. It stays compiled while a run trains: each evaluation only replaces its parameters.

use std::ops::ControlFlow;

use vit_data::loader::Unreadable;
use vit_data::{ApplyPreprocess, Pipeline, Preprocess, PreprocessError, Samples};
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Device, Elements, Executable, Parameters};
use vit_models::{Config, ProblemType};

use super::metrics::{Evaluation, MultiLabelEvaluation};
use super::{EvaluationOutcome, TaskEvaluation, inference};
use crate::error::TrainError;

pub(crate) struct Evaluator {
    executable: Box<dyn Executable>,
    preprocess: Preprocess,
    problem_type: ProblemType,
    classes: usize,
    batch: usize,
}

impl Evaluator {
    /// Compiles a model for batches of this size.
    pub fn new(
        device: &dyn Device,
        config: &Config,
        parameters: &mut dyn Parameters,
        batch: usize,
    ) -> Result<Evaluator, TrainError> {
        let graph = inference(config, batch)?;
        let classes = graph.shape(graph.output("logits")?).last();
        let held = parameters.held_bytes();
        let executable = device
            .compile(&graph, parameters)
            .map_err(|error| suggest_batch(error, device, batch, held, |batch| inference(config, batch)))?;
        let preprocess = config.preprocessing.clone();
        preprocess.validate()?;
        Ok(Evaluator { executable, preprocess, problem_type: config.problem_type, classes, batch })
    }

    /// Replaces the model's parameters.
    pub fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), TrainError> {
        Ok(self.executable.set_parameters(parameters)?)
    }

    /// Evaluates the model on all samples and keeps its `worst` most confident mistakes; see [`super::evaluate`].
    pub fn run(
        &mut self,
        samples: &dyn Samples,
        threads: usize,
        worst: usize,
        mut progress: impl FnMut(usize, usize) -> bool,
    ) -> Result<Option<EvaluationOutcome>, TrainError> {
        let Evaluator { executable, preprocess, classes, batch, .. } = self;
        let (classes, batch) = (*classes, *batch);
        let mut evaluation = match self.problem_type {
            ProblemType::SingleLabel => TaskEvaluation::Single(Box::new(Evaluation::new(classes, worst))),
            ProblemType::MultiLabel => TaskEvaluation::Multi(MultiLabelEvaluation::new(classes)),
        };
        let (mut unreadable, mut non_finite) = (Vec::new(), Vec::new());
        let size = preprocess.output_len();
        let (mut images, mut logits) = (vec![0.0; batch * size], vec![0.0; batch * classes]);
        let mut present = Vec::with_capacity(batch);
        let prepare = |index: usize| {
            let image = samples.image(index).map_err(|error| Unreadable::new(index, samples.name(index), &error))?;
            let failed = |error: PreprocessError| Unreadable {
                sample: index,
                name: samples.name(index),
                reason: error.to_string(),
            };
            preprocess.apply(&image).map_err(failed)
        };
        let pipeline = Pipeline { threads, look_ahead: 2 * batch.max(threads), name: &|index| samples.name(index) };
        let end = pipeline.run(samples.len(), prepare, |index, image| {
            match image {
                Ok(pixels) => {
                    images[present.len() * size..][..size].copy_from_slice(&pixels);
                    present.push(index);
                }
                Err(sample) => unreadable.push(sample),
            }
            let last = index + 1 == samples.len();
            if present.len() < batch && !(last && !present.is_empty()) {
                return Ok(ControlFlow::Continue(()));
            }
            executable.write("image", Elements::F32(&images))?;
            executable.run()?;
            executable.read("logits", &mut logits)?;
            let rows = &logits[..present.len() * classes];
            let finite = |row: &[f32]| row.iter().all(|logit| logit.is_finite());
            let named = present.iter().zip(rows.chunks(classes.max(1))).filter(|(_, row)| !finite(row));
            non_finite.extend(named.map(|(&index, _)| samples.name(index)));
            match &mut evaluation {
                TaskEvaluation::Single(evaluation) => {
                    let label = |&index: &usize| samples.labels(index).first().copied().unwrap_or(u32::MAX);
                    let labels: Vec<u32> = present.iter().map(label).collect();
                    evaluation.add(rows, &labels, &present)?;
                }
                TaskEvaluation::Multi(evaluation) => {
                    let labels: Vec<&[u32]> = present.iter().map(|&index| samples.labels(index)).collect();
                    evaluation.add(rows, &labels)?;
                }
            }
            present.clear();
            let wanted = progress(index + 1, samples.len());
            Ok::<_, TrainError>(if wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(end.is_continue().then_some(EvaluationOutcome { evaluation, unreadable, non_finite }))
    }
}
