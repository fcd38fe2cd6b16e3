//! Metrics of classifiers, accumulated over batches of logits and labels in one pass; those of several workers can be
//! merged. All sums are in f64 and in the order of the samples.

mod calibration;
mod classification;
mod confusion;
mod error;
mod multi_label;
mod worst;

pub use calibration::{Calibration, ReliabilityBin};
pub use classification::{Evaluation, Metrics};
pub use confusion::{ClassMetrics, Confusion};
pub use error::MetricsError;
pub use multi_label::{MultiLabelEvaluation, MultiLabelMetrics};
pub use worst::{Mistake, WorstMistakes};
