//! CIFAR-10 and CIFAR-100 in the authors' binary version: records of one label byte (two in CIFAR-100, the coarse label
//! first) and 32 x 32 pixels, as planes of red, green and blue. The files are in a folder or in an archive.

use super::DatasetFormat;
use super::archive::Shard;
use super::error::DatasetError;
use super::listing::{ImagePlace, LabelText, Listing};
use super::recognise::SourceFile;
use super::split::Split;
use super::store::{Budget, Encoding, Store, check_entries, read_small};
use std::path::Path;

const SIDE: usize = 32;
const PIXEL_BYTES: u64 = (3 * SIDE * SIDE) as u64;
const MAX_NAMES_BYTES: u64 = 1 << 16;

/// CIFAR-10 or CIFAR-100.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CifarVariant {
    Ten,
    Hundred,
}

impl CifarVariant {
    fn label_bytes(self) -> u64 {
        match self {
            CifarVariant::Ten => 1,
            CifarVariant::Hundred => 2,
        }
    }

    fn names_file(self) -> &'static str {
        match self {
            CifarVariant::Ten => "batches.meta.txt",
            CifarVariant::Hundred => "fine_label_names.txt",
        }
    }

    fn format(self) -> DatasetFormat {
        match self {
            CifarVariant::Ten => DatasetFormat::Cifar10,
            CifarVariant::Hundred => DatasetFormat::Cifar100,
        }
    }

    fn classes(self) -> u8 {
        match self {
            CifarVariant::Ten => 10,
            CifarVariant::Hundred => 100,
        }
    }
}

/// The variant and the split of a file with this name.
fn role(path: &Path) -> Option<(CifarVariant, Split)> {
    match path.file_name()?.to_str()? {
        "train.bin" => Some((CifarVariant::Hundred, Split::Train)),
        "test.bin" => Some((CifarVariant::Hundred, Split::Test)),
        "test_batch.bin" => Some((CifarVariant::Ten, Split::Test)),
        name if name.starts_with("data_batch_") && name.ends_with(".bin") => Some((CifarVariant::Ten, Split::Train)),
        _ => None,
    }
}

/// Whether a file has one of the authors' names.
pub(super) fn is_batch_name(path: &Path) -> bool {
    role(path).is_some()
}

/// Whether a file has one of the authors' names and a matching size.
pub(super) fn is_batch(path: &Path) -> bool {
    let fits = |(variant, _): (CifarVariant, _)| {
        vit_storage::size(path)
            .is_ok_and(|bytes| bytes > 0 && bytes.is_multiple_of(variant.label_bytes() + PIXEL_BYTES))
    };
    role(path).is_some_and(fits)
}

pub(super) fn read(path: &Path, sources: &[SourceFile], budget: &mut Budget) -> Result<Listing, DatasetError> {
    let mut listing = Listing::new(DatasetFormat::Cifar10, path.to_owned(), path.to_owned(), LabelText::NumberOrName);
    let mut batches = CifarFiles::default();
    for source in sources {
        let Some((variant, split)) = role(&source.path) else {
            continue;
        };
        let store = Store::unpacked(&source.path, &source.key, budget)?;
        let length = store.len();
        let store = listing.add_store(store);
        let split = if sources.len() == 1 { source.split } else { Some(split) };
        batches.add(&mut listing, variant, CifarBatch { store, offset: 0, length, split, name: "" })?;
        let names = source.path.with_file_name(variant.names_file());
        if listing.class_names.is_none() && vit_storage::is_file(&names) {
            listing.class_names = Some(names_in(&read_small(&names, MAX_NAMES_BYTES)?));
        }
    }
    Ok(listing)
}

/// Adds the records in an archive if it holds such files; otherwise returns `false` and changes nothing.
pub(super) fn add_members(listing: &mut Listing, shards: &[Shard]) -> Result<bool, DatasetError> {
    let mut batches = CifarFiles::default();
    for shard in shards {
        for member in &shard.members {
            let Some((variant, split)) = role(Path::new(&member.name)) else {
                continue;
            };
            let (offset, length) = (member.offset, member.length);
            let batch = CifarBatch { store: shard.store, offset, length, split: Some(split), name: &member.name };
            batches.add(listing, variant, batch)?;
        }
    }
    let Some(variant) = batches.variant else {
        return Ok(false);
    };
    listing.label_text = LabelText::NumberOrName;
    for shard in shards {
        let names = shard.members.iter().find(|member| member.name.ends_with(variant.names_file()));
        if let Some(names) = names.filter(|names| names.length <= MAX_NAMES_BYTES) {
            let store = &listing.images.stores[shard.store as usize];
            let bytes = store.read(names.offset, names.length).map_err(DatasetError::io(&store.path))?;
            listing.class_names = Some(names_in(&bytes));
        }
    }
    Ok(true)
}

fn names_in(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The records of one file.
struct CifarBatch<'a> {
    store: u32,
    offset: u64,
    length: u64,
    split: Option<Split>,
    /// Its name in an archive, or empty.
    name: &'a str,
}

/// The variant of the files so far.
#[derive(Default)]
struct CifarFiles {
    variant: Option<CifarVariant>,
}

impl CifarFiles {
    fn add(&mut self, listing: &mut Listing, variant: CifarVariant, batch: CifarBatch<'_>) -> Result<(), DatasetError> {
        let store = &mut listing.images.stores[batch.store as usize];
        let path = store.path.clone();
        let damaged = |reason: String| {
            let inside = if batch.name.is_empty() { String::new() } else { format!("{}: ", batch.name) };
            DatasetError::damaged(&path, inside + &reason)
        };
        if *self.variant.get_or_insert(variant) != variant {
            return Err(damaged("files of CIFAR-10 and of CIFAR-100 lie together; give each a folder".to_owned()));
        }
        listing.format = variant.format();
        store.encoding = Encoding::PlanarRgb { width: SIDE, height: SIDE };
        let record = variant.label_bytes() + PIXEL_BYTES;
        if !batch.length.is_multiple_of(record) {
            let reason = format!("{} bytes are not a whole number of records of {record} bytes; ", batch.length);
            return Err(damaged(reason + "copy or download it again"));
        }
        let on_disk = path.metadata().map_err(DatasetError::io(&path))?.len();
        check_entries(&path, "images", listing.len() as u64 + batch.length / record, on_disk)?;
        for number in 0..batch.length / record {
            let start = batch.offset + number * record;
            // The fine label of CIFAR-100 is the second byte.
            let position = start + variant.label_bytes() - 1;
            let store = &listing.images.stores[batch.store as usize];
            let label = store.read(position, 1).map_err(DatasetError::io(&path))?[0];
            if label >= variant.classes() {
                let last = variant.classes() - 1;
                return Err(damaged(format!("image {number} has label {label}, labels are 0 to {last}")));
            }
            let name = match batch.name {
                "" => format!("image {number}"),
                name => format!("{name}: image {number}"),
            };
            let offset = start + variant.label_bytes();
            let place = ImagePlace::Range { store: batch.store, offset, length: PIXEL_BYTES, name: name.into() };
            listing.push(place, batch.split, [label.to_string()]);
        }
        Ok(())
    }
}
