//! From what a person types to the list of picture files: files, folders and glob patterns.
//! The order is stable and made for people (`img2` before `img10`); nothing is opened here.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why the list of files could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FilesError {
    /// Neither a file, nor a folder, nor a pattern.
    #[error("{}: no such file or folder", .0.display())]
    Missing(PathBuf),
    /// A folder without pictures.
    #[error(
        "{}: no images in this folder (files ending in {})", path.display(), EXTENSIONS.join(", ")
    )]
    NoImages {
        /// The folder.
        path: PathBuf,
    },
    /// A pattern that matches nothing.
    #[error("{pattern}: no file matches this pattern")]
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// Not a pattern at all.
    #[error("{pattern}: not a valid pattern ({reason}); put [ ] around a literal *, ? or [")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A folder or file that cannot be looked at.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was being looked at.
        path: PathBuf,
        /// Why that failed.
        source: io::Error,
    },
}

/// The endings that make a file in a folder a picture; a file named by itself needs none of them.
pub const EXTENSIONS: [&str; 10] = ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// Whether the name of `path` ends like a picture's.
pub fn has_image_extension(path: &Path) -> bool {
    path.extension()
        .and_then(OsStr::to_str)
        .is_some_and(|found| EXTENSIONS.iter().any(|known| found.eq_ignore_ascii_case(known)))
}

/// The pictures that `arguments` name, without duplicates, in the order of the arguments. Folders
/// give their pictures in natural order, those of inner folders too if `recursive`; hidden files
/// are skipped. What exists is taken by name even if it looks like a pattern.
pub fn find_images<A: AsRef<OsStr>>(arguments: &[A], recursive: bool) -> Result<Vec<PathBuf>, FilesError> {
    let mut found = Found::default();
    for argument in arguments {
        let path = Path::new(argument.as_ref());
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => found.add_folder(path, recursive)?,
            Ok(_) => found.add(path.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                found.add_pattern(path, recursive)?;
            }
            // Windows calls a name with `*` invalid rather than missing.
            Err(_) if is_pattern(path) => found.add_pattern(path, recursive)?,
            Err(source) => {
                return Err(FilesError::Io { path: path.to_owned(), source });
            }
        }
    }
    Ok(found.paths)
}

fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains(['*', '?', '[']))
}

#[derive(Default)]
struct Found {
    paths: Vec<PathBuf>,
    seen: HashSet<PathBuf>,
}

impl Found {
    fn add(&mut self, path: PathBuf) {
        // `a.jpg` and `./a.jpg` are one file; a file that vanished is compared as written.
        let identity = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if self.seen.insert(identity) {
            self.paths.push(path);
        }
    }

    fn add_folder(&mut self, folder: &Path, recursive: bool) -> Result<(), FilesError> {
        let images = images_in(folder, recursive)?;
        if images.is_empty() {
            return Err(FilesError::NoImages { path: folder.to_owned() });
        }
        images.into_iter().for_each(|path| self.add(path));
        Ok(())
    }

    fn add_pattern(&mut self, path: &Path, recursive: bool) -> Result<(), FilesError> {
        // Only text can be a pattern; a name in another encoding is simply not there.
        let Some(pattern) = path.to_str().filter(|_| is_pattern(path)) else {
            return Err(FilesError::Missing(path.to_owned()));
        };
        let matches = glob::glob(pattern)
            .map_err(|error| FilesError::Pattern { pattern: pattern.to_owned(), reason: error.msg })?;
        // Folders that may not be entered are passed over, as a shell does.
        let mut matches: Vec<PathBuf> = matches.filter_map(Result::ok).collect();
        matches.sort_by(|a, b| natural(a.as_os_str(), b.as_os_str()));
        let before = self.seen.len();
        let mut any = false;
        for path in matches {
            if path.is_dir() {
                for image in images_in(&path, recursive)? {
                    any = true;
                    self.add(image);
                }
            } else if has_image_extension(&path) || names_extension(pattern) {
                any = true;
                self.add(path);
            }
        }
        if any || self.seen.len() > before { Ok(()) } else { Err(FilesError::NoMatch { pattern: pattern.to_owned() }) }
    }
}

/// Whether a pattern spells out how names end, as `*.dat` does: then it is believed.
fn names_extension(pattern: &str) -> bool {
    Path::new(pattern).extension().and_then(OsStr::to_str).is_some_and(|extension| !extension.contains(['*', '?', '[']))
}

fn images_in(folder: &Path, recursive: bool) -> Result<Vec<PathBuf>, FilesError> {
    let mut images = Vec::new();
    // Links to folders above would make the walk endless, so each real folder is entered once.
    let mut entered = HashSet::new();
    walk(folder, recursive, &mut entered, &mut images)?;
    Ok(images)
}

fn walk(
    folder: &Path,
    recursive: bool,
    entered: &mut HashSet<PathBuf>,
    images: &mut Vec<PathBuf>,
) -> Result<(), FilesError> {
    let failed = |source| FilesError::Io { path: folder.to_owned(), source };
    if !entered.insert(fs::canonicalize(folder).map_err(failed)?) {
        return Ok(());
    }
    let mut names: Vec<OsString> = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    names.sort_by(|a, b| natural(a, b));
    for name in names {
        let path = folder.join(name);
        // A dangling link is no picture, and no reason to stop either.
        let Ok(meta) = fs::metadata(&path) else {
            continue;
        };
        if meta.is_dir() {
            if recursive {
                walk(&path, recursive, entered, images)?;
            }
        } else if has_image_extension(&path) {
            images.push(path);
        }
    }
    Ok(())
}

/// Compares names as people do: runs of digits by their value, so `img2` comes before `img10`.
fn natural(a: &OsStr, b: &OsStr) -> std::cmp::Ordering {
    let (mut left, mut right) = (a.as_encoded_bytes(), b.as_encoded_bytes());
    while let (Some(&l), Some(&r)) = (left.first(), right.first()) {
        let order = if l.is_ascii_digit() && r.is_ascii_digit() {
            let (l, r) = (take_number(&mut left), take_number(&mut right));
            l.len().cmp(&r.len()).then_with(|| l.cmp(r))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            l.cmp(&r)
        };
        if order.is_ne() {
            return order;
        }
    }
    // Names that differ only in leading zeros still need an order.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Splits the digits off the front; gives them without leading zeros.
fn take_number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    let zeros = digits.iter().position(|b| *b != b'0').unwrap_or(digits.len());
    &digits[zeros..]
}
