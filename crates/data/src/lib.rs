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
//!
//! # Features
//!
//! - `datasets`: datasets, augmentation and the loader
//! - `parquet`, `remote`: datasets in Parquet files, and in buckets and on web servers
//! - `text`: tokenisers of image-text models

#[cfg(feature = "datasets")]
pub mod augment;
#[cfg(feature = "datasets")]
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub mod dataset;
pub mod decode;
pub mod files;
#[cfg(feature = "datasets")]
mod formula;
pub mod image;
#[cfg(feature = "datasets")]
pub mod loader;
#[cfg(feature = "datasets")]
pub mod mix;
mod objects;
#[cfg(feature = "datasets")]
pub mod pipeline;
pub mod preprocess;
pub mod resize;
#[cfg(feature = "datasets")]
pub mod samples;
#[cfg(feature = "text")]
pub mod tokenise;
#[cfg(feature = "datasets")]
pub mod transform;

#[cfg(feature = "datasets")]
pub use dataset::{Dataset, DatasetError};
pub use decode::{DecodeOptions, ImageError, ImageFormat, decode, open};
pub use files::{FilesError, find_images, find_images_each};
pub use image::{Image, ShapeError};
#[cfg(feature = "datasets")]
pub use loader::{Batch, BatchPosition, LastBatch, Loader, LoaderError, LoaderSettings};
#[cfg(feature = "datasets")]
pub use mix::{Mix, Mixing};
#[cfg(feature = "datasets")]
pub use pipeline::Pipeline;
pub use preprocess::{ApplyPreprocess, CropMode, CropRule, Preprocess, PreprocessError, Region, Resizer};
pub use resize::{Filter, ResizeError, UnknownFilter, resize, resize_box};
#[cfg(feature = "datasets")]
pub use samples::Samples;
#[cfg(feature = "datasets")]
pub use transform::{Augmentation, Crop, TrainTransform, TransformError};
