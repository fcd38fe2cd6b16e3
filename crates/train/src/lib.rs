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
mod finite;
mod groups;
mod objective;
mod optimiser;
mod recipe;
mod schedule;
mod step;

pub use average::Average;
pub use finite::{NonFinite, first_non_finite};
pub use groups::{DecayOn, Freeze, layers, rate_factors};
pub use objective::{Distillation, Loss, Objective};
pub use optimiser::{Method, Optimiser};
pub use recipe::*;
pub use schedule::{Decay, Schedule};
pub use step::{Start, StepError, StepOptions, TrainingStep};
