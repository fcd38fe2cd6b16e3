//! Figures of a run: training curves, confusion matrix, reliability diagram, contact sheet of the worst mistakes; of a study:
//! accuracy against what it varies; of a cluster: speed against the number of GPUs. Each is a [`Scene`], which is written as SVG or PNG.

mod cluster;
mod confusion_matrix;
mod contact_sheet;
mod curves;
mod reliability;
mod sample_sheet;
mod scaling;

pub use cluster::{ClusterLine, cluster};
pub use confusion_matrix::confusion_matrix;
pub use contact_sheet::{SheetEntry, contact_sheet};
pub use curves::curves;
pub use reliability::reliability;
pub use sample_sheet::{SampleRow, sample_sheet};
pub use scaling::{ScalingAxis, ScalingLine, ScalingPoint, scaling};
pub use vit_plot::{PlotError, Scene};
