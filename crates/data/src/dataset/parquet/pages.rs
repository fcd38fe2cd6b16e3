//! Column chunks, read page by page through the `parquet` crate, with checks it lacks: it allocates memory for any size
//! or count that a page claims, and a file of a hundred bytes can claim gigabytes.

use ::parquet::basic::{Encoding, Type as Physical};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::metadata::ColumnChunkMetaData;
use ::parquet::file::reader::{ChunkReader, Length};
use ::parquet::file::serialized_reader::SerializedPageReader;
use bytes::Bytes;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use vit_storage::WindowedFile;

/// The best compression ratio of gzip. Other codecs compress long runs better; the slack covers those.
const MAX_PACKED: u64 = 1032;
const SLACK: u64 = 1 << 26;

fn refused(reason: impl Into<String>) -> ParquetError {
    ParquetError::General(reason.into())
}

/// A page in the file.
#[derive(Clone)]
pub(super) struct StoredPage {
    /// The offset of its data, after the header.
    pub(super) start: u64,
    pub(super) bytes: Bytes,
}

/// A file without any checks, for the metadata at its end.
pub(super) struct FileBytes(pub(super) WindowedFile);

impl Length for FileBytes {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for FileBytes {
    type T = BufReader<WindowedFile>;

    fn get_read(&self, start: u64) -> Result<BufReader<WindowedFile>> {
        Ok(BufReader::new(self.0.from(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        Ok(self.0.read_at(start, length as u64)?.into())
    }
}

/// A file whose pages are checked before they are uncompressed.
pub(super) struct CheckedFile {
    file: FileBytes,
    /// The data of the page that the reader returns next.
    last: Mutex<Option<StoredPage>>,
}

impl CheckedFile {
    pub(super) fn new(file: WindowedFile) -> Arc<Self> {
        Arc::new(Self { file: FileBytes(file), last: Mutex::new(None) })
    }
}

impl Length for CheckedFile {
    fn len(&self) -> u64 {
        Length::len(&self.file)
    }
}

impl ChunkReader for CheckedFile {
    type T = PageHeader;

    fn get_read(&self, start: u64) -> Result<PageHeader> {
        Ok(PageHeader { reader: self.file.get_read(start)?, is_checked: false })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > Length::len(self)) {
            return Err(refused("a page reaches beyond the end of the file"));
        }
        let bytes = self.file.get_bytes(start, length)?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(StoredPage { start, bytes: bytes.clone() });
        Ok(bytes)
    }
}

/// The bytes of a page's header, which starts with its type, its uncompressed size and its compressed size.
pub(super) struct PageHeader {
    reader: BufReader<WindowedFile>,
    is_checked: bool,
}

impl Read for PageHeader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // CheckedFile at the first read: the reader also creates readers that it does not use.
        if !std::mem::replace(&mut self.is_checked, true) {
            let start = self.reader.fill_buf()?;
            let [_, unpacked, packed] = sizes(start).ok_or_else(|| io::Error::other("a page has no valid header"))?;
            if unpacked > packed.saturating_mul(MAX_PACKED).saturating_add(SLACK) {
                let message = format!("a page of {packed} bytes claims to unpack to {unpacked} bytes");
                return Err(io::Error::other(message));
            }
        }
        self.reader.read(into)
    }
}

/// The first three fields of a page's header in Thrift's compact protocol: each a byte for "next field, i32" and a
/// zigzag varint.
fn sizes(mut bytes: &[u8]) -> Option<[u64; 3]> {
    let mut sizes = [0; 3];
    for size in &mut sizes {
        let (field, rest) = bytes.split_first()?;
        let (value, rest) = varint(rest)?;
        // In zigzag encoding, even values are not negative.
        if *field != 0x15 || value % 2 != 0 {
            return None;
        }
        (*size, bytes) = (value / 2, rest);
    }
    Some(sizes)
}

/// A varint (seven bits per byte, lowest first), and the bytes after it.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

/// A page that the reader has read: its place in the file, and its uncompressed data.
pub(super) struct ReadPage {
    pub(super) stored: StoredPage,
    pub(super) unpacked: Bytes,
    /// Bytes at its start that are never compressed: the levels of a version 2 page.
    pub(super) levels: usize,
    pub(super) is_packed: bool,
}

/// The pages of one column chunk.
pub(super) struct Pages {
    file: Arc<CheckedFile>,
    inner: SerializedPageReader<CheckedFile>,
    physical: Physical,
    has_levels: [bool; 2],
    /// The remaining number of values.
    left: u64,
    seen: Arc<Mutex<Vec<ReadPage>>>,
}

impl Pages {
    /// The pages of `column` with at most `values` values in total.
    pub(super) fn new(file: &Arc<CheckedFile>, column: &ColumnChunkMetaData, rows: usize, values: u64) -> Result<Self> {
        let descriptor = column.column_descr();
        Ok(Self {
            inner: SerializedPageReader::new(file.clone(), column, rows, None)?,
            file: file.clone(),
            physical: descriptor.physical_type(),
            has_levels: [descriptor.max_rep_level() > 0, descriptor.max_def_level() > 0],
            left: values,
            seen: Arc::default(),
        })
    }

