//! A model compiled for evaluation. It stays compiled while a run trains: each evaluation only replaces its parameters.

use std::sync::mpsc;

use vit_data::{ImageError, Preprocess, Samples};
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Device, Elements, Executable, Parameters};
use vit_models::{Config, ProblemType};

use super::metrics::{Evaluation, MultiLabelEvaluation};
use super::{EvaluationOutcome, TaskEvaluation, inference};
use crate::error::TrainError;
use crate::recipe::preprocess::preprocess;

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
        let preprocess = preprocess(&config.preprocessing)?;
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
        let finished = prepared(samples, preprocess, threads, batch, |index, image| {
            match image {
                Ok(pixels) => {
                    images[present.len() * size..][..size].copy_from_slice(&pixels);
                    present.push(index);
                }
                Err(reason) => unreadable.push((samples.name(index), reason)),
            }
            let last = index + 1 == samples.len();
            if present.len() < batch && !(last && !present.is_empty()) {
                return Ok(true);
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
            Ok(progress(index + 1, samples.len()))
        })?;
        Ok(finished.then_some(EvaluationOutcome { evaluation, unreadable, non_finite }))
    }
}

/// Calls `each` with every preprocessed sample in order. All threads together prepare at most two batches ahead. Ends early
/// where `each` returns `false`, and returns whether all samples were visited.
fn prepared(
    samples: &dyn Samples,
    preprocess: &Preprocess,
    threads: usize,
    batch: usize,
    mut each: impl FnMut(usize, Result<Vec<f32>, String>) -> Result<bool, TrainError>,
) -> Result<bool, TrainError> {
    let threads = threads.clamp(1, samples.len().max(1));
    let prepare = |index: usize| -> Result<Vec<f32>, String> {
        let image = samples.image(index).map_err(|error| match error {
            // The sample's name names the file.
            ImageError::File { error, .. } => error.to_string(),
            other => other.to_string(),
        })?;
        preprocess.apply(&image).map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| {
        // One channel per thread keeps the order without sorting: sample i comes from thread i mod n.
        let mut threads: Vec<_> = (0..threads)
            .map(|thread| {
                let (sender, receiver) = mpsc::sync_channel(2 * batch.div_ceil(threads));
                let prepare_all = move || {
                    for index in (thread..samples.len()).step_by(threads) {
                        if sender.send(prepare(index)).is_err() {
                            return; // The evaluation ended early.
                        }
                    }
                };
                (receiver, Some(scope.spawn(prepare_all)))
            })
            .collect();
        for index in 0..samples.len() {
            let thread = index % threads.len();
            let (receiver, handle) = &mut threads[thread];
            let Ok(image) = receiver.recv() else {
                // Joined here, since the scope would pass the panic on.
                let panic = handle.take().and_then(|handle| handle.join().err());
                return Err(TrainError::Panic {
                    thread: "prepares images",
                    message: panic.map_or_else(String::new, message),
                });
            };
            if !each(index, image)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// What a panic said.
fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(other) => other.downcast_ref::<&str>().copied().unwrap_or_default().to_string(),
    }
}
