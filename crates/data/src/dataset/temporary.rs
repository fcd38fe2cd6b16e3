//! Where large temporary files go: onto a disk. `/tmp` is memory on many systems, and what is written there because it does
//! not fit into memory would fill it after all.

use super::error::DatasetError;
use std::path::{Path, PathBuf};

/// Space that stays free for others.
const SPARED: u64 = 1 << 30;

/// The folder for temporary files that the user has named (`TMPDIR`), or else one that is kept on a disk.
pub(super) fn folder() -> Result<PathBuf, DatasetError> {
    let named = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let usual = if cfg!(unix) { Some(PathBuf::from("/var/tmp")).filter(|folder| folder.is_dir()) } else { None };
    let folder = named.or(usual).unwrap_or_else(std::env::temp_dir);
    match is_memory(&folder) {
        true => Err(DatasetError::NoDisk { folder }),
        false => Ok(folder),
    }
}

/// Whether what is written there stays in memory.
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
