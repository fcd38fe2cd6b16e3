//! Writes safetensors: tensors in the order of their names, the header padded to eight bytes, so that equal weights give
//! equal files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use half::{bf16, f16};
use serde_json::json;
use vit_system::atomic_file;

use super::FORMAT;
use crate::weights::{WeightsError, element_count};

/// The element type that a file is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// Exact.
    #[default]
    F32,
    /// Half precision; a finite value above 65504 is an error.
    F16,
    /// The upper half of an f32, rounded to nearest even.
    BF16,
}

impl Dtype {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
        }
    }

    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// The tensors to write, sorted by name, whatever the caller's order.
type Tensors<'a> = BTreeMap<&'a str, (&'a [usize], &'a [f32])>;

/// Writes tensors of (name, shape, values) to `path`, which is replaced once the new file is complete. The metadata
/// `format: pt` is added if it is missing: timm and transformers require it.
pub fn write<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (&'a str, &'a [usize], &'a [f32])>,
    dtype: Dtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightsError> {
    let write = |tensors| atomic_file::write_with(path, |out| emit(out, &tensors, dtype, metadata));
    collect(tensors).and_then(write).map_err(|error| error.in_file(path))
}

/// The bytes that [`write()`] puts in a file.
pub fn to_bytes<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a [usize], &'a [f32])>,
    dtype: Dtype,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, WeightsError> {
    let tensors = collect(tensors)?;
    let mut bytes = Vec::new();
    emit(&mut bytes, &tensors, dtype, metadata)?;
    Ok(bytes)
}

/// Writes the same bytes to any destination, in pieces; the caller must flush them to disk.
pub fn write_to<'a>(
    out: &mut impl Write,
    tensors: impl IntoIterator<Item = (&'a str, &'a [usize], &'a [f32])>,
    dtype: Dtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightsError> {
    emit(out, &collect(tensors)?, dtype, metadata)
}

fn collect<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a [usize], &'a [f32])>,
) -> Result<Tensors<'a>, WeightsError> {
    let mut by_name = Tensors::new();
    for (name, shape, values) in tensors {
        if name == "__metadata__" {
            return Err(WeightsError::tensor(name, "the name is reserved by safetensors"));
        }
        if element_count(shape) != Some(values.len()) {
            return Err(WeightsError::tensor(name, format!("{} values do not fill shape {shape:?}", values.len())));
        }
        if by_name.insert(name, (shape, values)).is_some() {
            return Err(WeightsError::Duplicate { name: name.into() });
        }
    }
    Ok(by_name)
}

fn emit(
    out: &mut impl Write,
    tensors: &Tensors,
    dtype: Dtype,
    metadata: &BTreeMap<String, String>,
) -> Result<(), WeightsError> {
    let header = header(tensors, dtype, metadata)?;
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(WeightsError::Io)?;
    out.write_all(&header).map_err(WeightsError::Io)?;
    for (name, (_, values)) in tensors {
        emit_values(out, name, values, dtype)?;
    }
    out.flush().map_err(WeightsError::Io)
}

fn header(tensors: &Tensors, dtype: Dtype, metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, WeightsError> {
    let mut metadata = metadata.clone();
    metadata.entry("format".into()).or_insert_with(|| "pt".into());
    let mut fields = serde_json::Map::new();
    fields.insert("__metadata__".into(), json!(metadata));
    let mut start = 0;
    for (&name, (shape, values)) in tensors {
        let end = start + values.len() * dtype.size();
        let entry = json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [start, end] });
        fields.insert(name.into(), entry);
        start = end;
    }
    let mut header = serde_json::to_vec(&fields).map_err(|error| WeightsError::damaged(FORMAT, error.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

fn emit_values(out: &mut impl Write, name: &str, values: &[f32], dtype: Dtype) -> Result<(), WeightsError> {
    let mut bytes = Vec::new();
    // In pieces, so that writing needs little memory.
    for piece in values.chunks(1 << 16) {
        bytes.clear();
        match dtype {
            Dtype::F32 => piece.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
            Dtype::BF16 => piece.iter().for_each(|&v| bytes.extend(bf16::from_f32(v).to_le_bytes())),
            Dtype::F16 => {
                for &value in piece {
                    let half = f16::from_f32(value);
                    if half.is_infinite() && value.is_finite() {
                        return Err(WeightsError::tensor(name, format!("{value} does not fit F16; write BF16 or F32")));
                    }
                    bytes.extend(half.to_le_bytes());
                }
            }
        }
        out.write_all(&bytes).map_err(WeightsError::Io)?;
    }
    Ok(())
}
