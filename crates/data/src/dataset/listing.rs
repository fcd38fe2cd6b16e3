//! The result of a format's reader: the location of every sample, its split and its labels as written. Nothing is
//! decoded or selected yet.

use super::split::Split;
use super::store::{Encoding, Store};
use super::{DatasetFormat, LabelRequirement};
use crate::decode::{DecodeOptions, ImageError, MAX_FILE_BYTES, decode, open};
use crate::formula::Formula;
use crate::image::Image;
use crate::samples::Samples;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vit_storage::{Extent, is_url};

/// The location of a sample.
pub(super) enum ImagePlace {
    /// A file, relative to the root of the listing.
    File(PathBuf),
    /// A byte range of a store, and its name there.
    Range { store: u32, offset: u64, length: u64, name: Box<str> },
    /// A row of a table.
    Row { store: u32, row: u32 },
    /// A sample of the caller, and its name.
    Custom { index: u32, name: Box<str> },
}

/// Samples that were skipped for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The reason.
    pub reason: &'static str,
    /// Their number.
    pub count: usize,
    /// The first of them.
    pub example: String,
}

/// The locations of all samples of a dataset, and its archives and tables.
pub(super) struct StoredImages {
    pub(super) root: PathBuf,
    pub(super) stores: Vec<Store>,
    pub(super) places: Vec<ImagePlace>,
    /// The samples that `Custom` locations refer to.
    pub(super) custom: Option<Arc<dyn Samples>>,
    /// The formula of a dataset that has no other locations.
    pub(super) formula: Option<Formula>,
}

impl StoredImages {
    /// The name of a sample inside the dataset, independent of where the dataset is: splits are drawn by it.
    pub(super) fn key(&self, index: usize) -> String {
        if let Some(formula) = &self.formula {
            return formula.key(formula.sample(index));
        }
        match &self.places[index] {
            ImagePlace::File(path) => slashed(path),
            // A single archive may be renamed or compressed; the shards of many differ by name.
            ImagePlace::Range { name, .. } if self.stores.len() == 1 => name.to_string(),
            ImagePlace::Range { store, name, .. } => format!("{}/{name}", self.stores[*store as usize].key),
            ImagePlace::Row { row, .. } if self.stores.len() == 1 => format!("row {row}"),
            ImagePlace::Row { store, row } => format!("{}/row {row}", self.stores[*store as usize].key),
            ImagePlace::Custom { name, .. } => name.to_string(),
        }
    }

    /// The name of a sample for messages.
    pub(super) fn name(&self, index: usize) -> String {
        if let Some(formula) = &self.formula {
            return format!("{}: {}", self.root.display(), formula.key(formula.sample(index)));
        }
        match &self.places[index] {
            ImagePlace::File(path) => self.path_of(path).display().to_string(),
            ImagePlace::Range { store, name, .. } => format!("{}: {name}", self.stores[*store as usize].path.display()),
            ImagePlace::Row { store, row } => format!("{}: row {row}", self.stores[*store as usize].path.display()),
            ImagePlace::Custom { name, .. } => name.to_string(),
        }
    }

    /// The path of a file of the listing. A manifest may also name URLs.
    fn path_of(&self, file: &Path) -> PathBuf {
        if is_url(file) { file.to_owned() } else { self.root.join(file) }
    }

    /// The bytes that [`image`](Self::image) will read, if they are in remote storage and known.
    pub(super) fn extent(&self, index: usize) -> Option<Extent> {
        match self.places.get(index)? {
            ImagePlace::File(path) if is_url(&self.root) || is_url(path) => {
                Some(Extent { path: self.path_of(path), range: None })
            }
            ImagePlace::Range { store, offset, length, .. } => self.stores[*store as usize].extent(*offset, *length),
            ImagePlace::Row { store, row } => self.stores[*store as usize].extent_of_row((*row).into()),
            ImagePlace::File(_) | ImagePlace::Custom { .. } => None,
        }
    }

    /// The file of a sample that is a file of its own.
    pub(super) fn file(&self, index: usize) -> Option<PathBuf> {
        match self.places.get(index)? {
            ImagePlace::File(path) => Some(self.path_of(path)),
            ImagePlace::Range { .. } | ImagePlace::Row { .. } | ImagePlace::Custom { .. } => None,
        }
    }

    /// The size of its file or range, if known without reading it.
    pub(super) fn bytes(&self, index: usize) -> Option<u64> {
        match self.places.get(index)? {
            ImagePlace::File(path) => vit_storage::size(&self.path_of(path)).ok(),
            ImagePlace::Range { length, .. } => Some(*length),
            // Known only after its page is read.
            ImagePlace::Row { .. } | ImagePlace::Custom { .. } => None,
        }
    }

    /// The image of a sample; one by formula is drawn with `side` pixels per side.
    pub(super) fn image(&self, index: usize, side: usize, options: &DecodeOptions) -> Result<Image, ImageError> {
        if let Some(formula) = &self.formula {
            return Ok(formula.draw(formula.sample(index), side.max(1)));
        }
        let named = |error| ImageError::File { path: self.name(index).into(), error: Box::new(error) };
        match &self.places[index] {
            ImagePlace::File(path) => open(&self.path_of(path), options),
            ImagePlace::Row { store, row } => {
                let bytes = self.stores[*store as usize].row((*row).into());
                decode(&bytes.map_err(|error| named(ImageError::Io(error)))?, options).map_err(named)
            }
            ImagePlace::Custom { index, .. } => match &self.custom {
                Some(samples) => samples.image_for(*index as usize, side),
                None => Err(named(ImageError::Io(std::io::ErrorKind::NotFound.into()))),
            },
            ImagePlace::Range { length, .. } if *length > MAX_FILE_BYTES => Err(named(ImageError::FileTooLarge)),
            ImagePlace::Range { store, offset, length, .. } => {
                let store = &self.stores[*store as usize];
                let bytes = store.read(*offset, *length).map_err(|error| named(ImageError::Io(error)))?;
                match store.encoding {
                    Encoding::File => decode(&bytes, options).map_err(named),
                    // The readers of these formats create ranges of the right length.
                    Encoding::PlanarRgb { width, height } => Ok(interleave(&bytes, width, height)),
                    Encoding::Grey { width, height } => {
                        Ok(Image::from_parts(width, height, bytes.iter().flat_map(|grey| [*grey; 3]).collect()))
                    }
                }
            }
        }
    }
}

