//! Training. A step is one graph: forward pass, loss, gradients, clipping and the optimiser's update, with the learning
//! rate and the step number as inputs, so that a device runs it without a pause or an allocation. A recipe says which
//! step that is, and how the rate changes from step to step.
//!
//! ```
//! use vit_train::{Recipe, TrainingStep};
//!
//! let mut model = vit_models::variant("Ti/16@32").expect("a name of the paper's form").architecture;
//! let mut recipe = Recipe::named("deit")?;
//! recipe.set("model.drop_path=0.2")?;
//! recipe.apply_to(&mut model);
//! let step = TrainingStep::new(&model, 4, recipe.step_options())?;
//! assert!(step.graph.output("loss").is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod average;
mod colours;
mod disk;
mod error;
mod evaluate;
mod evaluation_report;
mod finite;
mod groups;
mod held_out;
mod json;
mod memory;
pub mod metrics;
mod objective;
mod optimiser;
pub mod plots;
mod preprocess;
mod progress;
mod pseudo_labels;
mod recipe;
mod run_folder;
mod saving;
mod schedule;
mod setup;
mod step;
mod study;
mod teacher;
mod trainer;

pub use average::Average;
pub use disk::{RunDisk, free_disk};
pub use error::{Kept, TrainError};
pub use evaluate::{EvaluationOptions, Measured, Outcome, evaluate};
pub use evaluation_report::{evaluation_json, write_evaluation};
pub use finite::{NonFinite, first_non_finite};
pub use groups::{DecayOn, Freeze, layers, rate_factors};
pub use held_out::{ImagesToMeasure, Measure, SplitsOfRun, open_to_measure, splits_of_run};
pub use json::finite_json;
pub use memory::{Alternatives, Before, GraphPlan, ImageSizes, Part, RunMemory, Shortage, StateBytes, When, Workload};
pub use objective::{Distillation, Loss, Objective};
pub use optimiser::{Method, Optimiser};
pub use preprocess::preprocess;
pub use progress::{Clock, Pace, Progress};
pub use pseudo_labels::{PseudoLabel, PseudoLabelChoice};
pub use recipe::*;
pub use run_folder::{Existing, MetricsLog, Row, RunError, RunFolder, columns, model_of};
pub use saving::{Best, Opened, Position, SaveError, Slot, Snapshot};
pub use schedule::{Decay, Schedule};
pub use setup::{ChangedData, FirstWeights, Launch, ModelChoice, RunConfig, RunSettings, Setup};
pub use step::{Start, StepError, StepOptions, TrainingStep};
pub use study::{BegunRun, Study, StudyPlan, StudyResult, StudyRun, StudyTable};
pub use trainer::{Estimate, Finished, Observer, TrainerOptions, estimate, train, training_step};
