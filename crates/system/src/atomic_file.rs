//! Files that appear whole or not at all: the content goes to a temporary file in the same folder, which is flushed to
//! the disk and renamed. After an error, a kill or a power cut the path holds the old file or the new one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Replaces the file at `path` by one with this content.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    write_with(path, |out| out.write_all(content.as_ref()))
}

/// Replaces the file at `path` by what `fill` writes. If `fill` fails, the old file stays.
///
/// A destination that is no regular file, such as `/dev/stdout`, is written directly.
pub fn write_with<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        let mut out = BufWriter::new(File::options().write(true).open(path)?);
        fill(&mut out)?;
        return Ok(out.flush()?);
    }
    let folder = folder_of(path);
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?);
    // `make_in` instead of `tempfile_in`: the file gets the usual permissions instead of being private to the user,
    // and errors come as the system returns them.
    let (file, temporary) = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".part")
        .make_in(folder, |path| File::options().write(true).create_new(true).open(path))?
        .into_parts();
    let mut out = BufWriter::with_capacity(1 << 20, file);
    fill(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    // A rename may reach the disk before the data: without this, a power cut could leave an empty file.
    file.sync_all()?;
    temporary.persist(path).map_err(|error| error.error)?;
    Ok(sync_folder(folder)?)
}

/// Flushes the names in a folder, where the system can: Windows does not open folders, and some network file systems
/// do not support it.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, "old").unwrap();
        let failed = write_with(&path, |out| {
            out.write_all(b"ha")?;
            Err(io::Error::other("no space"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no space");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn errors_are_those_of_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let missing = write(&folder.path().join("none/a"), "").unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.raw_os_error().is_some(), "{missing}");
        assert!(write(folder.path(), "").is_err(), "a folder is not replaced");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    #[cfg(unix)]
    fn permissions_are_those_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let [usual, atomic] = ["usual", "atomic"].map(|name| folder.path().join(name));
        fs::write(&usual, "").unwrap();
        write(&atomic, "").unwrap();
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&atomic), mode(&usual));
    }

    #[test]
    #[cfg(unix)]
    fn a_device_is_written_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        write(&link, "gone").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
