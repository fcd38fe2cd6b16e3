//! Reads NumPy's npz archives, the format of Google's vision_transformer and big_vision checkpoints. Numeric arrays are
//! read, in C or Fortran order; object arrays, which are pickles, are refused.

mod npy;

use std::path::Path;

use super::zip::Archive;
use super::{Weights, WeightsError, read_file};

/// Reads one npz file.
pub fn read(path: &Path) -> Result<Weights, WeightsError> {
    from_bytes(&read_file(path)?).map_err(|error| error.in_file(path))
}

/// Reads weights from the bytes of an npz file.
pub fn from_bytes(bytes: &[u8]) -> Result<Weights, WeightsError> {
    from_archive(&Archive::open(bytes)?)
}

pub(super) fn from_archive(archive: &Archive) -> Result<Weights, WeightsError> {
    let mut weights = Weights::default();
    for member in archive.names() {
        let Some(name) = member.strip_suffix(".npy") else {
            continue;
        };
        if is_optimiser_state(name) {
            continue;
        }
        if let Some(content) = archive.member(member)? {
            weights.insert(name, npy::parse(name, &content)?)?;
        }
    }
    if weights.tensors.is_empty() {
        return Err(WeightsError::unsupported(
            "npz",
            "the zip archive holds no arrays (.npy) and no PyTorch checkpoint (data.pkl)",
        ));
    }
    Ok(weights)
}

/// big_vision's files hold the optimiser's moments, twice the size of the parameters. In its oldest files the parameters are
/// under `opt/target`.
fn is_optimiser_state(name: &str) -> bool {
    name.starts_with("opt/") && !name.starts_with("opt/target/")
}
