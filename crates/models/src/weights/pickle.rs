//! Reads tensors, and only tensors, from PyTorch checkpoints, in the zip format and in the one before it. A pickle is a
//! program; here it runs on a machine that can build containers and describe tensors and can do nothing else, so an
//! unknown file is safe to open.

mod calls;
mod document;
mod globals;
mod legacy;
mod machine;
mod opcodes;
mod state_dict;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use super::element::ByteOrder;
use super::zip::Archive;
use super::{Tensor, Weights, WeightsError, element_count, read_file, strided};
use document::TensorRef;

pub(super) use legacy::is_legacy;

const FORMAT: &str = "PyTorch";

/// Reads one PyTorch checkpoint (`.pt`, `.pth`, `.bin`).
pub fn read(path: &Path) -> Result<Weights, WeightsError> {
    from_bytes(&read_file(path)?).map_err(|error| error.in_file(path))
}

/// Reads weights from the bytes of a PyTorch checkpoint.
pub fn from_bytes(bytes: &[u8]) -> Result<Weights, WeightsError> {
    if is_legacy(bytes) {
        return legacy::from_bytes(bytes);
    }
    from_archive(&Archive::open(bytes)?, bytes.len())
}

/// Whether a zip member of that name makes the archive a checkpoint.
pub(super) fn is_checkpoint_member(name: &str) -> bool {
    name == "data.pkl" || name.ends_with("/data.pkl")
}

pub(super) fn from_archive(archive: &Archive, file_length: usize) -> Result<Weights, WeightsError> {
    let Some(name) = archive.names().find(|name| is_checkpoint_member(name)) else {
        return Err(WeightsError::damaged(FORMAT, "the zip archive has no data.pkl"));
    };
    let folder = &name[..name.len() - "data.pkl".len()];
    let pickle = archive.member(name)?.unwrap_or_default();
    // PyTorch does not compress, so only a hostile file has a pickle longer than itself.
    if pickle.len() > file_length {
        return Err(WeightsError::damaged(FORMAT, format!("`{name}` is longer than the whole file")));
    }
    let order = match archive.member(&format!("{folder}byteorder"))?.as_deref() {
        None | Some(b"little") => ByteOrder::Little,
        Some(b"big") => ByteOrder::Big,
        Some(_) => {
            return Err(WeightsError::damaged(FORMAT, "byteorder is neither little nor big"));
        }
    };

    let (document, _) = machine::run(&pickle, 0)?;
    let state = state_dict::find(&document)?;
    let mut storages: HashMap<&str, Cow<[u8]>> = HashMap::new();
    for tensor in state.values() {
        let key = tensor.storage.key;
        if !storages.contains_key(key) {
            let member = format!("{folder}data/{key}");
            let bytes = archive
                .member(&member)?
                .ok_or_else(|| WeightsError::damaged(FORMAT, format!("storage `{member}` is missing")))?;
            storages.insert(key, bytes);
        }
    }
    materialise(state, &storages, order, file_length)
}

/// Turns descriptions of tensors into values.
fn materialise<'a>(
    state: state_dict::StateDict<'a, '_>,
    storages: &HashMap<&'a str, Cow<[u8]>>,
    order: ByteOrder,
    file_length: usize,
) -> Result<Weights, WeightsError> {
    // Tied weights share a storage and a stride of 0 repeats one element, so that a small file can describe huge tensors:
    // the file's length bounds their total.
    let allowed = file_length.saturating_mul(2).saturating_add(4096);
    let mut total = 0usize;
    let mut weights = Weights::default();
    for (name, tensor) in state {
        let wrong = |what: String| WeightsError::tensor(&name, what);
        let count =
            element_count(&tensor.shape).ok_or_else(|| wrong(format!("shape {:?} is impossible", tensor.shape)))?;
        total = total.saturating_add(count);
        if total > allowed {
            return Err(wrong(format!(
                "with shape {:?} the tensors hold more values than {allowed}, which a file of {file_length} bytes \
                 has no room for",
                tensor.shape
            )));
        }
        let storage = storages
            .get(tensor.storage.key)
            .ok_or_else(|| wrong(format!("storage `{}` is missing", tensor.storage.key)))?;
        let values = tensor_values(&name, tensor, storage, order)?;
        let tensor = Tensor::new(tensor.shape.clone(), values)?;
        weights.insert(name, tensor)?;
    }
    Ok(weights)
}

fn tensor_values(name: &str, tensor: &TensorRef, storage: &[u8], order: ByteOrder) -> Result<Vec<f32>, WeightsError> {
    let declared = tensor.storage.length.checked_mul(tensor.storage.element_size());
    if declared != Some(storage.len()) {
        return Err(WeightsError::tensor(
            name,
            format!(
                "its storage `{}` claims {} elements and has {} bytes",
                tensor.storage.key,
                tensor.storage.length,
                storage.len()
            ),
        ));
    }
    let size = tensor.element.size();
    let bytes = strided::gather(storage, size, tensor.offset, &tensor.shape, &tensor.strides).ok_or_else(|| {
        WeightsError::tensor(
            name,
            format!(
                "shape {:?} with strides {:?} from {} leaves its storage of {} bytes",
                tensor.shape,
                tensor.strides,
                tensor.offset,
                storage.len()
            ),
        )
    })?;
    tensor.element.decode(name, &bytes, order)
}
