//! Copies of remote files and folders on this machine, for readers that need whole files: weights are read once and
//! completely.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::snapshot::{self, SnapshotSelection};
use crate::{PathKind, cache, error::StorageError, is_url, remote};

/// A local path with the content of a path or URL. A copy is removed when this is dropped.
#[derive(Debug)]
pub struct LocalCopy {
    path: PathBuf,
    _folder: Option<TempDir>,
}

impl LocalCopy {
    /// The file or folder at `path`. Of a run in a bucket, the files that `selection` names; of any other folder, the files
    /// directly in it. With a file, the files of `beside` that are next to it.
    pub fn of(path: &Path, selection: SnapshotSelection, beside: &[&str]) -> io::Result<LocalCopy> {
        if !is_url(path) {
            return Ok(LocalCopy { path: path.to_owned(), _folder: None });
        }
        let folder = cache::temporary_folder()?;
        let name = path.file_name().unwrap_or_else(|| "copy".as_ref());
        if let Some((run, inner)) = snapshot::of(path)? {
            let local = folder.path().join(name);
            run.download(&local, &inner, selection)?;
            return Ok(LocalCopy { path: local, _folder: Some(folder) });
        }
        let local = folder.path().join(name);
        match remote::kind(path)? {
            PathKind::File => {
                remote::download(path, &local)?;
                for name in beside.iter().filter(|name| Path::new(name) != path.file_name().unwrap_or_default()) {
                    match remote::download(&path.with_file_name(name), &folder.path().join(name)) {
                        Ok(()) | Err(StorageError::Missing) => {}
                        // Servers that do not list their files often deny access to those that do not exist.
                        Err(StorageError::Denied(_) | StorageError::Refused(_)) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            PathKind::Folder => {
                std::fs::create_dir(&local)?;
                for object in remote::list(path)?.iter().filter(|object| !object.name.contains('/')) {
                    remote::download(&path.join(&object.name), &local.join(&object.name))?;
                }
            }
        }
        Ok(LocalCopy { path: local, _folder: Some(folder) })
    }

    /// The local path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
