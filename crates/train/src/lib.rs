//! Training. A step is one graph: forward pass, loss, gradients, clipping and the optimiser's update, with the learning
//! rate and the step number as inputs, so that a device runs it without a pause or an allocation.
//!
//! ```
//! use vit_train::{Optimiser, TrainingStep};
//!
//! let model = vit_models::variant("Ti/16@32").expect("a name of the paper's form").architecture;
//! let step = TrainingStep::new(&model, 4, &Optimiser::default())?;
//! assert!(step.graph.output("loss").is_ok());
//! # Ok::<(), vit_graph::GraphError>(())
//! ```

pub mod metrics;
pub mod plots;
mod progress;
mod run_folder;
mod saving;
mod step;

pub use progress::{Clock, Pace, Progress};
pub use run_folder::{Existing, MetricsLog, Row, RunError, RunFolder, columns};
pub use saving::{Best, Opened, Position, SaveError, Slot, Snapshot};
pub use step::{Optimiser, TrainingStep};
