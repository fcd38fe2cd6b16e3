//! In place of remote storage, where the program is built without it.

use std::path::Path;

use crate::error::StorageError;
use crate::snapshot::ObjectVersion;
use crate::{Extent, ListedObject, PathKind};

pub(crate) fn kind(_: &Path) -> Result<PathKind, StorageError> {
    Err(StorageError::NotBuilt)
}

pub(crate) fn size(_: &Path) -> Result<u64, StorageError> {
    Err(StorageError::NotBuilt)
}

pub(crate) fn read(_: &Path, _: Option<(u64, u64)>) -> Result<Vec<u8>, StorageError> {
    Err(StorageError::NotBuilt)
}

pub(crate) fn list(_: &Path) -> Result<Vec<ListedObject>, StorageError> {
    Err(StorageError::NotBuilt)
}

pub(crate) fn announce(_: Vec<Extent>) {}

pub(crate) fn upload(_: &Path, _: &Path) -> Result<(), StorageError> {
    Err(StorageError::NotBuilt)
}

pub(crate) fn download(_: &Path, _: &Path) -> Result<(), StorageError> {
    Err(StorageError::NotBuilt)
}

pub(crate) fn replace(_: &Path, _: Vec<u8>, _: Option<ObjectVersion>) -> Result<ObjectVersion, StorageError> {
    Err(StorageError::NotBuilt)
}

pub(crate) fn read_versioned(_: &Path) -> Result<(Vec<u8>, ObjectVersion), StorageError> {
    Err(StorageError::NotBuilt)
}

pub(crate) fn remove(_: &[std::path::PathBuf]) -> Result<(), StorageError> {
    Err(StorageError::NotBuilt)
}
