//! Class folders, with or without a split level above them, recognised from the paths of the images alone. The same
//! rules hold for a folder and for the members of an archive.

use super::split::Split;
use std::collections::{BTreeMap, BTreeSet};

/// The meaning of the levels of a path.
pub(super) struct FolderLayout {
    /// Outer levels that contain everything, as in `cifar10/train/cat/1.png`.
    wrapping: usize,
    has_splits: bool,
}

/// The meaning of an image's path.
pub(super) enum PathRole<'a> {
    /// Its split and its class.
    Sample(Option<Split>, &'a str),
    /// Its split, but not in a class folder.
    NoClass(Option<Split>),
    /// In a folder beside the splits.
    BesideSplits,
}

impl FolderLayout {
    /// The layout of images, given by their paths with `/` between the parts.
    pub(super) fn of<'a>(images: impl Iterator<Item = &'a str> + Clone) -> Self {
        let mut wrapping = 0;
        while wraps(images.clone(), wrapping) {
            wrapping += 1;
        }
        Self { wrapping, has_splits: has_splits(images, wrapping) }
    }

    pub(super) fn role<'a>(&self, image: &'a str) -> PathRole<'a> {
        let mut parts = image.split('/').skip(self.wrapping).peekable();
        let mut split = None;
        if self.has_splits {
            split = parts.next().and_then(Split::from_name);
            if split.is_none() {
                return PathRole::BesideSplits;
            }
        }
        match (parts.next(), parts.peek()) {
            (Some(class), Some(_)) => PathRole::Sample(split, class),
            _ => PathRole::NoClass(split),
        }
    }

    /// The class folders among `folders` that contain none of the images.
    pub(super) fn empty<'a>(
        &self,
        folders: impl Iterator<Item = &'a str>,
        images: impl Iterator<Item = &'a str>,
    ) -> Vec<String> {
        let level = self.wrapping + 1 + usize::from(self.has_splits);
        let mut empty: BTreeSet<&str> = folders.filter(|folder| folder.split('/').count() == level).collect();
        if self.has_splits {
            empty.retain(|folder| folder.split('/').nth(self.wrapping).and_then(Split::from_name).is_some());
        }
        for image in images {
            if let Some((end, _)) = image.match_indices('/').nth(level - 1) {
                empty.remove(&image[..end]);
            }
        }
        empty.into_iter().map(str::to_owned).collect()
    }
}

/// Whether one folder contains everything and is neither a class nor a split: it contains no images directly, and its
/// subfolders look like classes or splits.
fn wraps<'a>(images: impl Iterator<Item = &'a str>, level: usize) -> bool {
    let mut folders = BTreeSet::new();
    let mut inner = BTreeSet::new();
    for image in images {
        let mut parts = image.split('/').skip(level);
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

/// Whether the folders at this level are splits and not classes: `train` may be a class of vehicles, and other images
/// may be beside the splits.
fn has_splits<'a>(images: impl Iterator<Item = &'a str>, level: usize) -> bool {
    // For each folder, the number of its images in subfolders minus the number of those directly in it.
    let mut depth: BTreeMap<&str, i64> = BTreeMap::new();
    for image in images {
        let mut parts = image.split('/').skip(level);
        if let (Some(folder), Some(_)) = (parts.next(), parts.next()) {
            *depth.entry(folder).or_default() += if parts.next().is_some() { 1 } else { -1 };
        }
    }
    let (splits, others): (Vec<_>, Vec<_>) = depth.iter().partition(|(name, _)| Split::from_name(name).is_some());
    let holds_classes: BTreeSet<Split> =
        splits.iter().filter(|(_, depth)| **depth > 0).filter_map(|(name, _)| Split::from_name(name)).collect();
    match others.as_slice() {
        [] => !splits.is_empty(),
        others if holds_classes.contains(&Split::Train) => {
            holds_classes.len() > 1 || others.iter().all(|(_, depth)| **depth > 0)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(images: &[&str]) -> Vec<String> {
        let layout = FolderLayout::of(images.iter().copied());
        let role = |image| match layout.role(image) {
            PathRole::Sample(Some(split), class) => format!("{split}:{class}"),
            PathRole::Sample(None, class) => class.to_owned(),
            PathRole::NoClass(_) => "-".to_owned(),
            PathRole::BesideSplits => "beside".to_owned(),
        };
        images.iter().map(|image| role(image)).collect()
    }

    #[test]
    fn classes_with_and_without_splits() {
        assert_eq!(classes(&["a/1.jpg", "b/x/2.jpg", "3.jpg"]), ["a", "b", "-"]);
        assert_eq!(classes(&["Training/a/1.jpg", "valid/a/2.jpg"]), ["train:a", "validation:a"]);
        assert_eq!(classes(&["set/train/a/1.jpg", "set/test/a/2.jpg"]), ["train:a", "test:a"]);
        assert_eq!(classes(&["set/a/1.jpg", "set/b/2.jpg"]), ["a", "b"]);
        assert_eq!(classes(&["test/a/1.jpg"]), ["test:a"]);
    }

    #[test]
    fn a_class_of_trains_is_no_split() {
        assert_eq!(classes(&["train/1.jpg", "tractor/2.jpg"]), ["train", "tractor"]);
        assert_eq!(classes(&["train/steam/1.jpg", "tractor/2.jpg"]), ["train", "tractor"]);
    }

    #[test]
    fn what_lies_beside_splits_is_no_class() {
        let images = ["train/a/1.jpg", "train/a/2.jpg", "test/a/3.jpg", "figures/4.jpg", "train/5.jpg"];
        assert_eq!(classes(&images), ["train:a", "train:a", "test:a", "beside", "-"]);
        assert_eq!(classes(&["train/a/1.jpg", "extra/a/2.jpg"]), ["train:a", "beside"]);
    }

    #[test]
    fn splits_without_classes_are_not_classes() {
        assert_eq!(classes(&["train/1.jpg", "test/2.jpg"]), ["-", "-"]);
    }
}
