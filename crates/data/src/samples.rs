//! What a dataset is to everyone who reads one: labelled images by number. Formats implement it, the loader and the
//! evaluation use it; where the bytes lie is nobody else's business.

use crate::decode::ImageError;
use crate::image::Image;

/// Labelled images, in an order that is the same every time.
pub trait Samples: Send + Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the classes; labels are indices into them.
    fn classes(&self) -> &[String];

    /// The classes of a sample: one for plain classification, any number for multi-label data.
    fn labels(&self, index: usize) -> &[u32];

    /// How a sample belongs to several classes in part, where someone was not sure: classes and shares that add up to 1.
    /// [`labels`](Self::labels) is then the likeliest.
    fn shares(&self, _index: usize) -> Option<(&[u32], &[f32])> {
        None
    }

    /// The name by which a person finds a sample again: its path, or its archive and its place in there.
    fn name(&self, index: usize) -> String;

    /// Reads and decodes a sample. Callable from many threads at once.
    fn image(&self, index: usize) -> Result<Image, ImageError>;
}
