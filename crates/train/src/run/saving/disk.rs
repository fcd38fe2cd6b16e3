//! The file-system operations of a save, as a trait, so that tests can simulate a failure after each of them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use vit_system::atomic_file;

/// The operations of a save.
pub(super) trait Disk {
    /// A file being written.
    type File: Write;

    /// Creates a folder and its parents, if they do not exist.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Creates an empty file.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Flushes a file's content to the disk.
    fn sync(&self, file: Self::File) -> io::Result<()>;

    /// Flushes the names in a folder to the disk.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// Renames a folder to a name that does not exist.
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
        atomic_file::sync_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}
