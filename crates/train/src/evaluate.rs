//! Evaluation of a model on a dataset, during training and afterwards.

pub(crate) mod evaluator;
pub(crate) mod held_out;
pub mod metrics;
pub(crate) mod pseudo_labels;
pub(crate) mod report;

use vit_data::Samples;
use vit_graph::device::{Device, Parameters};
use vit_graph::rewrite::dead_code;
use vit_graph::{Graph, GraphError};
use vit_models::{Config, Mode};

use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::run::folder::columns;
use evaluator::Evaluator;
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

/// The model's graph for evaluation.
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
pub struct EvaluationOutcome {
    /// What was measured.
    pub measured: Measured,
    /// Samples that could not be read: name and reason.
    pub unreadable: Vec<(String, String)>,
    /// Samples whose logits are NaN or infinite, by name. Where there are any, what was measured says nothing.
    pub non_finite: Vec<String>,
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
    evaluator.run(samples, options.threads, options.worst, progress)
}
