//! Images of a Parquet file, read from the file: ImageNet's 150 GB should not be copied.
//!
//! A page can only be uncompressed from its start, and Hugging Face's pages hold a hundred images. So the first read of
//! a row group goes through all of its pages once and remembers the location of each image: its page, and its offset in
//! the uncompressed page. Later reads take only the image itself from uncompressed pages, and 64 KiB around it from
//! Snappy pages, which Hugging Face writes. Pages with other codecs are uncompressed up to the image each time.

use super::pages::{CheckedFile, Pages, ReadPage};
use super::records;
use super::snappy::{self, Restart};
use crate::dataset::error::DatasetError;
use crate::decode::{MAX_FILE_BYTES, catch_panic};
use ::parquet::basic::Compression;
use ::parquet::column::reader::ColumnReaderImpl;
use ::parquet::data_type::{ByteArray, ByteArrayType};
use ::parquet::file::metadata::ColumnChunkMetaData;
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{OnceLock, PoisonError};
use vit_storage::{StoredFile, WindowedFile};

/// The images of one file.
pub(in crate::dataset) struct ParquetRows {
    path: PathBuf,
    groups: Vec<RowGroup>,
}

struct RowGroup {
    /// The index of its first row in the file.
    first: u64,
    rows: usize,
    column: ColumnChunkMetaData,
    /// The locations of its images, after the first read; `None` if they can only be read from the start of their
    /// pages.
    located: OnceLock<Option<ImageLocations>>,
}

struct ImageLocations {
    pages: Vec<PageLocation>,
    rows: Vec<ImageLocation>,
}

/// A page in the file.
struct PageLocation {
    start: u64,
    length: u32,
    /// Bytes at its start that are not compressed.
    levels: u32,
    /// Where decompression can start; `None` if the page is not compressed.
    restarts: Option<Vec<Restart>>,
}

/// An image in an uncompressed page.
struct ImageLocation {
    page: u32,
    offset: u32,
    length: u32,
}

impl ParquetRows {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), groups: Vec::new() }
    }

    /// Adds a row group with the column chunk of its images.
    pub(super) fn add(&mut self, rows: usize, column: &ColumnChunkMetaData) {
        let first = self.groups.last().map_or(0, |last| last.first + last.rows as u64);
        // The statistics may contain whole images.
        let column = column.clone().into_builder().clear_statistics().build();
        // The builder only fails for an invalid column chunk.
        if let Ok(column) = column {
            self.groups.push(RowGroup { first, rows, column, located: OnceLock::new() });
        }
    }

    /// The group of a row, and the row's index in it.
    fn group(&self, row: u64) -> Option<(&RowGroup, usize)> {
        let group = &self.groups[self.groups.partition_point(|group| group.first <= row).checked_sub(1)?];
        let index = (row - group.first) as usize;
        (index < group.rows).then_some((group, index))
    }

    /// The range of the file that reading a row takes, if the row was located.
    pub(in crate::dataset) fn range(&self, row: u64) -> Option<(u64, u64)> {
        let (group, index) = self.group(row)?;
        let located = group.located.get()?.as_ref()?;
        let (offset, length, _) = located.range(index).ok()?;
        Some((offset, length))
    }

    /// The encoded image of a row.
    pub(in crate::dataset) fn read(&self, row: u64) -> io::Result<Vec<u8>> {
        let (group, index) = self.group(row).ok_or(io::ErrorKind::UnexpectedEof)?;
        let file = StoredFile::open(&self.path)?;
        // The `parquet` crate may panic on hostile input.
        let locate = || catch_panic(|| self.locate(group)).and_then(Result::ok).flatten();
        match group.located.get_or_init(locate) {
            Some(located) => located.read(&file, index),
            None => catch_panic(|| scan(file.windowed(), group, index))
                .unwrap_or_else(|| Err(io::Error::other("the reader gave up on it"))),
        }
    }

    /// The locations of a group's images, if they can be read one by one.
    fn locate(&self, group: &RowGroup) -> Result<Option<ImageLocations>, DatasetError> {
        let is_snappy = match group.column.compression() {
            Compression::UNCOMPRESSED => false,
            Compression::SNAPPY => true,
            _ => return Ok(None),
        };
        let broken = |error| super::damaged(&self.path, error);
        let file = CheckedFile::new(WindowedFile::open(&self.path).map_err(DatasetError::io(&self.path))?);
        let pages = Pages::new(&file, &group.column, group.rows, group.rows as u64).map_err(broken)?;
        let seen = pages.seen();
        let descriptor = group.column.column_descr_ptr();
        let reader = ColumnReaderImpl::<ByteArrayType>::new(descriptor.clone(), Box::new(pages));
        let mut located = ImageLocations { pages: Vec::new(), rows: Vec::with_capacity(group.rows) };
        // Uncompressed pages that values may still point into, by index.
        let mut live: Vec<(usize, Bytes)> = Vec::new();
        let mut is_addressable = true;
        records(&self.path, &descriptor, reader, |values: &mut Vec<ByteArray>| {
            for ReadPage { stored, unpacked, levels, is_packed } in
                seen.lock().unwrap_or_else(PoisonError::into_inner).drain(..)
            {
                let restarts = (is_snappy && is_packed).then(|| match stored.bytes.get(levels..) {
                    // A page without values.
                    None | Some([]) => Some(Vec::new()),
                    Some(stream) => snappy::restarts(stream),
                });
                is_addressable &= !matches!(restarts, Some(None));
                live.push((located.pages.len(), unpacked));
                located.pages.push(PageLocation {
                    start: stored.start,
                    length: stored.bytes.len() as u32,
                    levels: levels as u32,
                    restarts: restarts.flatten(),
                });
            }
            let value = values.pop().filter(|value| !value.is_empty());
            let place = match &value {
                None => Some(ImageLocation { page: 0, offset: 0, length: 0 }),
                Some(value) => position(&live, value.data()),
            };
            match place {
                Some(row) => {
                    // Pages are read in order, except for the first, which may be a dictionary.
                    live.retain(|(page, _)| *page == 0 || *page >= row.page as usize);
                    located.rows.push(row);
                }
                None => is_addressable = false,
            }
            Ok(())
        })?;
        Ok(Some(located).filter(|located| is_addressable && located.rows.len() == group.rows))
    }
}

