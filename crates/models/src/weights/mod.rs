//! Weights in and out of files. Every published format is read into one map of named `f32` tensors, and the names of
//! every library are mapped onto timm's, which are the canonical ones here. Files are data: nothing in them is ever
//! executed, and nothing is allocated that the length of the file does not justify.
//!
//! ```no_run
//! # fn main() -> Result<(), vit_models::weights::WeightsError> {
//! use vit_models::weights::{self, names};
//!
//! let weights = weights::read("vit_b16.npz".as_ref())?;
//! let (weights, scheme) = names::canonical(weights)?;
//! println!("{scheme:?}: {} tensors", weights.tensors.len());
//! # Ok(()) }
//! ```

mod element;
mod error;
pub mod names;
pub mod npz;
pub mod patch_filters;
pub mod pickle;
pub mod positions;
pub mod relative;
pub mod safetensors;
mod strided;
mod zip;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use vit_system::regular_file;

pub use error::WeightsError;
pub use names::{Scheme, canonical};
use vit_system::host::{self, FreeMemory};

/// A named array's shape and values, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Length of every axis, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The values, as many as the product of `shape`.
    pub data: Vec<f32>,
}

impl Tensor {
    /// A tensor whose number of values is checked against its shape.
    pub fn new(shape: Vec<usize>, data: Vec<f32>) -> Result<Self, WeightsError> {
        match element_count(&shape) {
            Some(count) if count == data.len() => Ok(Self { shape, data }),
            _ => Err(WeightsError::Count { shape, found: data.len() }),
        }
    }
}

/// The content of a weights file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    /// The tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Free text (`__metadata__` of safetensors; empty in other formats).
    pub metadata: BTreeMap<String, String>,
}

impl Weights {
    /// The tensor of that name, or an error that names it.
    pub fn get(&self, name: &str) -> Result<&Tensor, WeightsError> {
        self.tensors.get(name).ok_or_else(|| WeightsError::Missing { name: name.into() })
    }

    /// Removes and returns the tensor of that name, or an error that names it.
    pub fn take(&mut self, name: &str) -> Result<Tensor, WeightsError> {
        self.tensors.remove(name).ok_or_else(|| WeightsError::Missing { name: name.into() })
    }

    /// Every tensor, under another name where `names` has one.
    pub fn renamed(&self, names: impl Fn(&str) -> Option<String>) -> Vec<(Cow<'_, str>, &Tensor)> {
        let new = |name| names(name).map_or(Cow::Borrowed(name), Cow::Owned);
        self.tensors.iter().map(|(name, tensor)| (new(name.as_str()), tensor)).collect()
    }

    /// Name, shape and values of every tensor, as [`safetensors::write`] takes them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), &tensor.shape[..], &tensor.data[..]))
    }

    /// Adds a tensor; a second one of the same name is an error, so that no mapping silently loses one.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> Result<(), WeightsError> {
        let name = name.into();
        if self.tensors.contains_key(&name) {
            return Err(WeightsError::Duplicate { name });
        }
        self.tensors.insert(name, tensor);
        Ok(())
    }
}

/// Reads a weights file, its format chosen by content: safetensors, a safetensors index of shards, a PyTorch
/// checkpoint (zip or legacy), or an npz archive.
pub fn read(path: &Path) -> Result<Weights, WeightsError> {
    if is_safetensors(&first_bytes(path)?) {
        return safetensors::read(path);
    }
    // The archive's bytes and its f32 tensors are in memory together.
    let length = std::fs::metadata(path).map_or(0, |file| file.len());
    ensure_room(length.saturating_mul(2), host::free_memory()).map_err(|error| error.in_file(path))?;
    let bytes = read_file(path)?;
    if is_index(&bytes) {
        return safetensors::read_index(path);
    }
    from_bytes(&bytes).map_err(|error| error.in_file(path))
}

