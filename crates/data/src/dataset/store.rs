//! Where the bytes of a data set lie when they are not files of their own: in an archive that is read by seeking, or
//! unpacked into memory or, above a limit, into a nameless temporary file that goes away with the program.

use super::error::DatasetError;
use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};

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
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        Self { memory: limits.memory, disk: limits.disk, limit: limits.memory.saturating_add(limits.disk) }
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
    File { file: File, length: u64 },
}

impl Store {
    /// The file itself, to be read by seeking.
    pub(super) fn plain(path: &Path, key: &str) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(DatasetError::io(path))?;
        let length = file.metadata().map_err(DatasetError::io(path))?.len();
        Ok(Self::of(path, key, Content::File { file, length }))
    }

    /// The content of a file, uncompressed if it is gzip or zstd, for those that are read from front to back anyway.
    pub(super) fn unpacked(path: &Path, key: &str, budget: &mut Budget) -> Result<Self, DatasetError> {
        let mut spool = Spool::new(path, budget);
        let mut source = unpack(path)?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return spool.finish(key),
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
            Content::File { length, .. } => *length,
        }
    }

    /// `length` bytes from `offset` on; they are there only if the file has not been changed since it was opened.
    pub(super) fn read(&self, offset: u64, length: u64) -> io::Result<Cow<'_, [u8]>> {
        let end = offset.checked_add(length).filter(|end| *end <= self.len());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        match &self.content {
            // Both fit, because they lie inside of what is in memory.
            Content::Memory(bytes) => Ok(Cow::Borrowed(&bytes[offset as usize..end as usize])),
            Content::File { file, .. } => {
                let mut bytes = vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?];
                read_exact_at(file, &mut bytes, offset)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
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
    file: Option<File>,
    written: u64,
}

impl<'a> Spool<'a> {
    pub(super) fn new(path: &Path, budget: &'a mut Budget) -> Self {
        Self { path: path.to_owned(), budget, memory: Vec::new(), file: None, written: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.written
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), DatasetError> {
        let total = self.written + bytes.len() as u64;
        if self.file.is_none() && total > self.budget.memory {
            let temporary = |source| DatasetError::Io { path: std::env::temp_dir(), source };
            let mut file = tempfile::tempfile().map_err(temporary)?;
            file.write_all(&self.memory).map_err(temporary)?;
            self.memory = Vec::new();
            self.file = Some(file);
        }
        match &mut self.file {
            Some(_) if total > self.budget.disk => {
                return Err(DatasetError::TooLarge { path: self.path.clone(), limit: self.budget.limit });
            }
            Some(file) => {
                file.write_all(bytes).map_err(|source| DatasetError::Io { path: std::env::temp_dir(), source })?;
            }
            None => self.memory.extend_from_slice(bytes),
        }
        self.written = total;
        Ok(())
    }

    pub(super) fn finish(self, key: &str) -> Result<Store, DatasetError> {
        let content = match self.file {
            Some(file) => {
                self.budget.disk -= self.written;
                Content::File { file, length: self.written }
            }
            None => {
                self.budget.memory -= self.written;
                Content::Memory(self.memory)
            }
        };
        Ok(Store::of(&self.path, key, content))
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
            format!("is larger than {limit} bytes, too large for what it should be"),
        ));
    }
    Ok(bytes)
}
