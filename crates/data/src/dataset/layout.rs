//! Class folders, with or without a split level above them, told from the paths of the pictures alone. The same rules
//! hold for a folder on disk and for the members of an archive.

use super::split::Split;
use std::collections::{BTreeMap, BTreeSet};

/// Which level of the paths means what.
pub(super) struct Layout {
    /// Levels around everything, as in `cifar10/train/cat/1.png`.
    wrapping: usize,
    has_splits: bool,
}

/// What a path says about a picture.
pub(super) enum Role<'a> {
    /// Its split and its class.
    Sample(Option<Split>, &'a str),
    /// It lies in no class folder.
    NoClass,
    /// It lies in a folder beside the splits.
    BesideSplits,
}

impl Layout {
    /// The layout of these pictures, given by their paths with `/` between the parts.
    pub(super) fn of<'a>(pictures: impl Iterator<Item = &'a str> + Clone) -> Self {
        let mut wrapping = 0;
        while wraps(pictures.clone(), wrapping) {
            wrapping += 1;
        }
        Self { wrapping, has_splits: has_splits(pictures, wrapping) }
    }

    pub(super) fn role<'a>(&self, picture: &'a str) -> Role<'a> {
        let mut parts = picture.split('/').skip(self.wrapping).peekable();
        let mut split = None;
        if self.has_splits {
            split = parts.next().and_then(Split::from_name);
            if split.is_none() {
                return Role::BesideSplits;
            }
        }
        match (parts.next(), parts.peek()) {
            (Some(class), Some(_)) => Role::Sample(split, class),
            _ => Role::NoClass,
        }
    }

    /// The class folders among `folders` that none of the pictures lies in.
    pub(super) fn empty<'a>(
        &self,
        folders: impl Iterator<Item = &'a str>,
        pictures: impl Iterator<Item = &'a str>,
    ) -> Vec<String> {
        let level = self.wrapping + 1 + usize::from(self.has_splits);
        let mut empty: BTreeSet<&str> = folders.filter(|folder| folder.split('/').count() == level).collect();
        if self.has_splits {
            empty.retain(|folder| folder.split('/').nth(self.wrapping).and_then(Split::from_name).is_some());
        }
        for picture in pictures {
            if let Some((end, _)) = picture.match_indices('/').nth(level - 1) {
                empty.remove(&picture[..end]);
            }
        }
        empty.into_iter().map(str::to_owned).collect()
    }
}

/// Whether everything lies in one folder that is neither a class nor a split: it holds no pictures itself, and what it
/// holds looks like classes or splits.
fn wraps<'a>(pictures: impl Iterator<Item = &'a str>, level: usize) -> bool {
    let mut folders = BTreeSet::new();
    let mut inner = BTreeSet::new();
    for picture in pictures {
        let mut parts = picture.split('/').skip(level);
        let (Some(folder), Some(below), Some(_)) = (parts.next(), parts.next(), parts.next()) else {
            return false;
        };
        folders.insert(folder);
        inner.insert(below);
        if folders.len() > 1 {
            return false;
        }
    }
    folders.first().is_some_and(|folder| Split::from_name(folder).is_none())
        && (inner.len() > 1 || inner.iter().any(|name| Split::from_name(name).is_some()))
}

/// Whether the folders at this level are splits. A folder `train` with pictures right in it is a class of vehicles.
fn has_splits<'a>(pictures: impl Iterator<Item = &'a str>, level: usize) -> bool {
    // For each folder whether all of its pictures lie in folders again.
    let mut deep: BTreeMap<&str, bool> = BTreeMap::new();
    for picture in pictures {
        let mut parts = picture.split('/').skip(level);
        let (Some(folder), Some(_)) = (parts.next(), parts.next()) else {
            continue;
        };
        *deep.entry(folder).or_insert(true) &= parts.next().is_some();
    }
    let is_split = |(name, deep): (&&str, &bool)| Split::from_name(name).filter(|_| *deep);
    deep.iter().any(|entry| is_split(entry) == Some(Split::Train))
        || (!deep.is_empty() && deep.iter().all(|entry| is_split(entry).is_some()))
}
