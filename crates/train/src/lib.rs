//! Training. A step is one graph: forward pass, loss, gradients, clipping and the optimiser's updates, with the learning
//! rate and the step number as inputs. A recipe defines the step, the schedule of the learning rate and the augmentation; a
//! run trains a model by a recipe and keeps metrics and checkpoints in its folder.
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

mod error;
mod evaluate;
mod json;
mod pairs;
pub mod plots;
mod processes;
mod recipe;
mod run;
pub mod scaling;
mod step;
mod study;
mod suite;

pub use error::{Kept, TrainError};
pub use evaluate::held_out::{EvaluatedSplit, EvaluationImages, SplitsOfRun, open_for_evaluation, splits_of_run};
pub use evaluate::interval::wilson_interval;
pub use evaluate::metrics;
pub use evaluate::pairs::{PairEvaluation, PairMetrics};
pub use evaluate::probe;
pub use evaluate::pseudo_labels::{PseudoLabel, PseudoLabelChoice};
pub use evaluate::real::{RealAccuracy, RealLabels};
pub use evaluate::report::{evaluation_json, write_evaluation};
pub use evaluate::{EvaluationOptions, EvaluationOutcome, Prediction, TaskEvaluation, evaluate};
pub use json::finite_json;
pub use processes::Processes;
pub use recipe::*;
pub use run::disk_space::{RunDisk, free_disk};
pub use run::folder::{Existing, MetricsLog, MetricsRow, RunError, RunFolder, columns};
pub use run::memory::{
    Alternatives, GraphPlan, ImageSizes, MemoryBaseline, MemoryPart, MemoryPhase, RunMemory, Shortage, StateBytes,
    Workload,
};
pub use run::progress::{Clock, Pace, Progress};
pub use run::saving::{Best, CheckpointSource, Opened, RunPosition, SaveError, Slot, Snapshot};
pub use run::setup::{ChangedData, FirstWeights, Launch, ModelChoice, RunConfig, RunSettings, Setup};
pub use run::trainer::{Estimate, Finished, Observer, TrainerOptions, assist, estimate, train, training_step};
pub use step::average::Average;
pub use step::finite::{NonFinite, first_non_finite};
pub use step::groups::{DecayOn, Freeze, layers, rate_factors};
pub use step::objective::pretraining::{Colours, DistillationSchedule, MaskedPrediction, MultiCrop};
pub use step::objective::{Distillation, Loss, Objective};
pub use step::optimiser::{Optimiser, OptimiserMethod};
pub use step::schedule::{CosineRamp, Decay, Schedule};
pub use step::sharding::{ShardedState, ShardedTensor, Sharding};
pub use step::{StepError, StepOptions, StepParameters, TrainingStep};
pub use study::{
    Begun, BegunRun, OneOrMany, PretrainStage, PretrainingCost, RunEstimate, SampleSize, Spread, Stage, Study,
    StudyData, StudyFile, StudyMachine, StudyModel, StudyProbe, StudyResult, StudyRun, StudyTable, TestImages,
};
pub use suite::{SuiteFile, SuiteGroup, SuiteProtocol, SuiteReport, SuiteRow};
