//! Why training state could not be saved or opened.

use std::io;
use std::path::{Path, PathBuf};

use vit_models::weights::WeightsError;

/// An error with a checkpoint of a run.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The system refused: a full disk, a missing permission.
    #[error("could not save {}: {error}; what was saved before is untouched{}", path.display(), way_out(.error))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// Tensors that cannot be written.
    #[error("could not save {}: {error}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        error: WeightsError,
    },
    /// A position that would not come back as it is.
    #[error("could not save {}: {what}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// No checkpoint here is whole.
    #[error("there is no whole checkpoint at {}: {}", path.display(), notes.join("; "))]
    NoneWhole {
        /// Where one was looked for.
        path: PathBuf,
        /// What is wrong with each that is there.
        notes: Vec<String>,
    },
}

impl SaveError {
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.into(), error }
    }

    /// Whether there was no room.
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
