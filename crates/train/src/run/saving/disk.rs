//! The file-system operations that a save is made of, as a trait, so that tests can end the world after each of them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use vit_system::atomic_file;

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
        atomic_file::sync_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}
