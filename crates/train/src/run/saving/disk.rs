//! The file-system operations that a save is made of, as a trait, so that tests can end the world after each of them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// What a save does to a disk.
pub(super) trait Disk {
    /// A file being written.
    type File: Write;

    /// Creates a folder and those above it; one that exists is fine.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Creates an empty file.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Returns once the file's content would survive a power cut.
    fn sync(&self, file: Self::File) -> io::Result<()>;

    /// Returns once the names in a folder would survive a power cut.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// Renames a folder; nothing is there under the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a folder with all its files.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
}

/// The disk of this machine.
pub(super) struct LocalDisk;

impl Disk for LocalDisk {
    type File = File;

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        File::create(path)
    }

    fn sync(&self, file: File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        sync_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

/// Flushes the names in a folder, where the system can: Windows does not open folders, and some network file systems
/// flush them by themselves and refuse to be asked.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    if cfg!(not(unix)) {
        return Ok(());
    }
    match File::open(path)?.sync_all() {
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}
