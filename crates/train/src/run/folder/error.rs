//! Errors of run folders.

use std::io;
use std::path::{Path, PathBuf};

/// An error with a run folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A file operation failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// A new run in the folder of another.
    #[error("{} already holds a run; resume it, replace it, or choose another folder", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// There is no run.
    #[error("{} is not a run folder: it has no config.toml", path.display())]
    NotARun {
        /// The folder.
        path: PathBuf,
    },
    /// Another process trains into the folder.
    #[error("another process is training into {}; wait for it or choose another folder", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// A metric with a reserved name.
    #[error("a measurement cannot be named `{name}`: every row has that column already")]
    Reserved {
        /// The name.
        name: String,
    },
}

impl RunError {
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.into(), error }
    }
}
