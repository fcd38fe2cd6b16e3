//! Where in a run a checkpoint was taken: what a resumed run needs beside tensors.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The place in a run, `state.json` of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunPosition {
    /// Optimiser steps taken.
    pub step: u64,
    /// Whole epochs behind it.
    pub epoch: u64,
    /// Batches of the current epoch already used.
    pub batch: u64,
    /// Pictures seen.
    pub images: u64,
    /// The seed from which every random choice follows.
    pub seed: u64,
    /// Seconds of training so far, all sessions together.
    pub seconds: f64,
    /// The best measurement so far.
    pub best: Option<Best>,
    /// Whatever else the training loop wants back; kept as it is.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The best value of the measurement that a run is judged by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The measurement's column, such as `val/top1`.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// The validation loss then, which decides between equal values; old runs did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The step at which it was measured.
    pub step: u64,
}

impl Best {
    /// Whether a measurement is better: a greater value, or the same one with a smaller loss. One that is not finite
    /// never is.
    pub fn is_beaten_by(&self, value: f64, loss: f64) -> bool {
        value > self.value || (value == self.value && self.loss.is_some_and(|least| loss < least))
    }
}

impl RunPosition {
    /// The text of `state.json`, once it is sure that reading it gives the same position.
    pub(super) fn to_json(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())? + "\n";
        match serde_json::from_str::<RunPosition>(&text) {
            Ok(position) if position == *self => Ok(text),
            _ => Err("the position holds a number that JSON cannot (NaN or infinite), or one field twice".into()),
        }
    }
}
