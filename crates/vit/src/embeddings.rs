//! Embeddings in files that other programs read: NumPy, safetensors, Parquet.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, FloatType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use vit_models::weights::{npy, safetensors};
use vit_system::atomic_file;

use crate::Error;

/// The file formats, by their endings.
pub const ENDINGS: [&str; 3] = ["npy", "safetensors", "parquet"];

/// Writes the embeddings of some files, each of `shape`, one after another in `values`. The ending decides the format:
/// `.npy` (with the files' names beside it in `.files.txt`), `.safetensors` (names in its metadata), or `.parquet` (a
/// row per file with its name). The file is complete before it takes its name.
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
        Some("parquet") => {
            let write = |out: &mut _| write_parquet(out, files, each, values).map_err(cause);
            atomic_file::write_with(path, write).map_err(|e| failed(e.to_string()))
        }
        _ => Err(failed(format!("the ending should be .{}", ENDINGS.join(", .")))),
    }
}

/// What the system said, where Parquet only passes it on.
fn cause(error: ParquetError) -> std::io::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast() {
            Ok(system) => *system,
            Err(other) => std::io::Error::other(other),
        },
        own => std::io::Error::other(own),
    }
}

/// One line per row, also where a name holds a line's end.
fn write_names(path: &Path, files: &[String]) -> std::io::Result<()> {
    let lines: String = files.iter().map(|f| f.replace('\r', "\\r").replace('\n', "\\n") + "\n").collect();
    atomic_file::write(path, lines)
}

/// Two columns: `file`, and `embedding` as a list of floats.
fn write_parquet(out: impl Write + Send, files: &[String], each: usize, values: &[f32]) -> parquet::errors::Result<()> {
    let file = Type::primitive_type_builder("file", Physical::BYTE_ARRAY)
        .with_repetition(Repetition::REQUIRED)
        .with_converted_type(ConvertedType::UTF8)
        .build()?;
    let element =
        Type::primitive_type_builder("element", Physical::FLOAT).with_repetition(Repetition::REQUIRED).build()?;
    let list = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(element)])
        .build()?;
    let embedding = Type::group_type_builder("embedding")
        .with_repetition(Repetition::REQUIRED)
        .with_converted_type(ConvertedType::LIST)
        .with_fields(vec![Arc::new(list)])
        .build()?;
    let schema = Type::group_type_builder("schema").with_fields(vec![Arc::new(file), Arc::new(embedding)]).build()?;
    let properties = WriterProperties::builder().set_compression(Compression::UNCOMPRESSED).build();
    let mut writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
    let mut rows = writer.next_row_group()?;
    if let Some(mut column) = rows.next_column()? {
        let names: Vec<ByteArray> = files.iter().map(|f| ByteArray::from(f.as_str())).collect();
        column.typed::<ByteArrayType>().write_batch(&names, None, None)?;
        column.close()?;
    }
    if let Some(mut column) = rows.next_column()? {
        // A list's first element starts a new row (repetition 0), the others continue it; none is absent.
        let repetition: Vec<i16> = (0..values.len()).map(|i| i16::from(i % each.max(1) != 0)).collect();
        let definition = vec![1; values.len()];
        column.typed::<FloatType>().write_batch(values, Some(&definition), Some(&repetition))?;
        column.close()?;
    }
    rows.close()?;
    writer.close()?;
    Ok(())
}
