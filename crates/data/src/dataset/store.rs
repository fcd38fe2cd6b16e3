//! Samples that are not files of their own: in an archive or a table that is read by seeking, or unpacked into memory
//! or, above a limit, into an unnamed temporary file, which is never on a RAM disk.

use super::error::DatasetError;
use super::parquet::ParquetRows;
use super::temporary;
use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vit_storage::{Extent, StoredFile, WindowedFile, is_url, read_range};
use vit_system::regular_file;

/// Limits on the data that is unpacked when a dataset is opened, over all of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in memory; more goes to a temporary file.
    pub memory: u64,
    /// Bytes in the temporary file, if that many are free.
    pub disk: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: 2 << 30, disk: u64::MAX }
    }
}

/// The remaining [`Limits`] while a dataset is opened.
pub(super) struct Budget {
    memory: u64,
    disk: u64,
    /// One temporary file for all stores, because the number of open files is limited, too.
    file: Option<Arc<File>>,
    /// Its folder.
    folder: PathBuf,
    /// Bytes written to it.
    written: u64,
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        Self { memory: limits.memory, disk: limits.disk, file: None, folder: PathBuf::new(), written: 0 }
    }

    /// Remaining bytes in memory.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    /// The temporary file, created on first use.
    fn file(&mut self) -> Result<Arc<File>, DatasetError> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        self.folder = temporary::folder()?;
        let file = tempfile::tempfile_in(&self.folder).map_err(DatasetError::io(&self.folder))?;
        if let Some(free) = temporary::free(&self.folder) {
            self.disk = self.disk.min(free);
        }
        Ok(self.file.insert(Arc::new(file)).clone())
    }
}

/// The maximum number of samples in a file of this length. The smallest image takes more than four bytes, compressed or
/// not; a file that claims more would exhaust the memory with its table of contents.
pub(super) fn most_entries(length: u64) -> u64 {
    (length / 4).saturating_add(1024)
}

/// Fails if a file of this length claims this many entries.
pub(super) fn check_entries(path: &Path, what: &str, count: u64, length: u64) -> Result<(), DatasetError> {
    match count > most_entries(length) || u32::try_from(count).is_err() {
        true => Err(DatasetError::damaged(path, format!("{count} {what} are announced, too many for {length} bytes"))),
        false => Ok(()),
    }
}

/// The encoding of a sample's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// An image file such as JPEG or PNG.
    File,
    /// Planes of red, green and blue bytes.
    PlanarRgb { width: usize, height: usize },
    /// One byte per pixel.
    Grey { width: usize, height: usize },
}

/// The bytes of one archive or table.
pub(super) struct Store {
    /// The file's path, for messages.
    pub(super) path: PathBuf,
    /// Its name inside the dataset, independent of where the dataset is: part of the names by which splits are drawn.
    pub(super) key: String,
    pub(super) encoding: Encoding,
    content: Content,
}

enum Content {
    Memory(Vec<u8>),
    /// The open file itself.
    Plain(StoredFile),
    /// A range of the temporary file.
    Temporary {
        file: Arc<File>,
        start: u64,
        length: u64,
    },
    /// A file that is opened for every read.
    Closed {
        length: u64,
    },
    /// A table, read row by row.
    ParquetRows(ParquetRows),
}

impl Store {
    /// The file itself, read by seeking.
    pub(super) fn plain(path: &Path, key: &str) -> Result<Self, DatasetError> {
        let file = StoredFile::open(path).map_err(DatasetError::io(path))?;
        Ok(Self::of(path, key, Content::Plain(file)))
    }

    /// Closes a plain file, which is then opened for every read: systems allow a process only some hundred open files,
    /// and some datasets have thousands of shards.
    pub(super) fn close(&mut self) {
        if let Content::Plain(file) = &self.content
            && file.is_local()
        {
            self.content = Content::Closed { length: file.len() };
        }
    }

    /// The rows of a table.
    pub(super) fn rows(path: &Path, key: &str, rows: ParquetRows) -> Self {
        Self::of(path, key, Content::ParquetRows(rows))
    }

    /// Bytes in memory; the budget must suffice for them.
    pub(super) fn in_memory(path: &Path, key: &str, bytes: Vec<u8>, budget: &mut Budget) -> Self {
        budget.memory = budget.memory.saturating_sub(bytes.len() as u64);
        Self::of(path, key, Content::Memory(bytes))
    }

    /// The content of a file, uncompressed if it is gzip or zstd. A plain file that does not fit into memory is read in
    /// place.
    pub(super) fn unpacked(path: &Path, key: &str, budget: &mut Budget) -> Result<Self, DatasetError> {
        let plain = Self::plain(path, key)?;
        let start = plain.read(0, plain.len().min(4)).map_err(DatasetError::io(path))?;
        if Compression::of(&start) == Compression::Plain && plain.len() > budget.memory {
            return Ok(plain);
        }
        let mut spool = Spool::new(path, budget);
        let mut source = unpack(path)?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return Ok(spool.finish(key)),
                Ok(count) => spool.append(&buffer[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(DatasetError::damaged(path, format!("cannot be unpacked: {source}"))),
            }
        }
    }

    fn of(path: &Path, key: &str, content: Content) -> Self {
        Self { path: path.to_owned(), key: key.to_owned(), encoding: Encoding::File, content }
    }

