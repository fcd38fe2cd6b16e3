//! Tar shards: images in class folders, images with label files (WebDataset), or CIFAR's binary files.

use super::error::DatasetError;
use super::layout::{FolderLayout, PathRole};
use super::listing::{ImagePlace, LabelText, Listing};
use super::recognise::SourceFile;
use super::split::Split;
use super::store::{Budget, Compression, Store, start_of};
use super::tar::{TarMember, members};
use super::{DatasetFormat, cifar, folders, webdataset};
use crate::files::has_image_extension;
use std::path::Path;
use vit_system::regular_file;

/// With more shards than this, a shard is opened for every read.
const MAX_OPEN: usize = 128;

/// The members of one shard.
pub(super) struct Shard {
    pub(super) store: u32,
    pub(super) split: Option<Split>,
    pub(super) members: Vec<TarMember>,
}

impl Shard {
    pub(super) fn place(&self, member: &TarMember) -> ImagePlace {
        ImagePlace::Range {
            store: self.store,
            offset: member.offset,
            length: member.length,
            name: member.name.as_str().into(),
        }
    }
}

pub(super) fn is_image(member: &TarMember) -> bool {
    !member.is_folder && has_image_extension(Path::new(&member.name))
}

pub(super) fn read(path: &Path, sources: &[SourceFile], budget: &mut Budget) -> Result<Listing, DatasetError> {
    let mut listing = Listing::new(DatasetFormat::Tar, path.to_owned(), path.to_owned(), LabelText::Name);
    let mut shards = Vec::with_capacity(sources.len());
    for source in sources {
        let mut store = open(source, budget)?;
        let members = members(&store)?;
        if sources.len() > MAX_OPEN {
            store.close();
        }
        shards.push(Shard { store: listing.add_store(store), split: source.split, members });
    }
    if !cifar::add_members(&mut listing, &shards)? && !webdataset::add(&mut listing, &shards)? {
        add_class_folders(&mut listing, &shards);
    }
    Ok(listing)
}

fn add_class_folders(listing: &mut Listing, shards: &[Shard]) {
    let images = shards.iter().flat_map(|shard| &shard.members).filter(|member| is_image(member));
    let names = images.map(|member| member.name.as_str());
    let layout = FolderLayout::of(names.clone());
    let folders = shards.iter().flat_map(|shard| &shard.members).filter(|member| member.is_folder);
    listing.empty = layout.empty(folders.map(|member| member.name.as_str()), names);
    for shard in shards {
        for member in shard.members.iter().filter(|member| !member.is_folder) {
            if is_image(member) {
                folders::add(listing, &layout, &member.name, shard.split, shard.place(member));
            } else {
                listing.skip("not an image by its name", || member.name.clone());
            }
        }
    }
}

/// Whether the paths of the images contain their classes.
pub(super) fn has_class_folders(shards: &[Shard]) -> bool {
    let images = shards.iter().flat_map(|shard| &shard.members).filter(|member| is_image(member));
    let names = images.map(|member| member.name.as_str());
    let layout = FolderLayout::of(names.clone());
    names.into_iter().any(|name| matches!(layout.role(name), PathRole::Sample(..)))
}

fn open(source: &SourceFile, budget: &mut Budget) -> Result<Store, DatasetError> {
    let mut file = regular_file::open(&source.path).map_err(DatasetError::io(&source.path))?;
    let start = start_of(&mut file, 4).map_err(DatasetError::io(&source.path))?;
    match Compression::of(&start) {
        Compression::Plain => Store::plain(&source.path, &source.key),
        _ => Store::unpacked(&source.path, &source.key, budget),
    }
}
