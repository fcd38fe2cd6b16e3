//! Errors of saving and opening checkpoints.

use std::io;
use std::path::{Path, PathBuf};

use vit_graph::GraphError;
use vit_models::weights::WeightsError;

/// An error with a checkpoint of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// A file operation failed, such as on a full disk.
    #[error("could not save {}: {error}; what was saved before is untouched{}", path.display(), way_out(.error))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// Invalid tensors.
    #[error("could not save {}: {error}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        error: WeightsError,
    },
    /// A position that cannot be written as JSON.
    #[error("could not save {}: {what}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The state could not be read from the device.
    #[error(transparent)]
    Device(#[from] GraphError),
    /// No checkpoint is complete.
    #[error("there is no whole checkpoint at {}: {}", path.display(), notes.join("; "))]
    NoneWhole {
        /// The checkpoint's path.
        path: PathBuf,
        /// What is wrong with each candidate.
        notes: Vec<String>,
    },
}

impl SaveError {
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.into(), error }
    }

    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { error, .. } if is_full(error))
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn way_out(error: &io::Error) -> &'static str {
    if is_full(error) { " (make room, then resume)" } else { "" }
}
