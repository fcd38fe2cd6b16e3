//! The samples of an opened dataset, or of a part of it. Parts share what the whole knows.

use super::listing::{Listing, StoredImages};
use crate::decode::{DecodeOptions, ImageError};
use crate::image::Image;
use crate::samples::Samples;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Labelled images of an opened dataset, in natural order of their names or in the order of their files.
pub struct Dataset {
    whole: Arc<Whole>,
    classes: Arc<[String]>,
    /// Which samples of the whole set these are.
    chosen: Vec<u32>,
}

struct Whole {
    images: StoredImages,
    /// Indices of classes, all samples one after the other, and where each sample's begin; the last entry is the end.
    labels: Vec<u32>,
    starts: Vec<usize>,
    /// How much of its sample each label is, where some are not all of it.
    shares: Vec<f32>,
    multi_label: bool,
    decode: DecodeOptions,
}

impl Dataset {
    /// All samples of a listing whose labels have become indices of `classes`.
    pub(super) fn new(listing: Listing, classes: Arc<[String]>, decode: &DecodeOptions) -> Self {
        let chosen = (0..listing.len() as u32).collect();
        let whole = Whole {
            images: listing.images,
            labels: listing.labels,
            shares: listing.shares,
            starts: std::iter::once(0).chain(listing.label_ends).collect(),
            multi_label: listing.multi_label,
            decode: decode.clone(),
        };
        Self { whole: Arc::new(whole), classes, chosen }
    }

    /// Which samples of the whole set these are.
    pub(super) fn chosen(&self) -> &[u32] {
        &self.chosen
    }

    /// Whether both are parts of one set.
    pub fn is_of_the_same_set(&self, other: &Dataset) -> bool {
        Arc::ptr_eq(&self.whole, &other.whole)
    }

    /// What a sample is called inside the set, wherever the set lies.
    pub(super) fn key(&self, index: usize) -> String {
        self.whole.images.key(self.chosen[index] as usize)
    }

    /// The bytes of every sample's file or range, as far as they can be known without reading.
    pub(super) fn sizes(&self) -> Vec<Option<u64>> {
        // A network file system answers one question slowly and many at once.
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

    /// Some of them, by their numbers in the whole set.
    pub(super) fn part(&self, chosen: Vec<u32>) -> Self {
        Self { whole: self.whole.clone(), classes: self.classes.clone(), chosen }
    }

    /// Whether samples may have any number of labels.
    pub fn is_multi_label(&self) -> bool {
        self.whole.multi_label
    }

    /// The file of a sample that is one of its own, and not a part of an archive.
    pub fn file(&self, index: usize) -> Option<PathBuf> {
        self.whole.images.file(self.chosen[index] as usize)
    }

    /// Where the labels of a sample are among all.
    fn range(&self, index: usize) -> Range<usize> {
        let sample = self.chosen[index] as usize;
        self.whole.starts[sample]..self.whole.starts[sample + 1]
    }

    /// How many samples there are of each class. One with several labels counts for each.
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

    fn image(&self, index: usize) -> Result<Image, ImageError> {
        self.whole.images.image(self.chosen[index] as usize, &self.whole.decode)
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({} samples, {} classes)", self.len(), self.classes.len())
    }
}
