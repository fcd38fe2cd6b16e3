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
            if present.len() < batch && (!last || present.is_empty()) {
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

#[cfg(test)]
mod tests {
    use vit_data::loader::LoaderError;
    use vit_data::{Image, ImageError};
    use vit_graph::device::Initial;

    use super::*;

    /// Samples of which one panics when it is decoded.
    struct Panicking;

    impl Samples for Panicking {
        fn len(&self) -> usize {
            5
        }

        fn classes(&self) -> &[String] {
            &[]
        }

        fn labels(&self, _: usize) -> &[u32] {
            &[0]
        }

        fn name(&self, index: usize) -> String {
            index.to_string()
        }

        fn image(&self, index: usize) -> Result<Image, ImageError> {
            assert_ne!(index, 3, "a broken decoder");
            Ok(Image::from_rgb(32, 32, vec![7; 32 * 32 * 3]).unwrap())
        }
    }

    #[test]
    fn a_panic_in_a_thread_is_an_error_of_the_evaluation() {
        let vit_models::Variant { architecture, mut preprocessing, .. } = vit_models::variant("Ti/16@32").unwrap();
        preprocessing.image_size = architecture.image_size();
        let config =
            Config { name: None, architecture, preprocessing, labels: vec![], problem_type: Default::default() };
        let device = vit_cpu::Cpu::new(Some(1));
        let mut evaluator = Evaluator::new(&device, &config, &mut Initial { seed: 1 }, 2).unwrap();
        let error = evaluator.run(&Panicking, 2, 0, |_, _| true).unwrap_err();
        let TrainError::Loader(LoaderError::Panic { name, message }) = &error else { panic!("{error}") };
        assert!(name == "3" && message.contains("a broken decoder"), "{error}");
    }
}
