//! Embeddings in files that other programs read: NumPy, safetensors, Parquet.

#[cfg(feature = "parquet")]
mod parquet;

use std::collections::BTreeMap;
use std::path::Path;

use vit_models::weights::safetensors;
use vit_system::{atomic_file, npy};

use crate::Error;

/// The file formats, by their endings. Parquet needs the feature `parquet`.
pub const ENDINGS: [&str; 3] = ["npy", "safetensors", "parquet"];

/// Writes the embeddings of some files, each of `shape`, one after another in `values`. The ending decides the format:
/// `.npy` (the names of the files are in `.files.txt` beside it), `.safetensors` (names in its metadata), or `.parquet` (a
/// row per file with its name). The file is written whole or not at all.
pub fn write(path: &Path, files: &[String], shape: &[usize], values: &[f32]) -> Result<(), Error> {
    let failed = |reason: String| Error::file(path, reason);
    let each: usize = shape.iter().product();
    if files.len() * each != values.len() {
        return Err(failed(format!("{} files of {shape:?} are not {} values", files.len(), values.len())));
    }
    let whole: Vec<usize> = std::iter::once(files.len()).chain(shape.iter().copied()).collect();
    match path.extension().and_then(|e| e.to_str()) {
        Some("npy") => {
            npy::write(path, &whole, values).map_err(|e| failed(e.to_string()))?;
            let names = path.with_extension("files.txt");
            write_names(&names, files).map_err(|error| Error::file(names, error))
        }
        Some("safetensors") => {
            let names = serde_json::to_string(files).map_err(|e| failed(e.to_string()))?;
            let metadata = BTreeMap::from([("files".to_string(), names)]);
            let tensors = [("embeddings", whole.as_slice(), values)];
            Ok(safetensors::write(path, tensors, safetensors::Dtype::F32, &metadata)?)
        }
        #[cfg(feature = "parquet")]
        Some("parquet") => {
            let write = |out: &mut _| parquet::write(out, files, each, values);
            atomic_file::write_with(path, write).map_err(|e| failed(e.to_string()))
        }
        _ => Err(failed(format!("the ending should be .{}", ENDINGS.join(", .")))),
    }
}

/// One line per row; line breaks in names are escaped.
fn write_names(path: &Path, files: &[String]) -> std::io::Result<()> {
    let lines: String = files.iter().map(|f| f.replace('\r', "\\r").replace('\n', "\\n") + "\n").collect();
    atomic_file::write(path, lines)
}