fn interleave(planes: &[u8], width: usize, height: usize) -> Image {
    let (red, rest) = planes.split_at(width * height);
    let (green, blue) = rest.split_at(width * height);
    let pixels = red.iter().zip(green).zip(blue).flat_map(|((r, g), b)| [*r, *g, *b]).collect();
    Image::from_parts(width, height, pixels)
}

/// A path with `/` as separator on every system.
pub(super) fn slashed(path: &Path) -> String {
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// The interpretation of label texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelText {
    /// Always a class name, also `7`: folder names.
    Name,
    /// A class index if all texts are numbers, else names.
    NumberOrName,
}

/// All samples of a dataset, of all splits that were read.
pub(super) struct Listing {
    pub(super) format: DatasetFormat,
    /// The path that the user gave.
    pub(super) path: PathBuf,
    pub(super) images: StoredImages,
    pub(super) splits: Vec<Option<Split>>,
    /// Indices into `texts` of all samples, concatenated; `label_ends` holds the end of each sample's.
    pub(super) labels: Vec<u32>,
    pub(super) label_ends: Vec<usize>,
    /// The probability of each label; empty as long as no label is soft.
    pub(super) shares: Vec<f32>,
    /// The distinct label texts.
    pub(super) texts: Vec<String>,
    numbers: HashMap<String, u32>,
    pub(super) label_text: LabelText,
    /// Whether samples need a label.
    pub(super) labels_required: LabelRequirement,
    /// Whether samples may have any number of labels.
    pub(super) multi_label: bool,
    /// The names of all classes in order, if the dataset contains them.
    pub(super) class_names: Option<Vec<String>>,
    /// Class folders without images.
    pub(super) empty: Vec<String>,
    pub(super) skipped: Vec<Skipped>,
}

impl Listing {
    pub(super) fn new(format: DatasetFormat, path: PathBuf, root: PathBuf, label_text: LabelText) -> Self {
        Self {
            format,
            path,
            images: StoredImages { root, stores: Vec::new(), places: Vec::new(), custom: None, formula: None },
            splits: Vec::new(),
            labels: Vec::new(),
            label_ends: Vec::new(),
            shares: Vec::new(),
            texts: Vec::new(),
            numbers: HashMap::new(),
            label_text,
            labels_required: LabelRequirement::Required,
            multi_label: false,
            class_names: None,
            empty: Vec::new(),
            skipped: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.splits.len()
    }

    pub(super) fn add_store(&mut self, store: Store) -> u32 {
        self.images.stores.push(store);
        // Every store is an open file or in memory, so `u32` suffices.
        (self.images.stores.len() - 1) as u32
    }

    pub(super) fn push<T: AsRef<str>>(
        &mut self,
        place: ImagePlace,
        split: Option<Split>,
        labels: impl IntoIterator<Item = T>,
    ) {
        for label in labels {
            let number = self.number(label.as_ref());
            self.labels.push(number);
        }
        if !self.shares.is_empty() {
            self.shares.resize(self.labels.len(), 1.0);
        }
        self.end(place, split);
    }

    /// Adds a sample with a soft label, the likeliest class first.
    pub(super) fn push_shares(&mut self, place: ImagePlace, split: Option<Split>, shares: &[(String, f32)]) {
        self.shares.resize(self.labels.len(), 1.0);
        for (label, share) in shares {
            let number = self.number(label);
            self.labels.push(number);
            self.shares.push(*share);
        }
        self.end(place, split);
    }

    /// The index of a label's text.
    fn number(&mut self, label: &str) -> u32 {
        if let Some(number) = self.numbers.get(label) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(label.to_owned());
        self.numbers.insert(label.to_owned(), number);
        number
    }

    fn end(&mut self, place: ImagePlace, split: Option<Split>) {
        self.label_ends.push(self.labels.len());
        self.images.places.push(place);
        self.splits.push(split);
    }

    pub(super) fn skip(&mut self, reason: &'static str, example: impl FnOnce() -> String) {
        match self.skipped.iter_mut().find(|skipped| skipped.reason == reason) {
            Some(skipped) => skipped.count += 1,
            None => self.skipped.push(Skipped { reason, count: 1, example: example() }),
        }
    }

    pub(super) fn labels_of(&self, index: usize) -> &[u32] {
        let start = if index == 0 { 0 } else { self.label_ends[index - 1] };
        &self.labels[start..self.label_ends[index]]
    }

    /// The existing splits, in order.
    pub(super) fn splits_found(&self) -> Vec<Split> {
        let all = [Split::Train, Split::Validation, Split::Test];
        all.into_iter().filter(|split| self.splits.contains(&Some(*split))).collect()
    }

    /// The samples of a split; those without one are training samples.
    pub(super) fn members(&self, split: Split) -> Vec<u32> {
        let is_member = |found: &Option<Split>| found.unwrap_or(Split::Train) == split;
        self.splits.iter().enumerate().filter(|(_, found)| is_member(found)).map(|(index, _)| index as u32).collect()
    }
}
