//! Objects below a URL, in the order in which a local folder with the same files is listed, so that a dataset has the
//! same samples in the same order wherever it is.

use crate::files::{FilesError, natural};
use std::cmp::Ordering;
use std::io;
use std::path::{Path, PathBuf};

/// The names of all visible objects below a URL, with `/` as separator.
pub(crate) fn names_below(url: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = vit_storage::list(url)?.into_iter().map(|object| object.name).collect();
    names.retain(|name| name.split('/').all(|part| !part.starts_with('.')));
    names.sort_by(|a, b| in_folders(a, b));
    Ok(names)
}

/// The order of a walk through folders whose entries are in natural order.
fn in_folders(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.split('/'), b.split('/'));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) => match natural(left.as_ref(), right.as_ref()) {
                Ordering::Equal => {}
                order => return order,
            },
        }
    }
}

/// The objects that a pattern such as `s3://bucket/shards/*.tar` or `https://host/train-{000..127}.tar` names.
pub(crate) fn matching(pattern: &str) -> Result<Vec<PathBuf>, FilesError> {
    let expanded = vit_storage::expand_braces(pattern);
    if expanded.len() > 1 {
        return Ok(expanded.into_iter().map(PathBuf::from).collect());
    }
    let invalid = |error: glob::PatternError| FilesError::Pattern { pattern: pattern.to_owned(), reason: error.msg };
    let matcher = glob::Pattern::new(pattern).map_err(invalid)?;
    let start = pattern.find(['*', '?', '[']).unwrap_or(pattern.len());
    let folder = &pattern[..pattern[..start].rfind('/').unwrap_or(start)];
    let names = names_below(folder.as_ref()).map_err(|error| FilesError::Io { path: folder.into(), error })?;
    // As in a shell, `*` does not match across folders.
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let paths = names.iter().map(|name| format!("{folder}/{name}")).filter(|path| matcher.matches_with(path, options));
    let mut paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    paths.sort_by(|a, b| natural(a.as_os_str(), b.as_os_str()));
    match paths.is_empty() {
        true => Err(FilesError::NoMatch { pattern: pattern.to_owned() }),
        false => Ok(paths),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_folders() {
        let mut names = ["b/2.jpg", "a10/1.jpg", "a2/1.jpg", "a2/x/1.jpg", "a2.txt", "b/10.jpg", "a2/2.jpg"];
        names.sort_by(|a, b| in_folders(a, b));
        assert_eq!(names, ["a2/1.jpg", "a2/2.jpg", "a2/x/1.jpg", "a2.txt", "a10/1.jpg", "b/2.jpg", "b/10.jpg"]);
    }
}
