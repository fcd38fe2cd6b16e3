//! Images and datasets for vision models: decoding, resizing, the preprocessing of a model, augmentation, mixing,
//! datasets of many formats, and the loader that makes batches. Results agree with Pillow, torchvision and timm, with
//! which published models were trained.
//!
//! ```
//! use vit_data::{ApplyPreprocess, Image, Preprocess};
//!
//! // From a file: vit_data::open(Path::new("cat.jpg"), &DecodeOptions::default())?
//! let image = Image::from_rgb(2, 2, vec![128; 12])?;
//! let input = Preprocess::default().apply(&image)?;
//! assert_eq!(input.len(), 3 * 224 * 224);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Input files may be hostile: formats are recognised by content, sizes are checked before memory is allocated, and a
//! broken file is an error, never a panic.

pub mod augment;
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub mod dataset;
pub mod decode;
pub mod files;
mod formula;
pub mod image;
pub mod loader;
pub mod mix;
mod objects;
pub mod pipeline;
pub mod preprocess;
pub mod resize;
pub mod samples;
pub mod tokenise;
pub mod transform;

pub use dataset::{Dataset, DatasetError};
pub use decode::{DecodeOptions, ImageError, ImageFormat, decode, open};
pub use files::{FilesError, find_images, find_images_each};
pub use image::{Image, ShapeError};
pub use loader::{Batch, BatchPosition, LastBatch, Loader, LoaderError, LoaderSettings};
pub use mix::{Mix, Mixing};
pub use pipeline::Pipeline;
pub use preprocess::{ApplyPreprocess, CropMode, CropRule, Preprocess, PreprocessError, Region, Resizer};
pub use resize::{Filter, ResizeError, UnknownFilter, resize, resize_box};
pub use samples::Samples;
pub use transform::{Augmentation, Crop, TrainTransform, TransformError};
