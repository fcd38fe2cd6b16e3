//! Files that are whole or not there at all.

use std::fs;
use std::io;
use std::path::Path;

/// Lets `write` make a file beside `path`, which takes its name when it is complete. Where that fails, what is at `path`
/// stays as it is and nothing is left beside it.
pub fn replace<E: From<io::Error>>(path: &Path, write: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let beside = Path::new(&name);
    let result = write(beside).and_then(|()| Ok(fs::rename(beside, path)?));
    if result.is_err() {
        // The error at hand says more than one about the remains.
        let _ = fs::remove_file(beside);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, |beside| fs::write(beside, "old")).unwrap();
        let failed = replace(&path, |beside| {
            fs::write(beside, "ha")?;
            Err(io::Error::other("no space"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no space");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
