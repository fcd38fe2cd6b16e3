//! Pictures of a run: training curves, confusion matrix, reliability diagram, contact sheet of the worst mistakes; accuracy against data for
//! a study.
//!
//! Each is a [`Scene`], a list of plain shapes that is written as SVG or as PNG. The font is part of the program, so
//! nothing is asked of the system. (Inter, under the SIL Open Font License; see `plots/fonts/OFL.txt`.)

mod axis;
mod bitmap;
mod confusion_matrix;
mod contact_sheet;
mod curves;
mod font;
mod palette;
mod reliability;
mod scaling;
mod scene;
mod svg;

pub use bitmap::PlotError;
pub use confusion_matrix::confusion_matrix;
pub use contact_sheet::{SheetEntry, contact_sheet};
pub use curves::curves;
pub use reliability::reliability;
pub use scaling::{ScalingLine, scaling};
pub use scene::Scene;
