//! The folder for large temporary files, on a disk: `/tmp` is in memory on many systems, and this data did not fit into
//! memory.

use super::error::DatasetError;
use std::path::{Path, PathBuf};

/// Space left free for other programs.
const SPARED: u64 = 1 << 30;

/// The folder in `TMPDIR`, or else one that is usually on a disk.
pub(super) fn folder() -> Result<PathBuf, DatasetError> {
    let named = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let usual = if cfg!(unix) { Some(PathBuf::from("/var/tmp")).filter(|folder| folder.is_dir()) } else { None };
    let folder = named.or(usual).unwrap_or_else(std::env::temp_dir);
    match is_memory(&folder) {
        true => Err(DatasetError::NoDisk { folder }),
        false => Ok(folder),
    }
}

/// Whether the folder is in memory.
#[cfg(target_os = "linux")]
fn is_memory(folder: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::statfs(folder).is_ok_and(|found| [TMPFS, RAMFS].contains(&(found.f_type as u64)))
}

#[cfg(not(target_os = "linux"))]
fn is_memory(_: &Path) -> bool {
    false
}

/// Bytes that may be written there.
#[cfg(unix)]
pub(super) fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize).saturating_sub(SPARED))
}

#[cfg(not(unix))]
pub(super) fn free(_: &Path) -> Option<u64> {
    None
}
