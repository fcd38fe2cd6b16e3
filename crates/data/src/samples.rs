//! The interface of a dataset: labelled images by index. Every dataset format implements it; the loader and the
//! evaluation use it.

use crate::decode::ImageError;
use crate::image::Image;

/// Labelled images in a fixed order.
pub trait Samples: Send + Sync {
    /// The number of samples.
    fn len(&self) -> usize;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the classes; labels are indices into them.
    fn classes(&self) -> &[String];

    /// The classes of a sample: one for plain classification, any number for multi-label data.
    fn labels(&self, index: usize) -> &[u32];

    /// Soft labels: classes and their probabilities, which add up to 1. [`labels`](Self::labels) is then the likeliest
    /// class.
    fn shares(&self, _index: usize) -> Option<(&[u32], &[f32])> {
        None
    }

    /// The name of a sample for messages: its path, or its archive and its name in it.
    fn name(&self, index: usize) -> String;

    /// Announces samples that will be read soon, in this order. Datasets in remote storage request them ahead.
    fn announce(&self, _indices: &[usize]) {}

    /// Announces the samples after `index`. Called with every index in order, before it is read.
    fn announce_after(&self, index: usize) {
        const AHEAD: usize = 256;
        if index.is_multiple_of(AHEAD) {
            let start = if index == 0 { 0 } else { index + AHEAD };
            let ahead: Vec<usize> = (start..self.len().min(index + 2 * AHEAD)).collect();
            self.announce(&ahead);
        }
    }

    /// Reads and decodes a sample. Threads may call it concurrently.
    fn image(&self, index: usize) -> Result<Image, ImageError>;

    /// The image of a sample for a pipeline that needs `side` pixels per side: images by formula are drawn at that size,
    /// others have their own.
    fn image_for(&self, index: usize, _side: usize) -> Result<Image, ImageError> {
        self.image(index)
    }
}
