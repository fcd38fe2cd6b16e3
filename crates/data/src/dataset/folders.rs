//! A folder of class folders: `cat/1.jpg`, or `train/cat/1.jpg` with a split level above.

use super::error::DatasetError;
use super::layout::{FolderLayout, PathRole};
use super::listing::{ImagePlace, LabelText, Listing, slashed};
use super::{DatasetFormat, LabelRequirement, split::Split};
use crate::files::{has_image_extension, natural};
use crate::objects;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The content of a folder without hidden files, in natural order, relative to the folder.
#[derive(Default)]
pub(super) struct FolderTree {
    pub(super) images: Vec<PathBuf>,
    pub(super) folders: Vec<PathBuf>,
    pub(super) others: Vec<PathBuf>,
    /// Named pipes, sockets and devices, which are never opened.
    pub(super) special: Vec<PathBuf>,
}

impl FolderTree {
    pub(super) fn of(root: &Path) -> Result<Self, DatasetError> {
        if vit_storage::is_url(root) {
            return Ok(FolderTree::of_objects(objects::names_below(root).map_err(DatasetError::io(root))?));
        }
        let mut tree = FolderTree::default();
        tree.enter(root, Path::new(""), &mut HashSet::new())?;
        Ok(tree)
    }

    /// The tree of objects by their names.
    fn of_objects(names: Vec<String>) -> Self {
        let mut tree = FolderTree::default();
        for name in names.into_iter().map(PathBuf::from) {
            let above: Vec<&Path> = name.ancestors().skip(1).filter(|folder| *folder != Path::new("")).collect();
            for folder in above.into_iter().rev() {
                if !tree.folders.iter().rev().any(|known| known == folder) {
                    tree.folders.push(folder.to_owned());
                }
            }
            let files = if has_image_extension(&name) { &mut tree.images } else { &mut tree.others };
            files.push(name);
        }
        tree
    }

    fn enter(&mut self, root: &Path, folder: &Path, entered: &mut HashSet<PathBuf>) -> Result<(), DatasetError> {
        let path = root.join(folder);
        // A link to a folder above would never end, so each canonical folder is entered once.
        let real = fs::canonicalize(&path).map_err(DatasetError::io(&path))?;
        if !entered.insert(real) {
            return Ok(());
        }
        let mut entries = Vec::new();
        for entry in fs::read_dir(&path).map_err(DatasetError::io(&path))? {
            let entry = entry.map_err(DatasetError::io(&path))?;
            let name = entry.file_name();
            if !name.as_encoded_bytes().starts_with(b".") {
                entries.push((name, entry.file_type().map_err(DatasetError::io(&path))?));
            }
        }
        entries.sort_by(|a, b| natural(&a.0, &b.0));
        for (name, kind) in entries {
            let inner = folder.join(name);
            let kind = match kind.is_symlink() {
                // A broken link is reported when its image is read.
                true => fs::metadata(root.join(&inner)).map(|meta| meta.file_type()).unwrap_or(kind),
                false => kind,
            };
            if kind.is_dir() {
                self.folders.push(inner.clone());
                self.enter(root, &inner, entered)?;
            } else if !kind.is_file() && !kind.is_symlink() {
                self.special.push(inner);
            } else if has_image_extension(&inner) {
                self.images.push(inner);
            } else {
                self.others.push(inner);
            }
        }
        Ok(())
    }
}

pub(super) fn read(path: &Path, tree: FolderTree, labels: LabelRequirement) -> Listing {
    let mut listing = Listing::new(DatasetFormat::Folders, path.to_owned(), path.to_owned(), LabelText::Name);
    listing.labels_required = labels;
    let text = |paths: &[PathBuf]| -> Vec<String> { paths.iter().map(|path| slashed(path)).collect() };
    let (images, folders) = (text(&tree.images), text(&tree.folders));
    let layout = FolderLayout::of(images.iter().map(String::as_str));
    listing.empty = layout.empty(folders.iter().map(String::as_str), images.iter().map(String::as_str));
    for (image, place) in images.iter().zip(tree.images) {
        add(&mut listing, &layout, image, None, ImagePlace::File(place));
    }
    for other in tree.others {
        listing.skip("not an image by its name", || slashed(&other));
    }
    listing
}

/// Adds an image whose path contains its class. A split in the path overrides that of the archive.
pub(super) fn add(listing: &mut Listing, layout: &FolderLayout, image: &str, split: Option<Split>, place: ImagePlace) {
    match layout.role(image) {
        PathRole::Sample(inner, class) => listing.push(place, inner.or(split), [class]),
        PathRole::NoClass(inner) if listing.labels_required == LabelRequirement::Optional => {
            listing.push(place, inner.or(split), [] as [&str; 0]);
        }
        PathRole::NoClass(_) => listing.skip("in no class folder", || image.to_owned()),
        PathRole::BesideSplits => {
            listing.skip("in a folder that is neither train, validation nor test", || image.to_owned());
        }
    }
}
