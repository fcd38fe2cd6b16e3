//! Lists image files from command-line arguments: files, folders and glob patterns, in natural order (`img2` before
//! `img10`). No file is opened here.

use crate::objects;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use vit_storage::{PathKind, is_url};
use vit_system::regular_file;

/// An error of listing image files.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FilesError {
    /// Neither a file, nor a folder, nor a pattern.
    #[error("{}", missing(.0))]
    Missing(PathBuf),
    /// A folder without images.
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
    /// An invalid pattern.
    #[error("{pattern}: not a valid pattern ({reason}); put [ ] around a literal *, ? or [")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The error in it.
        reason: &'static str,
    },
    /// A folder or file that cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl FilesError {
    /// The file, folder or pattern of the error.
    pub fn place(&self) -> &Path {
        match self {
            FilesError::Missing(path) | FilesError::NoImages { path } | FilesError::Io { path, .. } => path,
            FilesError::NoMatch { pattern } | FilesError::Pattern { pattern, .. } => Path::new(pattern),
        }
    }
}

fn missing(path: &Path) -> String {
    match path.as_os_str().is_empty() {
        true => "an empty path was given; name a file, a folder or a pattern".into(),
        false => format!("{}: no such file or folder", path.display()),
    }
}

/// File name extensions of images in folders. A file that is named directly needs none of them.
pub const EXTENSIONS: [&str; 10] = ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// Whether the file name has an image's extension.
pub fn has_image_extension(path: &Path) -> bool {
    path.extension()
        .and_then(OsStr::to_str)
        .is_some_and(|found| EXTENSIONS.iter().any(|known| found.eq_ignore_ascii_case(known)))
}

/// The images that `arguments` name, in the order of the arguments and without duplicate paths. Folders list their
/// images in natural order, with those of subfolders if `recursive`; hidden files are skipped. An existing path is
/// never read as a pattern.
pub fn find_images<A: AsRef<OsStr>>(arguments: &[A], recursive: bool) -> Result<Vec<PathBuf>, FilesError> {
    find_images_each(arguments, recursive).into_iter().collect()
}

/// As [`find_images`], but an argument that is missing or unreadable is an error at its place in the list.
pub fn find_images_each<A: AsRef<OsStr>>(arguments: &[A], recursive: bool) -> Vec<Result<PathBuf, FilesError>> {
    let mut found = ImageList::default();
    for argument in arguments {
        let path = Path::new(argument.as_ref());
        if is_url(path) {
            match objects_of(path, recursive) {
                Ok(objects) => found.paths.extend(objects.into_iter().map(Ok)),
                Err(error) => found.paths.push(Err(error)),
            }
            continue;
        }
        let added = match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => found.add_folder(path, recursive),
            Ok(_) => {
                found.add(path.to_owned());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => found.add_pattern(path, recursive),
            // Windows reports a name with `*` as invalid instead of missing.
            Err(_) if is_pattern(path) => found.add_pattern(path, recursive),
            Err(error) => Err(FilesError::Io { path: path.to_owned(), error }),
        };
        found.paths.extend(added.err().map(Err));
    }
    found.paths
}

/// The images that a URL names.
fn objects_of(url: &Path, recursive: bool) -> Result<Vec<PathBuf>, FilesError> {
    if is_pattern(url) {
        return objects::matching(&url.to_string_lossy());
    }
    let failed = |error| FilesError::Io { path: url.to_owned(), error };
    if vit_storage::kind(url).map_err(failed)? == PathKind::File {
        return Ok(vec![url.to_owned()]);
    }
    let names = objects::names_below(url).map_err(failed)?;
    let is_listed = |name: &&String| (recursive || !name.contains('/')) && has_image_extension(Path::new(name));
    let images: Vec<PathBuf> = names.iter().filter(is_listed).map(|name| url.join(name)).collect();
    match images.is_empty() {
        true => Err(FilesError::NoImages { path: url.to_owned() }),
        false => Ok(images),
    }
}

pub(crate) fn is_pattern(path: &Path) -> bool {
    let has_range = |text: &str| is_url(path) && text.contains('{');
    path.to_str().is_some_and(|text| text.contains(['*', '?', '[']) || has_range(text))
}

#[derive(Default)]
struct ImageList {
    paths: Vec<Result<PathBuf, FilesError>>,
    seen: HashSet<PathBuf>,
}

impl ImageList {
    /// Adds a file, or an error if it is a pipe or a device, which would block when opened.
    fn add(&mut self, path: PathBuf) {
        if let Err(error) = fs::metadata(&path).map_or(Ok(()), |meta| regular_file::check(&meta)) {
            return self.paths.push(Err(FilesError::Io { path, error }));
        }
        // `a.jpg` and `./a.jpg` are the same path; two links to the same file are not.
        let path_alone = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        if self.seen.insert(path_alone) {
            self.paths.push(Ok(path));
        }
    }

