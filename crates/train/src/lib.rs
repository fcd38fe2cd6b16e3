//! Training. A step is one graph: forward pass, loss, gradients, clipping and the optimiser's update, with the learning
//! rate and the step number as inputs, so that a device runs it without a pause or an allocation.

mod step;

pub use step::{Optimiser, TrainingStep};
