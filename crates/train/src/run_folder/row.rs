//! One row of measurements, as a line of JSON and as a line of CSV.

use serde_json::{Map, Number, Value};

/// The columns that the training loop writes and the curves show. Others are welcome.
pub mod columns {
    /// Mean training loss since the row before.
    pub const TRAIN_LOSS: &str = "train/loss";
    /// Learning rate.
    pub const RATE: &str = "train/learning_rate";
    /// Training speed.
    pub const IMAGES_PER_SECOND: &str = "train/images_per_second";
    /// Loss on the validation set.
    pub const VAL_LOSS: &str = "val/loss";
    /// Share of the validation set whose label is predicted.
    pub const VAL_TOP1: &str = "val/top1";
    /// Share of the validation set whose label is among the first five.
    pub const VAL_TOP5: &str = "val/top5";
}

pub(super) const STEP: &str = "step";
pub(super) const EPOCH: &str = "epoch";

/// What was measured at one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Optimiser steps taken.
    pub step: u64,
    /// Epochs behind it, with a fraction.
    pub epoch: Option<f64>,
    /// Measurements by column; a row has those that are known.
    pub values: Vec<(String, f64)>,
}

impl Row {
    /// A row without measurements.
    pub fn new(step: u64) -> Self {
        Self { step, ..Self::default() }
    }

    /// With the epoch.
    pub fn epoch(self, epoch: f64) -> Self {
        Self { epoch: Some(epoch), ..self }
    }

    /// With one more measurement, or another value for one that it has.
    pub fn with(mut self, column: &str, value: f64) -> Self {
        match self.values.iter_mut().find(|(name, _)| name == column) {
            Some((_, old)) => *old = value,
            None => self.values.push((column.into(), value)),
        }
        self
    }

    /// The measurement of a column.
    pub fn get(&self, column: &str) -> Option<f64> {
        self.values.iter().find(|(name, _)| name == column).map(|(_, value)| *value)
    }

    /// One line, without its end.
    pub(super) fn to_json(&self) -> String {
        let mut map = Map::new();
        map.insert(STEP.into(), self.step.into());
        if let Some(epoch) = self.epoch {
            map.insert(EPOCH.into(), number(epoch));
        }
        map.extend(self.values.iter().map(|(name, value)| (name.clone(), number(*value))));
        Value::Object(map).to_string()
    }

    pub(super) fn from_json(line: &str) -> Option<Row> {
        let Value::Object(map) = serde_json::from_str(line).ok()? else { return None };
        let mut row = Row::new(map.get(STEP)?.as_u64()?);
        for (name, value) in &map {
            match (name.as_str(), as_number(value)) {
                (STEP, _) => {}
                (EPOCH, value) => row.epoch = value,
                (_, Some(value)) => row.values.push((name.clone(), value)),
                (_, None) => {}
            }
        }
        Some(row)
    }

    /// One line of a table with these columns after step and epoch, with its end.
    pub(super) fn to_csv(&self, columns: &[String]) -> String {
        let mut line = self.step.to_string();
        let values = columns.iter().map(|column| self.get(column));
        for value in std::iter::once(self.epoch).chain(values) {
            line.push(',');
            if let Some(value) = value {
                line.push_str(&value.to_string());
            }
        }
        line.push('\n');
        line
    }
}

/// The first line of a table, with its end.
pub(super) fn csv_header(columns: &[String]) -> String {
    let mut line = format!("{STEP},{EPOCH}");
    for column in columns {
        line.push(',');
        if column.contains(['"', ',', '\n', '\r']) {
            line.push_str(&format!("\"{}\"", column.replace('"', "\"\"")));
        } else {
            line.push_str(column);
        }
    }
    line.push('\n');
    line
}

/// JSON has no NaN and no infinity, but a run that diverged has: they are kept as text.
fn number(value: f64) -> Value {
    Number::from_f64(value).map_or_else(|| Value::String(value.to_string()), Value::Number)
}

fn as_number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}
