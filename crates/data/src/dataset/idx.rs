//! IDX, the format of MNIST and similar datasets: grey images in one file, their labels in another, plain or gzip.

use super::DatasetFormat;
use super::error::DatasetError;
use super::listing::{ImagePlace, LabelText, Listing};
use super::manifest;
use super::recognise::SourceFile;
use super::store::{Budget, Encoding, Store, check_entries, read_small};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Magic number of bytes in three dimensions: images, rows, columns.
const IMAGES: [u8; 4] = [0, 0, 8, 3];
/// Magic number of bytes in one dimension.
const LABELS: [u8; 4] = [0, 0, 8, 1];

/// Far above any real dataset; a file of one-pixel images could exhaust the memory.
const MAX_SAMPLES: u64 = 1 << 24;
const MAX_PIXELS: u64 = 1 << 26;

/// Whether a file starts with the magic number of images.
pub(super) fn is_images(start: &[u8]) -> bool {
    start.starts_with(&IMAGES)
}

/// Whether a file has the name of an image file: `train-images-idx3-ubyte.gz`, `t10k-images.idx3-ubyte`.
pub(super) fn is_images_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.contains("idx3-ubyte") && labels_beside(path).is_some()
}

/// The label file of an image file: the same name with `labels` and `idx1`.
fn labels_beside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let name = name.replace("images", "labels").replace("idx3", "idx1");
    let bare = name.strip_suffix(".gz").unwrap_or(&name);
    let candidates = [bare.to_owned(), format!("{bare}.gz")];
    candidates
        .iter()
        .map(|name| path.with_file_name(name))
        .find(|candidate| candidate != path && vit_storage::is_file(candidate))
}

pub(super) fn read(path: &Path, sources: &[SourceFile], budget: &mut Budget) -> Result<Listing, DatasetError> {
    let mut listing = Listing::new(DatasetFormat::Idx, path.to_owned(), path.to_owned(), LabelText::NumberOrName);
    // A compressed file beside its unpacked copy counts once.
    let mut distinct: BTreeMap<&str, &SourceFile> = BTreeMap::new();
    for source in sources {
        let bare = source.key.strip_suffix(".gz").unwrap_or(&source.key);
        let kept = distinct.entry(bare).or_insert(source);
        if source.key == bare {
            *kept = source;
        }
    }
    for (key, source) in distinct {
        add(&mut listing, key, source, budget)?;
    }
    listing.class_names = manifest::classes_beside(sources.first().map_or(path, |source| &source.path))?;
    Ok(listing)
}

fn add(listing: &mut Listing, key: &str, source: &SourceFile, budget: &mut Budget) -> Result<(), DatasetError> {
    let path = &source.path;
    let damaged = |reason: String| DatasetError::damaged(path, reason);
    let cut_short = || damaged("IDX file is cut short; copy or download it again".to_owned());
    let mut store = Store::unpacked(path, key, budget)?;
    let header = store.read(0, 16).map_err(|_| cut_short())?;
    let word =
        |index: usize| header[4 * index..4 * index + 4].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    if !is_images(&header) {
        return Err(damaged("not an IDX file of grey images (three dimensions of bytes)".to_owned()));
    }
    let (count, height, width) = (word(1), word(2), word(3));
    let each = height * width;
    if each == 0 || each > MAX_PIXELS || count > MAX_SAMPLES {
        return Err(damaged(format!(
            "IDX file that claims {count} images of {width} x {height} pixels is damaged; copy or download it again"
        )));
    }
    let expected = count.checked_mul(each).and_then(|bytes| bytes.checked_add(16));
    if expected != Some(store.len()) {
        let found = store.len();
        return Err(damaged(format!(
            "IDX file of {count} images of {width} x {height} pixels has {found} bytes, not 16 + {count} * {each}; \
             copy or download it again"
        )));
    }
    let on_disk = vit_storage::size(path).map_err(DatasetError::io(path))?;
    check_entries(path, "images", count, on_disk)?;
    // The sizes fit `usize`, since the store holds that many bytes.
    store.encoding = Encoding::Grey { width: width as usize, height: height as usize };
    let labels = labels(path, count)?;
    let number = listing.add_store(store);
    for (image, label) in (0..).zip(labels) {
        let (offset, name) = (16 + image * each, format!("image {image}").into());
        let place = ImagePlace::Range { store: number, offset, length: each, name };
        listing.push(place, source.split, [label.to_string()]);
    }
    Ok(())
}

fn labels(images: &Path, count: u64) -> Result<Vec<u8>, DatasetError> {
    let path = labels_beside(images).ok_or_else(|| {
        DatasetError::damaged(images, "the file with its labels (…-labels-idx1-ubyte) is not beside it")
    })?;
    let mut bytes = read_small(&path, count + 8)?;
    let claimed = bytes.get(4..8).map(|word| word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    if !bytes.starts_with(&LABELS) || claimed != Some(count) || bytes.len() as u64 != count + 8 {
        return Err(DatasetError::damaged(&path, format!("not an IDX file with the labels of {count} images")));
    }
    Ok(bytes.split_off(8))
}
