//! Replacing a small file so that it is always whole: the old one or the new one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::run::saving::sync_folder;

pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    let beside = path.with_file_name(name);
    let written = File::create(&beside)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&beside, path))
        .and_then(|()| sync_folder(path.parent().unwrap_or(Path::new(""))));
    if written.is_err() {
        // The first error is the one worth reporting.
        let _ = fs::remove_file(&beside);
    }
    written
}
