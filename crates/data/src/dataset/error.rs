//! Errors of datasets; each names the file or sample, and a remedy if there is one.

use super::split::Split;
use crate::files::FilesError;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// An error of opening a dataset.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The path or pattern does not exist.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file or folder that cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
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
    /// A file that violates its format.
    #[error("{}: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The violation.
        reason: String,
    },
    /// More unpacked bytes than allowed.
    #[error(
        "{}: unpacks to more than the {limit} bytes that may be written to {}; set TMPDIR to a folder on a disk with more \
         space, or unpack it yourself and open the folder", path.display(), folder.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The folder for temporary files.
        folder: PathBuf,
        /// The bytes free there, or allowed.
        limit: u64,
    },
    /// The folder for temporary files is in memory, but the data does not fit into memory.
    #[error(
        "{}: is memory and not a disk, so an archive that does not fit into memory cannot be unpacked there; set TMPDIR \
         to a folder on a disk, or unpack it yourself and open the folder", folder.display()
    )]
    NoDisk {
        /// The folder for temporary files.
        folder: PathBuf,
    },
    /// An invalid label.
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
        /// The number of classes.
        known: usize,
    },
    /// No samples.
    #[error("{}: no labelled images in here{hint}", path.display())]
    Empty {
        /// The dataset.
        path: PathBuf,
        /// What was found instead.
        hint: String,
    },
    /// The requested split does not exist.
    #[error("{}: has no {split} split; {}", path.display(), has(found))]
    NoSplit {
        /// The dataset.
        path: PathBuf,
        /// The requested split.
        split: Split,
        /// The existing splits.
        found: Vec<Split>,
    },
    /// An invalid option.
    #[error("{option} is {value}, but {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: f64,
        /// The allowed values.
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
