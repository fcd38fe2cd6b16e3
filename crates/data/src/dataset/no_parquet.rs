//! Takes the place of the Parquet reader in builds without the feature `parquet`.

use super::LabelRequirement;
use super::error::DatasetError;
use super::listing::Listing;
use super::recognise::SourceFile;
use super::store::Budget;
use std::io;
use std::path::Path;

/// The rows of a table: there are none.
pub(super) enum ParquetRows {}

impl ParquetRows {
    pub(super) fn read(&self, _row: u64) -> io::Result<Vec<u8>> {
        match *self {}
    }

    pub(super) fn range(&self, _row: u64) -> Option<(u64, u64)> {
        match *self {}
    }
}

pub(super) fn read(
    path: &Path,
    _sources: &[SourceFile],
    _budget: &mut Budget,
    _labels: LabelRequirement,
) -> Result<Listing, DatasetError> {
    let error = io::Error::new(io::ErrorKind::Unsupported, "this program was built without the feature `parquet`");
    Err(DatasetError::Io { path: path.to_owned(), error })
}
