//! The position of a checkpoint in its run.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The position in a run: `state.json` of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunPosition {
    /// Optimiser steps taken.
    pub step: u64,
    /// Complete epochs.
    pub epoch: u64,
    /// Batches of the current epoch that were used.
    pub batch: u64,
    /// Images seen.
    pub images: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// Seconds of training over all sessions.
    pub seconds: f64,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Further state of the training loop.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The best evaluation of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The column of the metric, such as `val/top1`.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// The validation loss, which decides between equal values; old runs do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The step of the evaluation.
    pub step: u64,
}

impl Best {
    /// Whether another evaluation is better: a greater value, or the same with a smaller loss. NaN is never better.
    pub fn is_beaten_by(&self, value: f64, loss: f64) -> bool {
        value > self.value || (value == self.value && self.loss.is_some_and(|least| loss < least))
    }
}

impl RunPosition {
    /// The text of `state.json`, after checking that it parses to the same position.
    pub(super) fn to_json(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())? + "\n";
        match serde_json::from_str::<RunPosition>(&text) {
            Ok(position) if position == *self => Ok(text),
            _ => Err("the position holds a number that JSON cannot (NaN or infinite), or one field twice".into()),
        }
    }
}
