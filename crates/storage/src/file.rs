//! Open files and objects, read by ranges.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use vit_system::regular_file;

use crate::{Extent, announce, is_url, remote};

/// A regular file, or an object of known size and version.
#[derive(Debug)]
pub struct StoredFile {
    source: FileSource,
    length: u64,
}

#[derive(Debug)]
enum FileSource {
    Local(File),
    Object(PathBuf),
}

impl StoredFile {
    /// Opens a file or object.
    pub fn open(path: &Path) -> io::Result<StoredFile> {
        if is_url(path) {
            let length = remote::size(path)?;
            return Ok(StoredFile { source: FileSource::Object(path.to_owned()), length });
        }
        let file = regular_file::open(path)?;
        let length = file.metadata()?.len();
        Ok(StoredFile { source: FileSource::Local(file), length })
    }

    /// Its length when it was opened.
    #[allow(clippy::len_without_is_empty, reason = "the length of a file, not of a collection")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it takes one of the few file descriptors of a process.
    pub fn is_local(&self) -> bool {
        matches!(self.source, FileSource::Local(_))
    }

    /// `length` bytes from `offset`. Fails if the file was truncated since it was opened.
    pub fn read_at(&self, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        match &self.source {
            FileSource::Local(file) => read_range(file, offset, length),
            FileSource::Object(_) if length == 0 => Ok(Vec::new()),
            FileSource::Object(path) => Ok(remote::read(path, Some((offset, length)))?),
        }
    }

    /// For reading from one end to the other in small pieces.
    pub fn windowed(self) -> WindowedFile {
        WindowedFile { file: Arc::new(self), window: Arc::default(), position: 0 }
    }
}

/// `length` bytes of a local file from `offset`.
pub fn read_range(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
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

/// Bytes of an object that are requested at once: at 20 ms and 200 MB/s, as long as the latency.
pub(crate) const WINDOW: u64 = 4 << 20;

/// Windows that are requested ahead of the current one.
const WINDOWS_AHEAD: u64 = 3;

/// A file that is read in small pieces from one end to the other. Of an object, whole windows are read ahead; clones
/// share them.
#[derive(Debug, Clone)]
pub struct WindowedFile {
    file: Arc<StoredFile>,
    window: Arc<Mutex<Option<FileWindow>>>,
    position: u64,
}

/// The window in memory.
#[derive(Debug)]
struct FileWindow {
    index: u64,
    bytes: Arc<Vec<u8>>,
    /// The end of the windows that were requested ahead.
    requested: u64,
}

impl WindowedFile {
    /// Opens a file or object.
    pub fn open(path: &Path) -> io::Result<WindowedFile> {
        Ok(StoredFile::open(path)?.windowed())
    }

    /// Its length when it was opened.
    #[allow(clippy::len_without_is_empty, reason = "the length of a file, not of a collection")]
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// A reader of the bytes from `offset`.
    pub fn from(&self, offset: u64) -> WindowedFile {
        WindowedFile { position: offset, ..self.clone() }
    }

    /// `length` bytes from `offset`.
    pub fn read_at(&self, offset: u64, length: u64) -> io::Result<Vec<u8>> {
        let FileSource::Object(path) = &self.file.source else { return self.file.read_at(offset, length) };
        let end = offset.checked_add(length).filter(|end| *end <= self.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let index = at / WINDOW;
            let window = self.window(path, index)?;
            let start = (at - index * WINDOW) as usize;
            let stop = ((end - index * WINDOW) as usize).min(window.len());
            bytes.extend_from_slice(window.get(start..stop).ok_or(io::ErrorKind::UnexpectedEof)?);
            at = index * WINDOW + stop as u64;
        }
        Ok(bytes)
    }

    fn window(&self, path: &Path, index: u64) -> io::Result<Arc<Vec<u8>>> {
        let mut held = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let range = |index: u64| (index * WINDOW, WINDOW.min(self.len() - index * WINDOW));
        let requested = match &*held {
            Some(window) if window.index == index => return Ok(window.bytes.clone()),
            // The start of a file alone is often enough, so reading ahead begins with the second window.
            Some(window) if window.index + 1 == index => {
                let requested = (index + 1 + WINDOWS_AHEAD).min(self.len().div_ceil(WINDOW));
                let ahead = window.requested.max(index)..requested;
                announce(ahead.map(|index| Extent { path: path.to_owned(), range: Some(range(index)) }).collect());
                requested
            }
            _ => 0,
        };
        let (offset, length) = range(index);
        let bytes = Arc::new(self.file.read_at(offset, length)?);
        *held = Some(FileWindow { index, bytes: bytes.clone(), requested });
        Ok(bytes)
    }
}

impl Read for WindowedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = (into.len() as u64).min(self.len().saturating_sub(self.position));
        let into = &mut into[..length as usize];
        match &self.file.source {
            FileSource::Local(file) => read_exact_at(file, into, self.position)?,
            FileSource::Object(_) => into.copy_from_slice(&self.read_at(self.position, length)?),
        }
        self.position += length;
        Ok(into.len())
    }
}
