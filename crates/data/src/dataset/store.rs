//! Where the bytes of a data set lie when they are not files of their own: in an archive that is read by seeking, or
//! unpacked into memory or, above a limit, into a nameless temporary file that goes away with the program.

use super::error::DatasetError;
use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How much may be unpacked when a data set is opened, over all of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes kept in memory; what does not fit goes to the folder for temporary files.
    pub memory: u64,
    /// Bytes written there.
    pub disk: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: 2 << 30, disk: 64 << 30 }
    }
}

/// What is left of the [`Limits`] while a data set is being opened.
pub(super) struct Budget {
    memory: u64,
    disk: u64,
    /// What the whole set may take, to say so when it is too little.
    limit: u64,
    /// One temporary file for all, because the number of open files is limited too.
    file: Option<Arc<File>>,
    /// What has been written to it.
    written: u64,
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        let limit = limits.memory.saturating_add(limits.disk);
        Self { memory: limits.memory, disk: limits.disk, limit, file: None, written: 0 }
    }
}

/// How the bytes of a sample become a picture.
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
    /// Its name inside the data set, without folders of this machine: part of what splits are drawn by.
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
}

impl Store {
    /// The file itself, to be read by seeking.
    pub(super) fn plain(path: &Path, key: &str) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(DatasetError::io(path))?;
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

    /// The content of a file, uncompressed if it is gzip or zstd, for those that are read from front to back anyway.
    pub(super) fn unpacked(path: &Path, key: &str, budget: &mut Budget) -> Result<Self, DatasetError> {
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
            Content::Closed { .. } => read_vec(&File::open(&self.path)?, offset, length).map(Cow::Owned),
        }
    }
}

fn read_vec(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?];
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
pub(super) struct Spool<'a> {
    path: PathBuf,
    budget: &'a mut Budget,
    memory: Vec<u8>,
    file: Option<Arc<File>>,
    length: u64,
}

impl<'a> Spool<'a> {
    pub(super) fn new(path: &Path, budget: &'a mut Budget) -> Self {
        Self { path: path.to_owned(), budget, memory: Vec::new(), file: None, length: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.length
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), DatasetError> {
        let length = self.length + bytes.len() as u64;
        if length > self.budget.memory && length > self.budget.disk {
            return Err(DatasetError::TooLarge { path: self.path.clone(), limit: self.budget.limit });
        }
        let temporary = |source| DatasetError::Io { path: std::env::temp_dir(), source };
        if self.file.is_none() && length > self.budget.memory {
            self.file = Some(self.spill().map_err(temporary)?);
        }
        match &self.file {
            Some(file) => file.as_ref().write_all(bytes).map_err(temporary)?,
            None => self.memory.extend_from_slice(bytes),
        }
        self.length = length;
        Ok(())
    }

    /// Moves what is in memory to the end of the temporary file.
    fn spill(&mut self) -> io::Result<Arc<File>> {
        let file = match &self.budget.file {
            Some(file) => file.clone(),
            None => self.budget.file.insert(Arc::new(tempfile::tempfile()?)).clone(),
        };
        // Reading moves the place to write to on some systems.
        file.as_ref().seek(io::SeekFrom::Start(self.budget.written))?;
        file.as_ref().write_all(&self.memory)?;
        self.memory = Vec::new();
        Ok(file)
    }

    pub(super) fn finish(self, key: &str) -> Store {
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
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    pub(super) fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Packing::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Packing::Zstd,
            _ => Packing::Plain,
        }
    }
}

/// A reader of what is inside a file that may be packed.
pub(super) fn unpack(path: &Path) -> Result<Box<dyn Read>, DatasetError> {
    let mut file = File::open(path).map_err(DatasetError::io(path))?;
    let start = start_of(&mut file, 4).map_err(DatasetError::io(path))?;
    file.rewind().map_err(DatasetError::io(path))?;
    Ok(match Packing::of(&start) {
        Packing::Plain => Box::new(file),
        // Several streams one after the other are one file, as gzip itself reads them.
        Packing::Gzip => Box::new(MultiGzDecoder::new(BufReader::new(file))),
        Packing::Zstd => Box::new(zstd::Decoder::new(file).map_err(DatasetError::io(path))?),
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
