//! One error for everything that this crate does.

use std::io;
use std::path::{Path, PathBuf};

use crate::VectorType;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// A folder that is no index.
    #[error("{}: this is no search index{}", path.display(), if *missing { "; there is no such folder" } else { "" })]
    NotAnIndex {
        /// The folder.
        path: PathBuf,
        /// Whether it does not exist.
        missing: bool,
    },
    /// A folder with other files, in which no index is begun.
    #[error("{}: this folder holds other files and no search index", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
    /// An index in which another process writes.
    #[error("{}: another process is writing this index", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// An index of another model's vectors.
    #[error("{}: {}", path.display(), other_model(indexed, given))]
    OtherModel {
        /// The index.
        path: PathBuf,
        /// The model of the index.
        indexed: PathBuf,
        /// The model that was given.
        given: PathBuf,
    },
    /// An index of another folder, which still exists.
    #[error("{}: this index is of the files in {}, not of those in {}", path.display(), indexed.display(), given.display())]
    OtherFiles {
        /// The index.
        path: PathBuf,
        /// The folder of the index.
        indexed: PathBuf,
        /// The folder that was given.
        given: PathBuf,
    },
    /// An index of vectors in another form.
    #[error("{}: this index stores its vectors as {indexed}, not as {given}", path.display())]
    OtherVectors {
        /// The index.
        path: PathBuf,
        /// The type of the index.
        indexed: VectorType,
        /// The type that was given.
        given: VectorType,
    },
    /// A vector of another length than those of the index.
    #[error("a vector of {found} elements, where those of the index have {expected}")]
    Dimension {
        /// Its elements.
        found: usize,
        /// Elements of the index's vectors.
        expected: usize,
    },
    /// A vector without a direction.
    #[error("a vector that is zero or not finite has no direction to compare")]
    NoDirection,
    /// A file of the index that is not as it was written.
    #[error("{}: {what}; remove the index and make it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file that cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

fn other_model(indexed: &Path, given: &Path) -> String {
    match indexed == given {
        true => format!("this index was made with other weights or another image size of {}", given.display()),
        false => format!("this index was made with the model {}, not with {}", indexed.display(), given.display()),
    }
}

impl SearchError {
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> SearchError {
        move |error| SearchError::File { path: path.into(), error }
    }

    pub(crate) fn damaged(path: &Path, what: impl ToString) -> SearchError {
        SearchError::Damaged { path: path.into(), what: what.to_string() }
    }
}