    fn add_folder(&mut self, folder: &Path, recursive: bool) -> Result<(), FilesError> {
        if self.add_images_in(folder, recursive) {
            Ok(())
        } else {
            Err(FilesError::NoImages { path: folder.to_owned() })
        }
    }

    /// Returns whether there were any images.
    fn add_images_in(&mut self, folder: &Path, recursive: bool) -> bool {
        let images = images_in(folder, recursive);
        let any = !images.is_empty();
        for image in images {
            match image {
                Ok(path) => self.add(path),
                Err(error) => self.paths.push(Err(error)),
            }
        }
        any
    }

    fn add_pattern(&mut self, path: &Path, recursive: bool) -> Result<(), FilesError> {
        // Only UTF-8 can be a pattern.
        let Some(pattern) = path.to_str().filter(|_| is_pattern(path)) else {
            return Err(FilesError::Missing(path.to_owned()));
        };
        let matches = glob::glob(pattern)
            .map_err(|error| FilesError::Pattern { pattern: pattern.to_owned(), reason: error.msg })?;
        // Folders without permission are skipped, as by a shell.
        let mut matches: Vec<PathBuf> = matches.filter_map(Result::ok).collect();
        matches.sort_by(|a, b| natural(a.as_os_str(), b.as_os_str()));
        let mut any = false;
        for path in matches {
            if path.is_dir() {
                any |= self.add_images_in(&path, recursive);
            } else if has_image_extension(&path) || names_extension(pattern) {
                any = true;
                self.add(path);
            }
        }
        if any { Ok(()) } else { Err(FilesError::NoMatch { pattern: pattern.to_owned() }) }
    }
}

/// Whether a pattern names an extension, such as `*.dat`: its matches then count as images.
fn names_extension(pattern: &str) -> bool {
    Path::new(pattern).extension().and_then(OsStr::to_str).is_some_and(|extension| !extension.contains(['*', '?', '[']))
}

fn images_in(folder: &Path, recursive: bool) -> Vec<Result<PathBuf, FilesError>> {
    let mut images = Vec::new();
    FolderWalk { recursive, above: Vec::new(), entered: HashSet::new(), images: &mut images }.enter(folder, false);
    images
}

/// A recursive listing that follows links. It terminates: a link to a folder above is not followed, and inside a linked
/// folder no link to a folder that was listed before.
struct FolderWalk<'a> {
    recursive: bool,
    /// The canonical paths of the folders above the current one.
    above: Vec<PathBuf>,
    entered: HashSet<PathBuf>,
    images: &'a mut Vec<Result<PathBuf, FilesError>>,
}

impl FolderWalk<'_> {
    /// Lists the images of a folder; `linked` if its path contains a link.
    fn enter(&mut self, folder: &Path, linked: bool) {
        let found = fs::canonicalize(folder).and_then(|real| Ok((real, names_in(folder)?)));
        let (real, mut names) = match found {
            Ok(found) => found,
            Err(error) => return self.images.push(Err(FilesError::Io { path: folder.to_owned(), error })),
        };
        names.sort_by(|a, b| natural(a, b));
        self.entered.insert(real.clone());
        self.above.push(real);
        for name in names {
            let path = folder.join(name);
            match fs::metadata(&path) {
                Ok(meta) if meta.is_dir() => {
                    let link = path.is_symlink();
                    if self.recursive && !(link && self.known(&path, linked)) {
                        self.enter(&path, linked || link);
                    }
                }
                // A broken link, a pipe or a device is reported by `ImageList::add`.
                Ok(_) | Err(_) if has_image_extension(&path) => self.images.push(Ok(path)),
                Ok(_) | Err(_) => {}
            }
        }
        self.above.pop();
    }

    /// Whether a link leads to a folder above, or from a linked folder to one that was listed before.
    fn known(&self, link: &Path, linked: bool) -> bool {
        fs::canonicalize(link).is_ok_and(|real| self.above.contains(&real) || (linked && self.entered.contains(&real)))
    }
}

/// All names but the hidden ones.
fn names_in(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !name.as_encoded_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Natural order: runs of digits compare by value.
pub(crate) fn natural(a: &OsStr, b: &OsStr) -> std::cmp::Ordering {
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
    // Names that differ only in leading zeros are ordered by their bytes.
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Splits leading digits off and returns them without leading zeros.
fn take_number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    let zeros = digits.iter().position(|b| *b != b'0').unwrap_or(digits.len());
    &digits[zeros..]
}
