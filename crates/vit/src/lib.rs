//! Vision Transformers from Rust: open a checkpoint, classify an image.
//!
//! ```no_run
//! use vit::{Image, Model};
//!
//! let mut model = Model::open("checkpoints/vit_base")?;
//! let image = Image::open("cat.jpg")?;
//! for prediction in model.classify(&image)?.iter().take(5) {
//!     println!("{:5.1}%  {}", 100.0 * prediction.probability, prediction.label);
//! }
//! # Ok::<(), vit::Error>(())
//! ```
//!
//! Every named intermediate can be asked for; what nobody asks for costs nothing:
//!
//! ```
//! use vit::{Image, Model, ModelOptions};
//!
//! let options = ModelOptions::default().tap("blocks.5.attn").tap("blocks.5.attn.weights");
//! let mut model = Model::open_with("cifar10", &options)?;
//! model.run(&Image::open("../../examples/images/dog.jpg")?)?;
//! // One picture, 64 tokens of width 256; four heads, each token's attention to every other.
//! assert_eq!(model.output("blocks.5.attn", 1)?.len(), 64 * 256);
//! assert_eq!(model.output("blocks.5.attn.weights", 1)?.len(), 4 * 64 * 64);
//! # Ok::<(), vit::Error>(())
//! ```
//!
//! The parts are crates of their own: `vit-graph` (the engine), `vit-cpu` and `vit-cuda` (the devices), `vit-models`
//! (architectures and weights), `vit-data` (pictures), `vit-train` (training), `vit-insight` (what a model looks at and
//! what it learned), `vit-plot` (drawings).

pub mod bench;
mod config;
mod convert;
mod device;
mod embed;
pub mod embeddings;
mod error;
mod explain;
mod finite;
mod model;
mod verify;

pub use config::config_of;
pub use convert::{Conversion, convert};
pub use device::{DeviceChoice, DeviceOptions, on_cpu_fallback};
pub use embed::{Embed, Pool};
pub use error::Error;
pub use explain::Explain;
pub use model::{Model, ModelOptions, Prediction};
pub use verify::{Comparison, Verification, VerifyOptions, verify};
pub use vit_data::Image;
pub use vit_graph::Precision;

pub use vit_cuda as cuda;
pub use vit_data as data;
pub use vit_graph as graph;
pub use vit_insight as insight;
pub use vit_models as models;
pub use vit_plot as plot;
pub use vit_train as train;
