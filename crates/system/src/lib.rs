//! The machine a process runs on and its files: free memory, files that are safe to open, files that are written
//! whole or not at all, NumPy's arrays, lines of CSV, hashes, and the cache folder. It depends on no other crate of the
//! workspace.
//!
//! ```
//! use vit_system::{atomic_file, regular_file};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("labels.txt");
//! atomic_file::write(&path, "cat\ndog\n")?;
//! assert_eq!(regular_file::read_to_string(&path)?, "cat\ndog\n");
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod atomic_file;
mod csv_line;
pub mod hash;
pub mod host;
pub mod npy;
pub mod regular_file;

use std::path::PathBuf;

pub use csv_line::csv_line;

/// The folder for files that this program can make again: `vit` in the platform's cache folder (`XDG_CACHE_HOME` or
/// `~/.cache` on Linux). `None` where the user has no home.
pub fn cache_folder() -> Option<PathBuf> {
    directories::BaseDirs::new().map(|base| base.cache_dir().join("vit"))
}