/// Reads weights from the bytes of one file, its format chosen by content as [`read`] does.
pub fn from_bytes(bytes: &[u8]) -> Result<Weights, WeightsError> {
    if bytes.starts_with(b"PK") {
        let archive = zip::Archive::open(bytes)?;
        if archive.names().any(pickle::is_checkpoint_member) {
            return pickle::from_archive(&archive, bytes.len());
        }
        return npz::from_archive(&archive);
    }
    if pickle::is_legacy(bytes) {
        return pickle::from_bytes(bytes);
    }
    if is_safetensors(bytes) {
        return safetensors::from_bytes(bytes);
    }
    Err(WeightsError::UnknownFormat { guess: likely_format(bytes) })
}

/// The likely format of an unsupported file by its first bytes, and what to do about it.
fn likely_format(bytes: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 7] = [
        (b"version https://git-lfs", "it is a Git LFS pointer, not the file itself: run `git lfs pull`"),
        (b"\x93NUMPY", "it is one array (.npy): save the named arrays with numpy.savez"),
        (b"\x89HDF", "it is HDF5 (Keras): convert it to safetensors first"),
        (b"\x1f\x8b", "it is gzip: decompress it first"),
        (b"<", "it looks like a web page: the download did not give the file itself"),
        (b"\x80", "it is a pickle but not a PyTorch checkpoint: re-save the state dict with torch.save"),
        (b"", "expected safetensors, a PyTorch checkpoint or npz"),
    ];
    if bytes.is_empty() {
        return "it is empty";
    }
    KNOWN.iter().find(|(start, _)| bytes.starts_with(start)).map_or("", |(_, guess)| guess)
}

/// A JSON object at the very start can only be an index of shards: safetensors starts with a length.
fn is_index(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{") && bytes.get(8) != Some(&b'{')
}

/// A header's length, then a header in JSON.
fn is_safetensors(bytes: &[u8]) -> bool {
    bytes.get(8) == Some(&b'{') && !bytes.starts_with(b"PK") && !pickle::is_legacy(bytes)
}

/// As many bytes as distinguish the formats.
fn first_bytes(path: &Path) -> Result<Vec<u8>, WeightsError> {
    let mut bytes = Vec::new();
    let read = regular_file::open(path).and_then(|file| file.take(64).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| WeightsError::Io(error).in_file(path))
}

/// Refuses weights that do not fit into free memory, before they are read.
fn ensure_room(needed: u64, room: Option<FreeMemory>) -> Result<(), WeightsError> {
    match room {
        Some(room) if needed > room.free => Err(WeightsError::Memory { needed, room }),
        _ => Ok(()),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, WeightsError> {
    regular_file::read(path).map_err(|error| WeightsError::Io(error).in_file(path))
}

/// The product of a shape; `None` if it overflows. An axis of length 0 does not hide an overflow of the others, so in a
/// shape that passes every partial product fits.
fn element_count(shape: &[usize]) -> Option<usize> {
    let product = shape.iter().try_fold(1usize, |product, &axis| product.checked_mul(axis.max(1)))?;
    Some(if shape.contains(&0) { 0 } else { product })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_system::host::MemoryLimit;

    #[test]
    fn weights_larger_than_memory_are_refused_before_they_are_read() {
        let room = Some(FreeMemory { free: 1_000_000_000, total: 2_000_000_000, limit: MemoryLimit::Machine });
        let error = ensure_room(1_200_000_000, room).unwrap_err().in_file("a.npz".as_ref()).to_string();
        assert_eq!(error, "a.npz: its weights need 1.20 GB of memory, and 1.00 of this machine's 2.00 GB are free");
        assert!(ensure_room(1_000_000_000, room).is_ok() && ensure_room(u64::MAX, None).is_ok());
    }

    #[test]
    fn an_empty_axis_hides_no_overflow() {
        assert_eq!(element_count(&[]), Some(1));
        assert_eq!(element_count(&[2, 0, 3]), Some(0));
        assert_eq!(element_count(&[0, usize::MAX, 2]), None);
        assert_eq!(element_count(&[usize::MAX, 2, 0]), None);
    }
}
