//! Tar shards: images in class folders, images with label files (WebDataset), or CIFAR's binary files.

use super::error::DatasetError;
use super::layout::{FolderLayout, PathRole};
use super::listing::{ImagePlace, LabelText, Listing};
use super::recognise::SourceFile;
use super::split::Split;
use super::store::{Budget, Compression, Store, start_of};
use super::tar::{TarMember, members};
use super::{DatasetFormat, LabelRequirement, cifar, folders, webdataset};
use crate::files::has_image_extension;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use vit_storage::{WindowedFile, is_url};

/// With more shards than this, a shard is opened for every read.
const MAX_OPEN: usize = 128;

/// Shards in remote storage that are listed at the same time.
const OBJECTS_AT_A_TIME: usize = 16;

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

pub(super) fn read(
    path: &Path,
    sources: &[SourceFile],
    budget: &mut Budget,
    labels: LabelRequirement,
) -> Result<Listing, DatasetError> {
    let mut listing = Listing::new(DatasetFormat::Tar, path.to_owned(), path.to_owned(), LabelText::Name);
    listing.labels_required = labels;
    let mut shards = Vec::with_capacity(sources.len());
    let mut listed = list_objects(sources).into_iter();
    for source in sources {
        let (mut store, members) = match listed.next().flatten() {
            Some(listed) => listed?,
            None => {
                let store = open(source, budget)?;
                let members = members(&store)?;
                (store, members)
            }
        };
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

/// A shard and its table of contents.
type ListedShard = Result<(Store, Vec<TarMember>), DatasetError>;

/// The tables of contents of shards in remote storage that are not compressed, several at a time: each is read from
/// one end to the other.
fn list_objects(sources: &[SourceFile]) -> Vec<Option<ListedShard>> {
    if !sources.first().is_some_and(|source| is_url(&source.path)) {
        return Vec::new();
    }
    let next = AtomicUsize::new(0);
    let slots: Vec<OnceLock<_>> = sources.iter().map(|_| OnceLock::new()).collect();
    std::thread::scope(|scope| {
        for _ in 0..OBJECTS_AT_A_TIME.min(sources.len()) {
            scope.spawn(|| {
                while let Some((source, slot)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    sources.get(index).zip(slots.get(index))
                } {
                    let _ = slot.set(list_object(source));
                }
            });
        }
    });
    slots.into_iter().map(|slot| slot.into_inner().flatten()).collect()
}

fn list_object(source: &SourceFile) -> Option<ListedShard> {
    let list = || {
        let mut file = WindowedFile::open(&source.path).map_err(DatasetError::io(&source.path))?;
        let start = start_of(&mut file, 4).map_err(DatasetError::io(&source.path))?;
        if Compression::of(&start) != Compression::Plain {
            return Ok(None);
        }
        let store = Store::plain(&source.path, &source.key)?;
        let members = members(&store)?;
        Ok(Some((store, members)))
    };
    list().transpose()
}

fn open(source: &SourceFile, budget: &mut Budget) -> Result<Store, DatasetError> {
    let mut file = WindowedFile::open(&source.path).map_err(DatasetError::io(&source.path))?;
    let start = start_of(&mut file, 4).map_err(DatasetError::io(&source.path))?;
    match Compression::of(&start) {
        Compression::Plain => Store::plain(&source.path, &source.key),
        _ => Store::unpacked(&source.path, &source.key, budget),
    }
}