    pub(super) fn len(&self) -> u64 {
        match &self.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::Plain(file) => file.len(),
            Content::Temporary { length, .. } | Content::Closed { length } => *length,
            Content::ParquetRows(_) => 0,
        }
    }

    /// `length` bytes from `offset`. Fails if the file was truncated since it was opened.
    pub(super) fn read(&self, offset: u64, length: u64) -> io::Result<Cow<'_, [u8]>> {
        let end = offset.checked_add(length).filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        match &self.content {
            // Both fit `usize`, because they are inside of a buffer.
            Content::Memory(bytes) => Ok(Cow::Borrowed(&bytes[offset as usize..end as usize])),
            Content::Plain(file) => file.read_at(offset, length).map(Cow::Owned),
            Content::Temporary { file, start, .. } => read_range(file, start + offset, length).map(Cow::Owned),
            Content::Closed { .. } => read_range(&regular_file::open(&self.path)?, offset, length).map(Cow::Owned),
            Content::ParquetRows(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// For reading an object from one end to the other in small pieces; `None` if that needs no help.
    pub(super) fn windowed(&self) -> io::Result<Option<WindowedFile>> {
        match &self.content {
            Content::Plain(file) if !file.is_local() => WindowedFile::open(&self.path).map(Some),
            _ => Ok(None),
        }
    }

    /// A range of the object.
    pub(super) fn extent(&self, offset: u64, length: u64) -> Option<Extent> {
        match &self.content {
            Content::Plain(file) if !file.is_local() => {
                Some(Extent { path: self.path.clone(), range: Some((offset, length)) })
            }
            _ => None,
        }
    }

    /// The range of the object with the image of a row, if it is known.
    pub(super) fn extent_of_row(&self, row: u64) -> Option<Extent> {
        match &self.content {
            Content::ParquetRows(rows) if is_url(&self.path) => {
                Some(Extent { path: self.path.clone(), range: Some(rows.range(row)?) })
            }
            _ => None,
        }
    }

    /// The image of a row, if this is a table.
    pub(super) fn row(&self, row: u64) -> io::Result<Vec<u8>> {
        match &self.content {
            Content::ParquetRows(rows) => rows.read(row),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// A sink of bytes: into memory while the budget lasts, then into the temporary file.
struct Spool<'a> {
    path: PathBuf,
    budget: &'a mut Budget,
    memory: Vec<u8>,
    file: Option<Arc<File>>,
    length: u64,
}

impl<'a> Spool<'a> {
    fn new(path: &Path, budget: &'a mut Budget) -> Self {
        Self { path: path.to_owned(), budget, memory: Vec::new(), file: None, length: 0 }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), DatasetError> {
        let length = self.length + bytes.len() as u64;
        if self.file.is_none() && length > self.budget.memory {
            let file = self.budget.file()?;
            self.spill(&file).map_err(DatasetError::io(&self.budget.folder))?;
            self.file = Some(file);
        }
        match &self.file {
            Some(_) if length > self.budget.disk => {
                let (folder, limit) = (self.budget.folder.clone(), self.budget.disk);
                return Err(DatasetError::TooLarge { path: self.path.clone(), folder, limit });
            }
            Some(file) => file.as_ref().write_all(bytes).map_err(DatasetError::io(&self.budget.folder))?,
            None => self.memory.extend_from_slice(bytes),
        }
        self.length = length;
        Ok(())
    }

    /// Moves the bytes in memory to the end of the temporary file.
    fn spill(&mut self, mut file: &File) -> io::Result<()> {
        // On some systems, reading moves the write position.
        file.seek(io::SeekFrom::Start(self.budget.written))?;
        file.write_all(&self.memory)?;
        self.memory = Vec::new();
        Ok(())
    }

    fn finish(self, key: &str) -> Store {
        let Self { path, budget, memory, file, length } = self;
        let content = match file {
            Some(file) => {
                let start = budget.written;
                budget.written += length;
                budget.disk -= length;
                Content::Temporary { file, start, length }
            }
            None => {
                budget.memory -= length;
                Content::Memory(memory)
            }
        };
        Store::of(&path, key, content)
    }
}

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Plain,
    Gzip,
    Zstd,
}

impl Compression {
    pub(super) fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            _ => Compression::Plain,
        }
    }
}

/// A reader of a file's uncompressed content.
pub(super) fn unpack(path: &Path) -> Result<Box<dyn Read>, DatasetError> {
    let file = WindowedFile::open(path).map_err(DatasetError::io(path))?;
    let start = start_of(&mut file.clone(), 4).map_err(DatasetError::io(path))?;
    Ok(match Compression::of(&start) {
        Compression::Plain => Box::new(file),
        // Concatenated streams are one file, as for gzip itself.
        Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::new(file))),
        Compression::Zstd => Box::new(zstd::Decoder::new(file).map_err(DatasetError::io(path))?),
    })
}

/// The first `count` bytes, or fewer at the end.
pub(super) fn start_of(reader: &mut impl Read, count: u64) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    reader.take(count).read_to_end(&mut start)?;
    Ok(start)
}

/// The uncompressed content of a small file; an error above `limit`.
pub(super) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, DatasetError> {
    let mut bytes = Vec::new();
    let read = unpack(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| DatasetError::damaged(path, format!("cannot be read: {source}")))?;
    if bytes.len() as u64 > limit {
        return Err(DatasetError::damaged(
            path,
            format!("has more than {limit} bytes, too large for a manifest or a list of class names"),
        ));
    }
    Ok(bytes)
}
