//! Files that make the next start faster: compiled kernels and chosen algorithms, in the user's cache folder.
//!
//! A file that is missing, damaged or written by another program is ignored.

use vit_system::hash::fingerprint;
use vit_system::{atomic_file, cache_folder};

/// Hexadecimal digits of a fingerprint, which ends every cached file.
const CHECKSUM: usize = 32;

/// The content of a cached file, if its checksum agrees.
pub(crate) fn read(name: &str) -> Option<Vec<u8>> {
    let mut content = std::fs::read(cache_folder()?.join(name)).ok()?;
    let checksum = content.split_off(content.len().checked_sub(CHECKSUM)?);
    (fingerprint(&[&content]).as_bytes() == checksum).then_some(content)
}

/// Writes a file for later processes. A cache that cannot be written is no error.
pub(crate) fn write(name: &str, content: &[u8]) {
    let Some(folder) = cache_folder() else { return };
    let checked = [content, fingerprint(&[content]).as_bytes()].concat();
    let _ = std::fs::create_dir_all(&folder).and_then(|()| atomic_file::write(&folder.join(name), checked));
}
