//! Vision architectures, one file each, their named variants, and weights in and out.
//!
//! ```
//! use vit_models::{Mode, variant};
//!
//! let variant = variant("B/16").expect("a paper name");
//! let graph = variant.architecture.build(1, Mode::Inference)?;
//! assert_eq!(vit_graph::cost::Cost::of(&graph).parameters(), 86_567_656);
//! # Ok::<(), vit_graph::GraphError>(())
//! ```

mod adapt;
mod architecture;
pub mod builtin;
mod checkpoint;
pub mod clip;
pub mod coatnet;
pub mod config;
pub mod convnext;
pub mod efficientnet;
mod error;
mod guess;
mod hugging_face;
mod labels;
pub mod layers;
pub mod lenet;
pub mod onnx;
mod problem_type;
mod registry;
pub mod resnet;
pub mod resnetv2;
pub mod run;
pub mod swin;
mod variant;
pub mod vit;
pub mod weights;

pub use adapt::{Leniency, adapt};
pub use architecture::{Architecture, Dimensions, Network, NetworkObject, PatchGrid, PositionLayout, TokenSequence};
pub use checkpoint::{Changes, Checkpoint, Layout, OpenOptions, TokenizerFiles, read_config};
pub use config::{Config, Configured};
pub use error::ModelError;
pub use guess::guess;
pub use layers::Mode;
pub use problem_type::ProblemType;
pub use registry::register;
pub use variant::{Variant, suggestions, variant, variants};
pub use vit_preprocess::{CropMode, CropRule, Filter, Preprocess, PreprocessError, Resizer, UnknownFilter};

use registry::Registered;

/// Every architecture, in the order in which their variants are listed.
const ARCHITECTURES: &[Registered] = &[
    Registered::of::<vit::Vit>(),
    Registered::of::<resnetv2::ResNetV2>(),
    Registered::of::<resnet::ResNet>(),
    Registered::of::<efficientnet::EfficientNet>(),
    Registered::of::<convnext::ConvNext>(),
    Registered::of::<swin::Swin>(),
    Registered::of::<coatnet::CoAtNet>(),
    Registered::of::<lenet::LeNet>(),
    Registered::of::<clip::Clip>(),
];