    /// The pages read since the list was last emptied.
    pub(super) fn seen(&self) -> Arc<Mutex<Vec<ReadPage>>> {
        self.seen.clone()
    }

    fn check(&mut self, page: Page) -> Result<Page> {
        let unpacked = page.buffer().clone();
        let (levels, is_packed) = match &page {
            Page::DictionaryPage { num_values, .. } => {
                // The reader allocates memory for every value, which takes at least the length of an empty text.
                if u64::from(*num_values) > unpacked.len() as u64 / 4 {
                    return Err(refused(format!(
                        "a dictionary of {} bytes claims {num_values} values",
                        unpacked.len()
                    )));
                }
                (0, true)
            }
            Page::DataPage { num_values, encoding, .. } => {
                self.count(*num_values)?;
                let skipped = self.has_levels.iter().filter(|has| **has).try_fold(0, |skipped: usize, _| {
                    let length = unpacked.get(skipped..)?.first_chunk::<4>()?;
                    skipped.checked_add(4)?.checked_add(u32::from_le_bytes(*length) as usize)
                });
                self.check_encoding(*encoding, *num_values, skipped.and_then(|skipped| unpacked.get(skipped..)))?;
                (0, true)
            }
            Page::DataPageV2 {
                num_values, encoding, def_levels_byte_len, rep_levels_byte_len, is_compressed, ..
            } => {
                self.count(*num_values)?;
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                self.check_encoding(*encoding, *num_values, unpacked.get(levels..))?;
                (levels, *is_compressed)
            }
        };
        let stored = self.file.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stored) = stored {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push(ReadPage { stored, unpacked, levels, is_packed });
        }
        Ok(page)
    }

    fn count(&mut self, values: u32) -> Result<()> {
        self.left = self.left.checked_sub(values.into()).ok_or_else(|| {
            refused("its pages claim more values than there are rows, or than a file of its size holds")
        })?;
        Ok(())
    }

    /// The reader allocates memory for the number of lengths that a page of this encoding claims.
    fn check_encoding(&self, encoding: Encoding, values: u32, data: Option<&[u8]>) -> Result<()> {
        if self.physical != Physical::BYTE_ARRAY {
            return Ok(());
        }
        match encoding {
            Encoding::DELTA_BYTE_ARRAY => {
                Err(refused("its values are encoded as DELTA_BYTE_ARRAY; write it again as PLAIN"))
            }
            Encoding::DELTA_LENGTH_BYTE_ARRAY => {
                // Block size, miniblocks per block, and the number of lengths.
                let claimed =
                    data.and_then(varint).and_then(|(_, rest)| varint(rest)).and_then(|(_, rest)| varint(rest));
                match claimed {
                    Some((claimed, _)) if claimed <= values.into() => Ok(()),
                    _ => Err(refused(format!("a page of {values} values claims another number of lengths"))),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        page.map(|page| self.check(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.inner.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        let page = self.inner.take_deferred_dictionary()?;
        page.map(|page| self.check(page)).transpose()
    }
}
