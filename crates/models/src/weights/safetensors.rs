//! Reads and writes safetensors, also split into shards with an index. The header is checked before any tensor is read:
//! tensors must cover the data exactly, without overlap or gap, and match their shapes. Equal weights are written as equal
//! bytes.

mod header;
mod write;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use vit_system::regular_file;

use super::element::ByteOrder;
use super::{Tensor, Weights, WeightsError, element_count, ensure_room, host, read_file};
pub use write::{Dtype, to_bytes, write, write_to};

const FORMAT: &str = "safetensors";

/// Reads one safetensors file, tensor by tensor, so that at most one of them is in memory twice.
pub fn read(path: &Path) -> Result<Weights, WeightsError> {
    read_tensors(path).map_err(|error| error.in_file(path))
}

fn read_tensors(path: &Path) -> Result<Weights, WeightsError> {
    let mut file = regular_file::open(path).map_err(WeightsError::Io)?;
    let length = usize::try_from(file.metadata().map_err(WeightsError::Io)?.len()).unwrap_or(usize::MAX);
    let mut first = [0; 8];
    let Some(rest) = length.checked_sub(first.len()) else {
        return Err(WeightsError::damaged(FORMAT, format!("{length} bytes, too short for a header")));
    };
    file.read_exact(&mut first).map_err(WeightsError::Io)?;
    let mut json = vec![0; header::json_length(first, rest)?];
    file.read_exact(&mut json).map_err(WeightsError::Io)?;
    let header = header::check_json(&json, rest - json.len())?;

    // The tensors cover the data without a gap, so reading them by offset needs no seeking.
    let mut entries: Vec<_> = header.tensors.into_iter().collect();
    entries.sort_by_key(|(_, entry)| (entry.start, entry.end));
    let elements = entries.iter().filter_map(|(_, entry)| element_count(&entry.shape)).map(|count| count as u64);
    let largest = entries.iter().map(|(_, entry)| (entry.end - entry.start) as u64).max().unwrap_or(0);
    ensure_room(4 * elements.sum::<u64>() + largest, host::free_memory())?;
    let mut weights = Weights { metadata: header.metadata, ..Weights::default() };
    let mut bytes = Vec::new();
    for (name, entry) in entries {
        bytes.resize(entry.end - entry.start, 0);
        file.read_exact(&mut bytes).map_err(WeightsError::Io)?;
        let values = entry.element.decode(&name, &bytes, ByteOrder::Little)?;
        weights.tensors.insert(name, Tensor::new(entry.shape, values)?);
    }
    Ok(weights)
}

/// Reads weights from the bytes of a safetensors file.
pub fn from_bytes(bytes: &[u8]) -> Result<Weights, WeightsError> {
    let (header, data) = header::parse(bytes)?;
    let mut weights = Weights { metadata: header.metadata, ..Weights::default() };
    for (name, entry) in header.tensors {
        let values = entry.element.decode(&name, &data[entry.start..entry.end], ByteOrder::Little)?;
        weights.tensors.insert(name, Tensor::new(entry.shape, values)?);
    }
    Ok(weights)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Reads a checkpoint split into shards, from its index (`model.safetensors.index.json`) with the shards beside it.
pub fn read_index(path: &Path) -> Result<Weights, WeightsError> {
    read_shards(path).map_err(|error| error.in_file(path))
}

fn read_shards(path: &Path) -> Result<Weights, WeightsError> {
    let damaged = |what: String| WeightsError::damaged("safetensors index", what);
    let index: Index = serde_json::from_slice(&read_file(path)?)
        .map_err(|error| damaged(format!("{error}; expected {{\"weight_map\": …}}")))?;

    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, shard) in &index.weight_map {
        // A path would let a downloaded index read any file.
        if shard.is_empty() || shard.contains(['/', '\\', ':']) || shard == ".." || shard == "." {
            return Err(damaged(format!("shard `{shard}` is not a plain file name")));
        }
        shards.entry(shard).or_default().push(name);
    }

    let folder = path.parent().unwrap_or(Path::new(""));
    let mut weights = Weights::default();
    for (shard, names) in shards {
        let file = folder.join(shard);
        let mut part = read(&file)?;
        for name in names {
            let tensor = part.take(name).map_err(|error| error.in_file(&file))?;
            weights.insert(name, tensor)?;
        }
        weights.metadata.extend(part.metadata);
    }
    Ok(weights)
}
