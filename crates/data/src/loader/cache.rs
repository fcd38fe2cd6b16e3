//! Decoded images that stay in memory up to a limit, the first ones first. The cache changes the time, never a result.

use crate::decode::ImageError;
use crate::image::Image;
use crate::samples::Samples;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct ImageCache {
    /// Empty if the cache is off.
    images: Vec<OnceLock<Image>>,
    left: AtomicU64,
    /// The side of images by formula.
    side: usize,
}

impl ImageCache {
    pub(super) fn new(samples: usize, limit: u64, side: usize) -> Self {
        let images = if limit == 0 { Vec::new() } else { (0..samples).map(|_| OnceLock::new()).collect() };
        Self { images, left: AtomicU64::new(limit), side }
    }

    /// Whether a sample's image is cached.
    pub(super) fn contains(&self, index: usize) -> bool {
        self.images.get(index).is_some_and(|image| image.get().is_some())
    }

    /// Calls `work` with a sample's image, decoded or from the cache.
    pub(super) fn with<R>(
        &self,
        samples: &dyn Samples,
        index: usize,
        work: impl FnOnce(&Image) -> R,
    ) -> Result<R, ImageError> {
        let Some(place) = self.images.get(index) else {
            return Ok(work(&samples.image_for(index, self.side)?));
        };
        if let Some(image) = place.get() {
            return Ok(work(image));
        }
        let image = samples.image_for(index, self.side)?;
        let result = work(&image);
        let bytes = image.pixels().len() as u64;
        let take = |left: u64| left.checked_sub(bytes);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() && place.set(image).is_err() {
            // Another thread has cached the same image meanwhile.
            self.left.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(result)
    }
}
