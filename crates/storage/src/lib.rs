//! Files on this machine and objects in a bucket behind one interface. A path that is a URL (`s3://bucket/key`,
//! `gs://`, `az://`, `https://`) names an object; every other path is a local file. Nothing uses the network unless a
//! path is a URL.
//!
//! ```
//! use std::path::Path;
//!
//! assert!(vit_storage::is_url(Path::new("s3://bucket/photos")));
//! assert!(!vit_storage::is_url(Path::new("photos")));
//! ```
//!
//! Objects are read by ranges. Requests are repeated after errors of the server and of the network, a body that was cut
//! continues where it ended, and an object that changes between two reads is an error. [`announce`] starts reads ahead
//! of their use; [`use_cache`] keeps what was read on disk.

mod cache;
mod error;
mod file;
mod local_copy;
mod location;
#[cfg(feature = "remote")]
mod remote;
#[cfg(not(feature = "remote"))]
#[path = "no_remote.rs"]
mod remote;
mod snapshot;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vit_system::regular_file;

pub use cache::use_cache;
pub use error::StorageError;
pub use file::{StoredFile, WindowedFile, read_range};
pub use local_copy::LocalCopy;
pub use location::{absolute, expand_braces, is_url};
pub use snapshot::{MirroredFolder, SnapshotSelection};

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A file or object.
    File,
    /// A folder, or objects whose names begin with the path.
    Folder,
}

/// An object below a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Its name after the URL, with `/` as separator.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Bytes of a file or object that will be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The file or object.
    pub path: PathBuf,
    /// Offset and length; `None` for all of it.
    pub range: Option<(u64, u64)>,
}

/// What `path` names; an error if there is neither a file nor a folder.
pub fn kind(path: &Path) -> io::Result<PathKind> {
    if is_url(path) {
        return Ok(remote::kind(path)?);
    }
    Ok(if fs::metadata(path)?.is_dir() { PathKind::Folder } else { PathKind::File })
}

/// Whether there is a file or object at `path`.
pub fn is_file(path: &Path) -> bool {
    if is_url(path) { remote::size(path).is_ok() } else { path.is_file() }
}

/// The size of a file or object in bytes.
pub fn size(path: &Path) -> io::Result<u64> {
    if is_url(path) { Ok(remote::size(path)?) } else { Ok(fs::metadata(path)?.len()) }
}

/// The content of a file or object.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    if is_url(path) { Ok(remote::read(path, None)?) } else { regular_file::read(path) }
}

/// All objects below a URL, in the order of their names.
pub fn list(url: &Path) -> io::Result<Vec<ListedObject>> {
    Ok(remote::list(url)?)
}

/// Starts reading objects ahead of their use, in this order, several at a time and within a limit of memory. Reads of
/// exactly these extents then take the result. Without effect on local files, which the system reads ahead.
pub fn announce(extents: Vec<Extent>) {
    if extents.iter().any(|extent| is_url(&extent.path)) {
        remote::announce(extents);
    }
}