/// The location of these bytes in one of the pages.
fn position(pages: &[(usize, Bytes)], value: &[u8]) -> Option<ImageLocation> {
    pages.iter().rev().find_map(|(page, bytes)| {
        let offset = (value.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize)?;
        let is_inside = offset.checked_add(value.len()).is_some_and(|end| end <= bytes.len());
        is_inside.then_some(ImageLocation { page: *page as u32, offset: offset as u32, length: value.len() as u32 })
    })
}

fn no_image() -> io::Error {
    io::Error::other("the row has no image, perhaps only a path")
}

fn check_length(length: u64) -> io::Result<()> {
    match length {
        0 => Err(no_image()),
        length if length > MAX_FILE_BYTES => Err(io::Error::other(format!("{length} bytes are too many for an image"))),
        _ => Ok(()),
    }
}

impl ImageLocations {
    /// The range of the file with an image (offset and length), and the bytes before the image in it after decompression;
    /// `None` if it is not compressed.
    fn range(&self, index: usize) -> io::Result<(u64, u64, Option<usize>)> {
        let row = &self.rows[index];
        check_length(row.length.into())?;
        let page = &self.pages[row.page as usize];
        let Some(restarts) = &page.restarts else {
            return Ok((page.start + u64::from(row.offset), row.length.into(), None));
        };
        let start = row.offset.checked_sub(page.levels).ok_or_else(changed)?;
        let end = u64::from(start) + u64::from(row.length);
        let first = restarts.partition_point(|restart| restart.unpacked <= start).checked_sub(1).ok_or_else(changed)?;
        let from = restarts[first];
        let until = restarts[first..].iter().find(|restart| u64::from(restart.unpacked) >= end);
        let until = until.map_or(page.length - page.levels, |restart| restart.packed);
        let offset = page.start + u64::from(page.levels) + u64::from(from.packed);
        Ok((offset, u64::from(until.saturating_sub(from.packed)), Some((start - from.unpacked) as usize)))
    }

    fn read(&self, file: &StoredFile, index: usize) -> io::Result<Vec<u8>> {
        let (offset, length, skipped) = self.range(index)?;
        let stored = file.read_at(offset, length)?;
        let Some(skipped) = skipped else { return Ok(stored) };
        let length = self.rows[index].length as usize;
        let mut bytes = snappy::unpack(&stored, skipped + length).ok_or_else(changed)?;
        bytes.drain(..skipped);
        Ok(bytes)
    }
}

fn changed() -> io::Error {
    io::Error::other("the file has changed since it was opened")
}

/// The image of a row, by uncompressing the pages before it.
fn scan(file: WindowedFile, group: &RowGroup, index: usize) -> io::Result<Vec<u8>> {
    let file = CheckedFile::new(file);
    let pages = Pages::new(&file, &group.column, group.rows, group.rows as u64).map_err(io::Error::other)?;
    let mut reader = ColumnReaderImpl::<ByteArrayType>::new(group.column.column_descr_ptr(), Box::new(pages));
    let skipped = reader.skip_records(index).map_err(io::Error::other)?;
    let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
    if skipped == index {
        let read = reader.read_records(1, Some(&mut definitions), Some(&mut repetitions), &mut values);
        read.map_err(io::Error::other)?;
    }
    let value: ByteArray = values.pop().ok_or_else(no_image)?;
    check_length(value.len() as u64)?;
    Ok(value.data().to_vec())
}
