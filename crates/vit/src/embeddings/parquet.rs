//! Embeddings as a Parquet table of two columns: `file`, and `embedding` as a list of floats.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, FloatType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

/// Writes one row per file, each with `each` of the values.
pub(super) fn write(out: impl Write + Send, files: &[String], each: usize, values: &[f32]) -> io::Result<()> {
    write_columns(out, files, each, values).map_err(|error| match error {
        // The system's error, where Parquet only passes it on.
        ParquetError::External(cause) => match cause.downcast() {
            Ok(system) => *system,
            Err(other) => io::Error::other(other),
        },
        own => io::Error::other(own),
    })
}

fn write_columns(out: impl Write + Send, files: &[String], each: usize, values: &[f32]) -> Result<(), ParquetError> {
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
