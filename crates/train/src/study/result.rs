//! The result of a run: `result.json` of its folder.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vit_system::{atomic_file, regular_file};

use super::Stage;
use crate::error::TrainError;

const RESULT: &str = "result.json";

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyResult {
    /// The run's name.
    pub run: String,
    /// What the run is for.
    pub stage: Stage,
    /// The model's name.
    pub model: String,
    /// The model's family.
    pub family: String,
    /// Its teacher.
    pub teacher: Option<String>,
    /// Its parameters.
    pub parameters: u64,
    /// Its seed.
    pub seed: u64,
    /// The fraction of the training images.
    pub fraction: f64,
    /// The number of training images.
    pub images: usize,
    /// Steps taken.
    pub steps: u64,
    /// Images seen, with repetitions.
    pub seen: u64,
    /// FLOPs of all steps: forward and backward pass and update.
    pub flops: f64,
    /// Seconds of training and evaluation, over all sessions.
    pub seconds: f64,
    /// What its model was pre-trained with.
    pub pretraining: Option<PretrainingCost>,
    /// The metric of its scores: `val/top1`, or `val/map` for images with several labels, `val/knn` without labels.
    pub metric: String,
    /// The score of the last weights on the validation images.
    pub validation: Option<f64>,
    /// Their score on the test images, which were looked at this once.
    pub score: Option<f64>,
    /// Their loss on the test images.
    pub loss: Option<f64>,
    /// Test images that could be read.
    pub test_images: usize,
    /// Few-shot accuracies on the test images by training images of each class: the mean over draws.
    pub few_shot: BTreeMap<usize, f64>,
    /// Whether it ended because the loss was not finite.
    pub diverged: bool,
}

/// What a model was pre-trained with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PretrainingCost {
    /// Training images.
    pub images: usize,
    /// Images seen, with repetitions.
    pub seen: u64,
    /// FLOPs of all steps.
    pub flops: f64,
    /// Seconds.
    pub seconds: f64,
}

impl StudyResult {
    /// The usual name of the metric.
    pub fn metric_name(&self) -> &str {
        match self.metric.as_str() {
            "val/top1" => "top-1",
            "val/map" => "mAP",
            "val/knn" => "nearest neighbours",
            other => other,
        }
    }

    /// FLOPs of pre-training, or of training if there was none.
    pub fn spent(&self) -> f64 {
        self.pretraining.as_ref().map_or(self.flops, |pretraining| pretraining.flops)
    }

    /// The result in a run's folder, if the run is finished.
    pub(super) fn read(folder: &Path) -> Result<Option<StudyResult>, TrainError> {
        let path = folder.join(RESULT);
        let Ok(text) = regular_file::read_to_string(&path) else { return Ok(None) };
        let unreadable = |e: serde_json::Error| TrainError::Config { path: path.clone(), what: e.to_string() };
        serde_json::from_str(&text).map(Some).map_err(unreadable)
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), TrainError> {
        let path = folder.join(RESULT);
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        let failed = |error: std::io::Error| TrainError::Config { path: path.clone(), what: error.to_string() };
        atomic_file::write(&path, format!("{text}\n")).map_err(failed)
    }
}
