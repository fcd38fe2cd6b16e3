//! The samples of an opened dataset or of a split, which share their data.

use super::listing::{Listing, StoredImages};
use crate::decode::{DecodeOptions, ImageError};
use crate::formula::USUAL_SIDE;
use crate::image::Image;
use crate::samples::Samples;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Labelled images of an opened dataset, in natural order of their names or in the order of their files.
pub struct Dataset {
    whole: Arc<DatasetContent>,
    classes: Arc<[String]>,
    /// The indices of these samples in the whole dataset.
    chosen: Vec<u32>,
}

struct DatasetContent {
    images: StoredImages,
    /// Class indices of all samples, concatenated, and where each sample's begin; the last entry is the end.
    labels: Vec<u32>,
    starts: Vec<usize>,
    /// The probability of each label, if any label is soft.
    shares: Vec<f32>,
    multi_label: bool,
    decode: DecodeOptions,
}

impl Dataset {
    /// All samples of a listing whose labels are already indices of `classes`.
    pub(super) fn new(listing: Listing, classes: Arc<[String]>, decode: &DecodeOptions) -> Self {
        let chosen = (0..listing.len() as u32).collect();
        let whole = DatasetContent {
            images: listing.images,
            labels: listing.labels,
            shares: listing.shares,
            starts: std::iter::once(0).chain(listing.label_ends).collect(),
            multi_label: listing.multi_label,
            decode: decode.clone(),
        };
        Self { whole: Arc::new(whole), classes, chosen }
    }

    /// The indices of these samples in the whole dataset.
    pub(super) fn chosen(&self) -> &[u32] {
        &self.chosen
    }

    /// Whether both are splits of the same dataset.
    pub fn is_of_the_same_set(&self, other: &Dataset) -> bool {
        Arc::ptr_eq(&self.whole, &other.whole)
    }

    /// The name of a sample inside the dataset, independent of where the dataset is.
    pub(super) fn key(&self, index: usize) -> String {
        self.whole.images.key(self.chosen[index] as usize)
    }

    /// The size of every sample's file or range, if known without reading it.
    pub(super) fn sizes(&self) -> Vec<Option<u64>> {
        // A network file system has a high latency but answers many requests at once.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).clamp(4, 32);
        let mut sizes = vec![None; self.len()];
        let each = self.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            for (chosen, sizes) in self.chosen.chunks(each).zip(sizes.chunks_mut(each)) {
                let ask = move || {
                    for (sample, size) in chosen.iter().zip(sizes) {
                        *size = self.whole.images.bytes(*sample as usize);
                    }
                };
                scope.spawn(ask);
            }
        });
        sizes
    }

    /// Some of the samples, by their indices in the whole dataset.
    pub(super) fn part(&self, chosen: Vec<u32>) -> Self {
        Self { whole: self.whole.clone(), classes: self.classes.clone(), chosen }
    }

    /// Whether samples may have any number of labels.
    pub fn is_multi_label(&self) -> bool {
        self.whole.multi_label
    }

    /// The file of a sample that is not part of an archive.
    pub fn file(&self, index: usize) -> Option<PathBuf> {
        self.whole.images.file(self.chosen[index] as usize)
    }

    /// The range of a sample's labels among all.
    fn range(&self, index: usize) -> Range<usize> {
        let sample = self.chosen[index] as usize;
        self.whole.starts[sample]..self.whole.starts[sample + 1]
    }

    /// The number of samples of each class. One with several labels counts for each.
    pub fn class_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes.len()];
        for index in 0..self.len() {
            for label in self.labels(index) {
                counts[*label as usize] += 1;
            }
        }
        counts
    }
}

impl Samples for Dataset {
    fn len(&self) -> usize {
        self.chosen.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labels(&self, index: usize) -> &[u32] {
        let all = &self.whole.labels[self.range(index)];
        let likeliest = !self.whole.multi_label && !self.whole.shares.is_empty();
        if likeliest { &all[..all.len().min(1)] } else { all }
    }

    fn shares(&self, index: usize) -> Option<(&[u32], &[f32])> {
        let range = self.range(index);
        (!self.whole.shares.is_empty()).then(|| (&self.whole.labels[range.clone()], &self.whole.shares[range]))
    }

    fn name(&self, index: usize) -> String {
        self.whole.images.name(self.chosen[index] as usize)
    }

    fn announce(&self, indices: &[usize]) {
        let images = &self.whole.images;
        vit_storage::announce(indices.iter().filter_map(|index| images.extent(self.chosen[*index] as usize)).collect());
    }

    fn image(&self, index: usize) -> Result<Image, ImageError> {
        self.whole.images.image(self.chosen[index] as usize, USUAL_SIDE, &self.whole.decode)
    }

    fn image_for(&self, index: usize, side: usize) -> Result<Image, ImageError> {
        self.whole.images.image(self.chosen[index] as usize, side, &self.whole.decode)
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({} samples, {} classes)", self.len(), self.classes.len())
    }
}
