//! Everything that can be wrong with a dataset, each in one sentence that names the place and the way out.

use super::split::Split;
use crate::files::FilesError;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a dataset could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The name given leads nowhere.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file or folder that cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why that failed.
        error: io::Error,
    },
    /// None of the formats.
    #[error(
        "{}: not a dataset that vit can read ({reason}); it reads class folders, tar shards, Parquet, CSV, TSV or JSONL \
         manifests, CIFAR binaries and IDX files", path.display()
    )]
    Unrecognised {
        /// The file or folder.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// A file that contradicts its format.
    #[error("{}: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
    /// More bytes to unpack than allowed.
    #[error(
        "{}: unpacks to more than the {limit} bytes that may be written to {}; set TMPDIR to a folder on a disk with more \
         space, or unpack it yourself and open the folder", path.display(), folder.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The folder for temporary files.
        folder: PathBuf,
        /// What is free there, or was allowed.
        limit: u64,
    },
    /// Only memory to unpack to, where memory is what does not suffice.
    #[error(
        "{}: is memory and not a disk, so an archive that does not fit into memory cannot be unpacked there; set TMPDIR \
         to a folder on a disk, or unpack it yourself and open the folder", folder.display()
    )]
    NoDisk {
        /// The folder for temporary files.
        folder: PathBuf,
    },
    /// A label that does not fit.
    #[error("{sample}: {reason}")]
    Label {
        /// The sample.
        sample: String,
        /// What is wrong with its label.
        reason: String,
    },
    /// A class that the given list of classes does not have.
    #[error("{sample}: its class \"{class}\" is not one of the {known} classes of the model")]
    UnknownClass {
        /// The first sample that has it.
        sample: String,
        /// The class.
        class: String,
        /// How many classes there are.
        known: usize,
    },
    /// Nothing to read.
    #[error("{}: no labelled images in here{hint}", path.display())]
    Empty {
        /// The dataset.
        path: PathBuf,
        /// What there was instead.
        hint: String,
    },
    /// The split asked for is not there.
    #[error("{}: has no {split} split; {}", path.display(), has(found))]
    NoSplit {
        /// The dataset.
        path: PathBuf,
        /// What was asked for.
        split: Split,
        /// What there is.
        found: Vec<Split>,
    },
    /// An option that makes no sense.
    #[error("{option} is {value}, but {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// What was given.
        value: f64,
        /// What it must be.
        expected: &'static str,
    },
}

fn has(found: &[Split]) -> String {
    match found {
        [] => "it is not divided into splits".to_owned(),
        some => format!("it has {}", some.iter().map(Split::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl DatasetError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| DatasetError::Io { path, error }
    }

    pub(super) fn damaged(path: &Path, reason: impl ToString) -> Self {
        DatasetError::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }

    pub(super) fn unrecognised(path: &Path, reason: impl ToString) -> Self {
        DatasetError::Unrecognised { path: path.to_owned(), reason: reason.to_string() }
    }
}
