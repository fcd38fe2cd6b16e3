//! Augmentation: operations with Pillow's bytes, and the policies of timm and DeiT III that draw them. All randomness
//! comes from a [`SampleRandom`], so that it depends on the sample and not on the thread.

pub mod blur;
pub mod crop;
pub mod enhance;
pub mod erasing;
pub mod geometry;
pub mod hue;
pub mod jitter;
mod operation;
pub mod point;
mod policy;
mod rand_augment;
mod random;
mod three_augment;
mod wide;

pub use crop::{CropBox, Fill};
pub use erasing::{Erasing, ErasingMode};
pub use geometry::Sampling;
pub use jitter::ColourJitter;
pub use operation::AugmentOp;
pub use policy::{AutoAugment, PolicyError};
pub use random::SampleRandom;
pub use three_augment::three_augment;
