//! Evaluation of a model on a dataset, during training and afterwards.

pub(crate) mod evaluator;
mod features;
pub(crate) mod held_out;
pub(crate) mod interval;
pub mod metrics;
pub(crate) mod neighbours;
pub(crate) mod pairs;
pub mod probe;
pub(crate) mod pseudo_labels;
pub(crate) mod real;
pub(crate) mod report;

use vit_data::Samples;
use vit_data::loader::Unreadable;
use vit_graph::device::{Device, Parameters};
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{Graph, GraphError};
use vit_models::clip::Clip;
use vit_models::{Config, Mode};

use crate::error::TrainError;
use crate::processes::Processes;
use crate::recipe::Recipe;
use crate::run::folder::columns;
use evaluator::{Evaluated, EvaluationEffort, Evaluator};
use metrics::{ClassMetrics, Evaluation, MultiLabelEvaluation};
use pairs::PairEvaluation;

/// How to evaluate.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationOptions {
    /// Images in a batch.
    pub batch: usize,
    /// Threads that prepare images.
    pub threads: usize,
    /// How many of the most confident mistakes are kept.
    pub worst: usize,
}

/// The batch of evaluations during training: that of a micro-batch, up to a limit. Independent of the number of processes.
pub(crate) fn evaluation_batch(recipe: &Recipe) -> usize {
    (recipe.batch / (recipe.accumulate.max(1) * recipe.parts.max(1))).clamp(1, 256)
}

/// The model's graph for evaluation: its logits, its features if it is pre-trained without labels, or the factors of the
/// logits of pairs.
pub(crate) fn inference(config: &Config, batch: usize) -> Result<Graph, GraphError> {
    if let Some(clip) = config.architecture.downcast_ref::<Clip>() {
        return clip.build_factors(batch);
    }
    let mut graph = config.architecture.build(batch, Mode::Inference)?;
    let output = if config.architecture.pretraining().is_some() { "features" } else { "logits" };
    graph.retain_outputs(|name| name == output);
    eliminate_dead_code(&graph)
}

/// The evaluation of a classifier or of an image-text model.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskEvaluation {
    /// One label per image.
    Single(Box<Evaluation>),
    /// Any number of labels per image.
    Multi(MultiLabelEvaluation),
    /// One label per image, by the votes of nearest neighbours.
    Neighbours(Box<Evaluation>),
    /// Pairs of image and text.
    Pairs(Box<PairEvaluation>),
}

impl TaskEvaluation {
    /// The number of samples.
    pub fn samples(&self) -> usize {
        match self {
            TaskEvaluation::Single(evaluation) | TaskEvaluation::Neighbours(evaluation) => {
                evaluation.metrics().samples as usize
            }
            TaskEvaluation::Multi(evaluation) => evaluation.metrics().samples,
            TaskEvaluation::Pairs(evaluation) => evaluation.metrics().samples,
        }
    }

    /// The metrics of every class, which pairs do not have; in a multi-label evaluation with the average precision of classes that have samples.
    pub fn per_class(&self) -> Vec<(ClassMetrics, Option<f64>)> {
        match self {
            TaskEvaluation::Single(evaluation) | TaskEvaluation::Neighbours(evaluation) => {
                evaluation.per_class().into_iter().map(|m| (m, None)).collect()
            }
            TaskEvaluation::Multi(evaluation) => {
                evaluation.per_class().into_iter().zip(evaluation.average_precisions()).collect()
            }
            TaskEvaluation::Pairs(_) => Vec::new(),
        }
    }

    /// The metric that decides which model is best: its column and its value; higher is better.
    pub fn score(&self) -> (&'static str, f64) {
        match self {
            TaskEvaluation::Single(evaluation) => (columns::VAL_TOP1, evaluation.metrics().top1),
            TaskEvaluation::Neighbours(evaluation) => (columns::VAL_NEIGHBOURS, evaluation.metrics().top1),
            TaskEvaluation::Multi(evaluation) => (columns::VAL_MAP, evaluation.metrics().mean_average_precision),
            TaskEvaluation::Pairs(evaluation) => (columns::VAL_R1, evaluation.metrics().r1()),
        }
    }

    /// The mean loss of the samples.
    pub fn loss(&self) -> f64 {
        match self {
            TaskEvaluation::Single(evaluation) | TaskEvaluation::Neighbours(evaluation) => evaluation.metrics().loss,
            TaskEvaluation::Multi(evaluation) => evaluation.metrics().loss,
            TaskEvaluation::Pairs(evaluation) => evaluation.metrics().loss,
        }
    }
}

/// An evaluation, and the samples that spoilt or escaped it.
#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationOutcome {
    /// The metrics.
    pub evaluation: TaskEvaluation,
    /// Samples that could not be read: name and reason.
    pub unreadable: Vec<Unreadable>,
    /// The most likely class of every sample that could be read; empty if there are no classes, or any number per image.
    pub predictions: Vec<Prediction>,
    /// Names of samples whose logits are NaN or infinite. If there are any, the metrics are void.
    pub non_finite: Vec<String>,
}

/// The most likely class of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// The sample's index.
    pub sample: usize,
    /// The class.
    pub class: u32,
}

/// Runs a model with these parameters over all samples. `progress` is called with the number of samples done and their
/// total; `false` ends the evaluation early, without an outcome.
pub fn evaluate(
    device: &dyn Device,
    config: &Config,
    parameters: &mut dyn Parameters,
    samples: &dyn Samples,
    options: &EvaluationOptions,
    progress: impl FnMut(usize, usize) -> bool,
) -> Result<Option<EvaluationOutcome>, TrainError> {
    let batch = options.batch.clamp(1, samples.len().max(1));
    let mut evaluator = Evaluator::new(device, config, parameters, batch)?;
    let alone = Processes::default();
    let effort = EvaluationEffort { threads: options.threads, worst: options.worst, processes: &alone };
    match evaluator.run(samples, &effort, progress)? {
        Evaluated::Here(outcome) => Ok(Some(*outcome)),
        Evaluated::Interrupted | Evaluated::Elsewhere => Ok(None),
    }
}
