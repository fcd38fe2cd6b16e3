//! One row of metrics, as a line of JSON and as a line of CSV.

use serde_json::{Map, Number, Value};
use vit_system::csv_line;

use crate::json::NOT_FINITE;

/// The columns that the training loop writes and the curves show. Further ones are allowed.
pub mod columns {
    /// Mean training loss since the previous row.
    pub const TRAIN_LOSS: &str = "train/loss";
    /// Learning rate.
    pub const RATE: &str = "train/learning_rate";
    /// Training speed.
    pub const IMAGES_PER_SECOND: &str = "train/images_per_second";
    /// Loss on the validation set.
    pub const VAL_LOSS: &str = "val/loss";
    /// Top-1 accuracy on the validation set.
    pub const VAL_TOP1: &str = "val/top1";
    /// Mean average precision on a multi-label validation set.
    pub const VAL_MAP: &str = "val/map";
    /// Accuracy of nearest neighbours on the validation set.
    pub const VAL_NEIGHBOURS: &str = "val/knn";
    /// Mean R@1 of image and text retrieval on the validation set.
    pub const VAL_R1: &str = "val/r1";
    /// R@1 of the texts of images on the validation set.
    pub const VAL_IMAGE_TO_TEXT: &str = "val/image_to_text_r1";
    /// R@1 of the images of texts on the validation set.
    pub const VAL_TEXT_TO_IMAGE: &str = "val/text_to_image_r1";
    /// Top-5 accuracy on the validation set.
    pub const VAL_TOP5: &str = "val/top5";
}

pub(super) const STEP: &str = "step";
pub(super) const EPOCH: &str = "epoch";

/// The metrics of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricsRow {
    /// Optimiser steps taken.
    pub step: u64,
    /// Epochs done, with a fraction.
    pub epoch: Option<f64>,
    /// Metrics by column.
    pub values: Vec<(String, f64)>,
}

impl MetricsRow {
    /// A row without metrics.
    pub fn new(step: u64) -> Self {
        Self { step, ..Self::default() }
    }

    /// With the epoch.
    pub fn epoch(self, epoch: f64) -> Self {
        Self { epoch: Some(epoch), ..self }
    }

    /// With one more metric, or another value for one that it has.
    pub fn with(mut self, column: &str, value: f64) -> Self {
        match self.values.iter_mut().find(|(name, _)| name == column) {
            Some((_, old)) => *old = value,
            None => self.values.push((column.into(), value)),
        }
        self
    }

    /// The metric of a column.
    pub fn get(&self, column: &str) -> Option<f64> {
        self.values.iter().find(|(name, _)| name == column).map(|(_, value)| *value)
    }

    /// One line, without its end.
    pub(super) fn to_json(&self) -> String {
        let mut map = Map::new();
        let mut not_finite = Vec::new();
        map.insert(STEP.into(), self.step.into());
        let epoch = self.epoch.map(|epoch| (EPOCH, epoch));
        for (name, value) in epoch.into_iter().chain(self.values.iter().map(|(name, value)| (name.as_str(), *value))) {
            match Number::from_f64(value) {
                Some(number) => drop(map.insert(name.into(), number.into())),
                None => not_finite.push(Value::from(name)),
            }
        }
        if !not_finite.is_empty() {
            map.insert(NOT_FINITE.into(), not_finite.into());
        }
        Value::Object(map).to_string()
    }

    pub(super) fn from_json(line: &str) -> Option<MetricsRow> {
        let Value::Object(map) = serde_json::from_str(line).ok()? else { return None };
        let mut row = MetricsRow::new(map.get(STEP)?.as_u64()?);
        for (name, value) in &map {
            match (name.as_str(), as_number(value)) {
                (STEP, _) => {}
                (NOT_FINITE, _) => {
                    let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                    row.values.extend(names.map(|name| (name.to_string(), f64::NAN)));
                }
                (EPOCH, value) => row.epoch = value,
                (_, Some(value)) => row.values.push((name.clone(), value)),
                (_, None) => {}
            }
        }
        Some(row)
    }

    /// One line of a table with these columns after step and epoch, with its end.
    pub(super) fn to_csv(&self, columns: &[String]) -> String {
        let values = columns.iter().map(|column| self.get(column));
        let measured = std::iter::once(self.epoch).chain(values);
        let fields = measured.map(|value| value.map_or_else(String::new, |value| value.to_string()));
        csv_line(std::iter::once(self.step.to_string()).chain(fields))
    }
}

/// The first line of a table, with its end.
pub(super) fn csv_header(columns: &[String]) -> String {
    csv_line([STEP, EPOCH].into_iter().chain(columns.iter().map(String::as_str)))
}

/// Numbers, or text: older versions wrote NaN and infinities as strings.
fn as_number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}
