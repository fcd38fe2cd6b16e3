//! URLs in place of paths.

use std::io;
use std::path::{Path, PathBuf};

/// The schemes of URLs that can be opened.
const SCHEMES: [&str; 5] = ["s3", "gs", "az", "https", "http"];

/// Whether a path is a URL of an object.
pub fn is_url(path: &Path) -> bool {
    path.to_str().and_then(|text| text.split_once("://")).is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// The absolute form of a path. A URL is absolute already.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    if is_url(path) { Ok(path.to_owned()) } else { std::path::absolute(path) }
}

/// The paths that a pattern with braces names, as shells expand `train-{000..127}.tar`. A path without braces names itself.
/// Web servers do not list their files, so shards there are named like this.
///
/// ```
/// let names = vit_storage::expand_braces("a-{08..10}.tar");
/// assert_eq!(names, ["a-08.tar", "a-09.tar", "a-10.tar"]);
/// ```
pub fn expand_braces(pattern: &str) -> Vec<String> {
    let range = || {
        let (before, rest) = pattern.split_once('{')?;
        let (inner, after) = rest.split_once('}')?;
        let (first, last) = inner.split_once("..")?;
        let width = if first.starts_with('0') { first.len() } else { 0 };
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        Some((first..=last).map(move |number| format!("{before}{number:0width$}{after}")))
    };
    match range() {
        Some(names) => names.flat_map(|name| expand_braces(&name)).collect(),
        None => vec![pattern.to_owned()],
    }
}

/// A URL in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "only remote storage uses the parts"))]
pub(crate) struct Location<'a> {
    pub(crate) scheme: &'a str,
    /// The bucket, the container, or the server with its port.
    pub(crate) bucket: &'a str,
    /// The object's name, without `/` at either end.
    pub(crate) key: &'a str,
}

impl<'a> Location<'a> {
    pub(crate) fn of(path: &'a Path) -> Option<Self> {
        let (scheme, rest) = path.to_str()?.split_once("://")?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_valid = SCHEMES.contains(&scheme) && !bucket.is_empty();
        is_valid.then(|| Self { scheme, bucket, key: key.trim_matches('/') })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_parts() {
        let of = |text| Location::of(Path::new(text)).map(|found| (found.scheme, found.bucket, found.key));
        assert_eq!(of("s3://b/a/c.jpg"), Some(("s3", "b", "a/c.jpg")));
        assert_eq!(of("s3://b"), Some(("s3", "b", "")));
        assert_eq!(of("https://host:8080/x/"), Some(("https", "host:8080", "x")));
        assert_eq!(of("s3://"), None);
        assert_eq!(of("ftp://b/c"), None);
        assert_eq!(Path::new("s3://b/photos").join("cat/1.jpg").to_str(), Some("s3://b/photos/cat/1.jpg"));
    }

    #[test]
    fn braces_are_expanded_as_shells_do() {
        assert_eq!(expand_braces("x{1..2}y{0..1}"), ["x1y0", "x1y1", "x2y0", "x2y1"]);
        assert_eq!(expand_braces("plain{a}.tar"), ["plain{a}.tar"]);
    }
}
