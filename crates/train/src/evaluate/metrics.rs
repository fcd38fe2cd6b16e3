//! How good a model is. Measures are fed batch by batch with logits and labels, need no second pass, and add up over
//! several workers. All sums are in f64 and in the order of the samples.

mod calibration;
mod classification;
mod confusion;
mod error;
mod multi_label;
mod worst;

pub use calibration::{Calibration, ReliabilityBin};
pub use classification::{Evaluation, Measures};
pub use confusion::{ClassMeasures, Confusion};
pub use error::MetricsError;
pub use multi_label::{MultiLabelEvaluation, MultiLabelMeasures};
pub use worst::{Mistake, WorstMistakes};
