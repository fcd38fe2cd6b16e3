//! Measuring a model on a data set: the same code while training and for `vit eval`.

pub(crate) mod held_out;
pub mod metrics;
pub(crate) mod pseudo_labels;
pub(crate) mod report;

use std::sync::mpsc;

use vit_data::{ImageError, Preprocess, Samples};
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Device, Elements, Parameters};
use vit_graph::rewrite::dead_code;
use vit_graph::{Graph, GraphError};
use vit_models::{Config, Mode, ProblemType};

use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::recipe::preprocess::preprocess;
use crate::run::folder::columns;
use metrics::{ClassMeasures, Evaluation, MultiLabelEvaluation};

/// How to evaluate.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationOptions {
    /// Pictures that are run at once.
    pub batch: usize,
    /// Threads that decode pictures.
    pub threads: usize,
    /// How many of the most confident mistakes are kept.
    pub worst: usize,
}

/// Images that a run measures at once: as many as a step computes at once, within reason.
pub(crate) fn evaluation_batch(recipe: &Recipe) -> usize {
    (recipe.batch / recipe.accumulate.max(1)).clamp(1, 256)
}

/// The model as it is measured.
pub(crate) fn inference(config: &Config, batch: usize) -> Result<Graph, GraphError> {
    let mut graph = config.architecture.build(batch, Mode::Inference)?;
    graph.retain_outputs(|name| name == "logits");
    dead_code(&graph)
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub enum Measured {
    /// One label per picture.
    Single(Box<Evaluation>),
    /// Any number of labels per picture.
    Multi(MultiLabelEvaluation),
}

impl Measured {
    /// How many samples were measured.
    pub fn samples(&self) -> usize {
        match self {
            Measured::Single(evaluation) => evaluation.measures().samples as usize,
            Measured::Multi(evaluation) => evaluation.measures().samples,
        }
    }

    /// Precision, recall and F1 of every class, and for several labels per image its average precision, where it has
    /// samples.
    pub fn per_class(&self) -> Vec<(ClassMeasures, Option<f64>)> {
        match self {
            Measured::Single(evaluation) => evaluation.per_class().into_iter().map(|m| (m, None)).collect(),
            Measured::Multi(evaluation) => {
                evaluation.per_class().into_iter().zip(evaluation.average_precisions()).collect()
            }
        }
    }

    /// The measurement that models are judged by: its column and its value, the more the better.
    pub fn score(&self) -> (&'static str, f64) {
        match self {
            Measured::Single(evaluation) => (columns::VAL_TOP1, evaluation.measures().top1),
            Measured::Multi(evaluation) => (columns::VAL_MAP, evaluation.measures().mean_average_precision),
        }
    }

    /// The mean loss of the samples.
    pub fn loss(&self) -> f64 {
        match self {
            Measured::Single(evaluation) => evaluation.measures().loss,
            Measured::Multi(evaluation) => evaluation.measures().loss,
        }
    }
}

/// A measurement, and the samples that could not be part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What was measured.
    pub measured: Measured,
    /// Samples that could not be read: name and reason.
    pub unreadable: Vec<(String, String)>,
    /// Samples whose logits are NaN or infinite, by name. Where there are any, what was measured says nothing.
    pub non_finite: Vec<String>,
}

/// Runs a model with these parameters over all samples, and measures it as one for a single label or for several, as its
/// configuration says. `progress` hears how many of how many are done, and ends the
/// evaluation early by answering `false`; then there is no outcome.
pub fn evaluate(
    device: &dyn Device,
    config: &Config,
    parameters: &mut dyn Parameters,
    samples: &dyn Samples,
    options: &EvaluationOptions,
    mut progress: impl FnMut(usize, usize) -> bool,
) -> Result<Option<Outcome>, TrainError> {
    let batch = options.batch.clamp(1, samples.len().max(1));
    let graph = inference(config, batch)?;
    let classes = graph.shape(graph.output("logits")?).last();
    let held = parameters.held_bytes();
    let mut executable = device
        .compile(&graph, parameters)
        .map_err(|error| suggest_batch(error, device, batch, held, |batch| inference(config, batch)))?;
    let preprocess = preprocess(&config.preprocessing)?;

    let mut measured = match config.problem_type {
        ProblemType::SingleLabel => Measured::Single(Box::new(Evaluation::new(classes, options.worst))),
        ProblemType::MultiLabel => Measured::Multi(MultiLabelEvaluation::new(classes)),
    };
    let (mut unreadable, mut non_finite) = (Vec::new(), Vec::new());
    let size = preprocess.output_len();
    let (mut images, mut logits) = (vec![0.0; batch * size], vec![0.0; batch * classes]);
    let mut present = Vec::with_capacity(batch);
    let finished = prepared(samples, &preprocess, options.threads, batch, |index, picture| {
        match picture {
            Ok(pixels) => {
                images[present.len() * size..][..size].copy_from_slice(&pixels);
                present.push(index);
            }
            Err(reason) => unreadable.push((samples.name(index), reason)),
        }
        let last = index + 1 == samples.len();
        if present.len() == batch || (last && !present.is_empty()) {
            executable.write("image", Elements::F32(&images))?;
            executable.run()?;
            executable.read("logits", &mut logits)?;
            let rows = &logits[..present.len() * classes];
            let finite = |row: &[f32]| row.iter().all(|logit| logit.is_finite());
            let named = present.iter().zip(rows.chunks(classes.max(1))).filter(|(_, row)| !finite(row));
            non_finite.extend(named.map(|(&index, _)| samples.name(index)));
            match &mut measured {
                Measured::Single(evaluation) => {
                    let labels: Vec<u32> =
                        present.iter().map(|&i| samples.labels(i).first().copied().unwrap_or(u32::MAX)).collect();
                    evaluation.add(rows, &labels, &present)?;
                }
                Measured::Multi(evaluation) => {
                    let labels: Vec<&[u32]> = present.iter().map(|&i| samples.labels(i)).collect();
                    evaluation.add(rows, &labels)?;
                }
            }
            present.clear();
            return Ok(progress(index + 1, samples.len()));
        }
        Ok(true)
    })?;
    Ok(finished.then_some(Outcome { measured, unreadable, non_finite }))
}

/// Hands every sample over in order, prepared by several threads, of which each is at most two batches ahead. Ends early
/// where `each` says `false`; says whether it came to the end.
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
            // The name already says which file it is.
            ImageError::File { error, .. } => error.to_string(),
            other => other.to_string(),
        })?;
        preprocess.apply(&image).map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| {
        // One channel per thread keeps the order without sorting: sample i comes from thread i mod n.
        let channels: Vec<mpsc::Receiver<Result<Vec<f32>, String>>> = (0..threads)
            .map(|thread| {
                let (sender, receiver) = mpsc::sync_channel(2 * batch.div_ceil(threads));
                scope.spawn(move || {
                    for index in (thread..samples.len()).step_by(threads) {
                        if sender.send(prepare(index)).is_err() {
                            return; // Whoever receives has stopped.
                        }
                    }
                });
                receiver
            })
            .collect();
        for (index, channel) in (0..samples.len()).zip(channels.iter().cycle()) {
            let picture = channel.recv().map_err(|_| TrainError::Worker)?;
            if !each(index, picture)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}
