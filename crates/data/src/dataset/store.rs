//! Where the bytes of a dataset lie when they are not files of their own: in an archive or a table that is read by
//! seeking, or unpacked into memory or, above a limit, into a nameless temporary file that goes away with the program. That
//! file never lies on a RAM disk.

use super::error::DatasetError;
use super::parquet::Rows;
use super::temporary;
use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vit_system::regular_file;

/// How much may be unpacked when a dataset is opened, over all of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes kept in memory; what does not fit goes to a folder for temporary files.
    pub memory: u64,
    /// Bytes written there, if as many are free.
    pub disk: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: 2 << 30, disk: u64::MAX }
    }
}

/// What is left of the [`Limits`] while a dataset is being opened.
pub(super) struct Budget {
    memory: u64,
    disk: u64,
    /// One temporary file for all, because the number of open files is limited too.
    file: Option<Arc<File>>,
    /// The folder that it is in.
    folder: PathBuf,
    /// What has been written to it.
    written: u64,
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        Self { memory: limits.memory, disk: limits.disk, file: None, folder: PathBuf::new(), written: 0 }
    }

    /// Bytes that may still be kept in memory.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    /// The temporary file, made when it is first needed.
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

/// How many samples a file of this length can have. Even the smallest image takes more than four bytes, packed or not, so
/// a file that says it holds more would only fill the memory with its table of contents.
pub(super) fn most_entries(length: u64) -> u64 {
    (length / 4).saturating_add(1024)
}

/// Fails if a file of this length says that it holds this many entries.
pub(super) fn check_entries(path: &Path, what: &str, count: u64, length: u64) -> Result<(), DatasetError> {
    match count > most_entries(length) || u32::try_from(count).is_err() {
        true => Err(DatasetError::damaged(path, format!("{count} {what} are announced, too many for {length} bytes"))),
        false => Ok(()),
    }
}

/// How the bytes of a sample become an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// JPEG, PNG and so on.
    File,
    /// All red bytes, then green, then blue.
    PlanarRgb { width: usize, height: usize },
    /// One byte per pixel.
    Grey { width: usize, height: usize },
}

/// The bytes of one archive or table.
pub(super) struct Store {
    /// The file as the user knows it.
    pub(super) path: PathBuf,
    /// Its name inside the dataset, without folders of this machine: part of what splits are drawn by.
    pub(super) key: String,
    pub(super) encoding: Encoding,
    content: Content,
}

enum Content {
    Memory(Vec<u8>),
    /// The file that the user knows, open.
    Plain {
        file: File,
        length: u64,
    },
    /// A part of the temporary file.
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
    Rows(Rows),
}

impl Store {
    /// The file itself, to be read by seeking.
    pub(super) fn plain(path: &Path, key: &str) -> Result<Self, DatasetError> {
        let file = regular_file::open(path).map_err(DatasetError::io(path))?;
        let length = file.metadata().map_err(DatasetError::io(path))?.len();
        Ok(Self::of(path, key, Content::Plain { file, length }))
    }

    /// Lets go of a plain file; from now on it is opened for every read. Systems allow a program only some hundred open
    /// files, and some sets have thousands of shards.
    pub(super) fn close(&mut self) {
        if let Content::Plain { length, .. } = self.content {
            self.content = Content::Closed { length };
        }
    }

    /// The rows of a table.
    pub(super) fn rows(path: &Path, key: &str, rows: Rows) -> Self {
        Self::of(path, key, Content::Rows(rows))
    }

    /// Bytes of a file that are in memory; the budget must have room for them.
    pub(super) fn in_memory(path: &Path, key: &str, bytes: Vec<u8>, budget: &mut Budget) -> Self {
        budget.memory = budget.memory.saturating_sub(bytes.len() as u64);
        Self::of(path, key, Content::Memory(bytes))
    }

    /// The content of a file, uncompressed if it is gzip or zstd, for those that are read from front to back anyway. A
    /// plain one that is too large for the memory stays where it is.
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
            Content::Plain { length, .. } | Content::Temporary { length, .. } | Content::Closed { length } => *length,
            Content::Rows(_) => 0,
        }
    }

    /// `length` bytes from `offset` on; they are there only if the file has not been changed since it was opened.
    pub(super) fn read(&self, offset: u64, length: u64) -> io::Result<Cow<'_, [u8]>> {
        let end = offset.checked_add(length).filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        match &self.content {
            // Both fit, because they lie inside of what is in memory.
            Content::Memory(bytes) => Ok(Cow::Borrowed(&bytes[offset as usize..end as usize])),
            Content::Plain { file, .. } => read_vec(file, offset, length).map(Cow::Owned),
            Content::Temporary { file, start, .. } => read_vec(file, start + offset, length).map(Cow::Owned),
            Content::Closed { .. } => read_vec(&regular_file::open(&self.path)?, offset, length).map(Cow::Owned),
            Content::Rows(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The image of a row, where this is a table.
    pub(super) fn row(&self, row: u64) -> io::Result<Vec<u8>> {
        match &self.content {
            Content::Rows(rows) => rows.read(row),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// `length` bytes of a file from `offset` on.
pub(super) fn read_vec(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(length, 0);
    read_exact_at(file, &mut bytes, offset)?;
    Ok(bytes)
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                bytes = &mut bytes[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes bytes one after the other: into memory while the budget lasts, then into a temporary file.
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

    /// Moves what is in memory to the end of the temporary file.
    fn spill(&mut self, mut file: &File) -> io::Result<()> {
        // Reading moves the place to write to on some systems.
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

/// Whether a file is packed, and by what.
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

/// A reader of what is inside a file that may be packed.
pub(super) fn unpack(path: &Path) -> Result<Box<dyn Read>, DatasetError> {
    let mut file = regular_file::open(path).map_err(DatasetError::io(path))?;
    let start = start_of(&mut file, 4).map_err(DatasetError::io(path))?;
    file.rewind().map_err(DatasetError::io(path))?;
    Ok(match Compression::of(&start) {
        Compression::Plain => Box::new(file),
        // Several streams one after the other are one file, as gzip itself reads them.
        Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::new(file))),
        Compression::Zstd => Box::new(zstd::Decoder::new(file).map_err(DatasetError::io(path))?),
    })
}

/// The first `count` bytes, or fewer if there are no more.
pub(super) fn start_of(reader: &mut impl Read, count: u64) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    reader.take(count).read_to_end(&mut start)?;
    Ok(start)
}

/// The content of a small file that may be packed; an error above `limit`.
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
