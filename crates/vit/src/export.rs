//! Models as ONNX files, compared with this library in the runtimes that are installed.

mod compare;

use std::path::Path;

use vit_models::Checkpoint;
pub use vit_models::onnx::{
    Exported, OnnxError, Options as ExportOptions, Precision as ExportPrecision, Tower as ExportTower,
};

pub use compare::{CheckInput, RuntimeResult, compare_runtimes};

use crate::Error;

/// Writes a model as an ONNX file, with a batch of any size.
///
/// ```
/// use vit::export::{ExportOptions, export};
/// use vit::models::{Checkpoint, OpenOptions};
///
/// let folder = tempfile::tempdir()?;
/// let checkpoint = Checkpoint::open("cifar10".as_ref(), OpenOptions::default())?;
/// let file = folder.path().join("cifar10.onnx");
/// let exported = export(checkpoint, &file, ExportOptions::default())?;
/// assert_eq!((exported.input, exported.output), ("pixel_values", "logits"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export(checkpoint: Checkpoint, path: &Path, options: ExportOptions) -> Result<Exported, Error> {
    vit_models::onnx::export(checkpoint, path, options).map_err(|error| match error {
        OnnxError::NoTextTower => Error::NoTextTower,
        other => other.into(),
    })
}
