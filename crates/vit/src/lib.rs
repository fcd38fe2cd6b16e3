//! Vision Transformers and their relatives from Rust: open a checkpoint, classify images, embed them, explain the answers,
//! train and fine-tune.
//!
//! ```
//! use vit::{Image, Model};
//!
//! let mut model = Model::open("cifar10")?; // or a checkpoint folder, a weights file, a run's folder
//! let image = Image::from_rgb(32, 32, vec![127; 3 * 32 * 32]).unwrap(); // or Image::open("cat.jpg")?
//! for prediction in model.classify(&image)?.iter().take(3) {
//!     println!("{:5.1}%  {}", 100.0 * prediction.probability, prediction.label);
//! }
//! # Ok::<(), vit::Error>(())
//! ```
//!
//! Every named intermediate can be requested as an output; what is not requested is never computed:
//!
//! ```
//! use vit::{Image, Model, ModelOptions};
//!
//! let options = ModelOptions::new().output("blocks.5.attn").output("blocks.5.attn.weights");
//! let mut model = Model::open_with("cifar10", &options)?;
//! model.run(&Image::from_rgb(32, 32, vec![127; 3 * 32 * 32]).unwrap())?;
//! // One image, 64 tokens of width 256; four heads, each token's attention to every other.
//! assert_eq!(model.output("blocks.5.attn", 1)?.len(), 64 * 256);
//! assert_eq!(model.output("blocks.5.attn.weights", 1)?.len(), 4 * 64 * 64);
//! # Ok::<(), vit::Error>(())
//! ```
//!
//! `examples/` has more: embeddings, training, an architecture and a dataset of one's own.
//!
//! # Features
//!
//! Without any, what remains is inference on the CPU: classify, embed, convert, verify.
//!
//! - `cuda` (on by default): NVIDIA GPUs; their libraries are looked for at run time
//! - `text`: `text`, zero-shot classification and embeddings of texts with image-text models
//! - `explain`: `Explain`, maps of what an answer depends on
//! - `train`: `Trainer`, datasets, and [`verify`] of recorded training steps
//! - `parquet`: datasets and embeddings in Parquet files
//! - `remote`: checkpoints and datasets in S3, Google Cloud and Azure and on web servers
//! - `bench`: benchmarks of models, operations and loading
//!
//! Only what this crate exports is a stable surface; the crates named `vit-…` that it consists of may change with any version.

#[cfg(feature = "train")]
mod batches;
#[cfg(feature = "bench")]
pub mod bench;
mod config;
mod convert;
mod device;
mod embed;
pub mod embeddings;
mod error;
#[cfg(feature = "explain")]
pub mod explain;
pub mod export;
mod finite;
mod model;
#[cfg(feature = "text")]
pub mod text;
#[cfg(feature = "train")]
pub mod train;
mod verify;

pub use config::config_of;
pub use convert::{Conversion, convert};
pub use device::{DeviceChoice, DeviceDescription, DeviceOptions, devices, on_cpu_fallback};
pub use embed::{Embed, Pool, PooledOutput};
pub use error::Error;
#[cfg(feature = "explain")]
pub use explain::Explain;
pub use export::export;
pub use model::{Model, ModelOptions, Prediction, ensure_exists, open_checkpoint};
#[cfg(feature = "text")]
pub use text::TextEmbed;
#[cfg(feature = "train")]
pub use train::{Recipe, Trainer};
pub use verify::{Comparison, Verification, VerifyOptions, verify};
pub use vit_data::Image;
pub use vit_graph::Precision;

/// Images and datasets.
pub mod data {
    #[cfg(feature = "train")]
    pub use crate::batches::{BatchOptions, Batches, EpochBatches, in_batches};
    #[cfg(feature = "train")]
    pub use vit_data::dataset::{Dataset, DatasetError, Split, Splits};
    pub use vit_data::decode::catches_panics;
    pub use vit_data::{
        ApplyPreprocess, DecodeOptions, Image, ImageError, Preprocess, PreprocessError, Region, ShapeError, decode,
        find_images,
    };
    #[cfg(feature = "train")]
    pub use vit_data::{Augmentation, Batch, LoaderError, Samples};
}

/// Graphs and devices: what architectures are built with and run on.
pub mod graph {
    pub use vit_graph::device::{Device, Elements, Executable, Initial, Memory, Parameters, StepInfo};
    pub use vit_graph::ops::Activation;
    pub use vit_graph::{DType, Graph, GraphError, Hint, Init, Shape, Tensor, Value};
}

/// Architectures, their named variants, checkpoints and weights.
pub mod models {
    pub use vit_models::config::{Arguments, TimmForm};
    pub use vit_models::weights::safetensors::Dtype;
    pub use vit_models::weights::{Tensor, Weights, WeightsError};
    pub use vit_models::{
        Architecture, Changes, Checkpoint, Config, Configured, Dimensions, Layout, Mode, ModelError, Network,
        OpenOptions, PatchGrid, PositionLayout, Preprocess, ProblemType, TokenSequence, Variant, layers, register,
        suggestions, variant, variants,
    };
}
