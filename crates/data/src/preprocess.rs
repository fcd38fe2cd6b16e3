//! Applies a model's preprocessing to images: resize, crop, scale, normalise. The geometry is that of timm's evaluation
//! transform, the arithmetic that of torchvision: published weights were trained and evaluated with them. Nothing here
//! is random.

mod normalise;

use crate::image::Image;
use crate::resize::{resize_window, torchvision};
use std::ops::Range;

pub(crate) use normalise::Channel;
pub use vit_preprocess::{CropMode, CropRule, Preprocess, PreprocessError, Resizer};

/// A rectangle in an image, in fractional pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Region {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// Applies a [`Preprocess`] to images.
pub trait ApplyPreprocess {
    /// The model's input: `[channel][height][width]`, normalised.
    fn apply(&self, image: &Image) -> Result<Vec<f32>, PreprocessError>;

    /// As [`apply`](Self::apply), into a slice of [`Preprocess::output_len`] values, such as a row of a batch.
    fn apply_into(&self, image: &Image, out: &mut [f32]) -> Result<(), PreprocessError>;

    /// Scales and normalises an image of the model's size into `out`.
    fn normalise_into(&self, image: &Image, out: &mut [f32]) -> Result<(), PreprocessError>;

    /// The resized and cropped image before scaling. For a grey model it is grey.
    fn crop(&self, image: &Image) -> Result<Image, PreprocessError>;

    /// The side of a square image that needs no resizing.
    fn source_side(&self) -> usize;

    /// The part of an image of this size that becomes the model's input, in the image's pixels. It extends beyond the
    /// image where the input has a border.
    fn region(&self, width: usize, height: usize) -> Result<Region, PreprocessError>;
}

impl ApplyPreprocess for Preprocess {
    fn apply(&self, image: &Image) -> Result<Vec<f32>, PreprocessError> {
        self.validate()?;
        let mut out = vec![0.0; self.output_len()];
        self.apply_into(image, &mut out)?;
        Ok(out)
    }

    fn apply_into(&self, image: &Image, out: &mut [f32]) -> Result<(), PreprocessError> {
        if self.resizer == Resizer::TorchvisionFloats && self.channels() == 3 {
            return apply_floats(self, image, out);
        }
        let cropped = self.crop(image)?;
        self.normalise_into(&cropped, out)
    }

    fn normalise_into(&self, image: &Image, out: &mut [f32]) -> Result<(), PreprocessError> {
        self.validate()?;
        let area = image.width() * image.height();
        let expected = area * self.channels();
        if out.len() != expected {
            return Err(PreprocessError::OutputLength { expected, found: out.len() });
        }
        for (channel, plane) in out.chunks_exact_mut(area).enumerate() {
            Channel::new(self.mean[channel], self.std[channel]).write(image.pixels(), channel, plane);
        }
        Ok(())
    }

    fn crop(&self, image: &Image) -> Result<Image, PreprocessError> {
        self.validate()?;
        let grey;
        let image = if self.channels() == 1 {
            grey = image.to_grey();
            &grey
        } else {
            image
        };
        let [height, width] = self.image_size;
        let (new_width, new_height) = resized(self, image.width(), image.height());
        let across = CropPlacement::new(new_width, width, self);
        let down = CropPlacement::new(new_height, height, self);
        let (size, columns, rows) = ((new_width, new_height), across.kept.clone(), down.kept.clone());
        let part = match self.resizer {
            Resizer::Pillow => resize_window(image, size, columns, rows, self.interpolation),
            _ => torchvision::resize_bytes(image, size, columns, rows, self.interpolation),
        };
        if part.width() == width && part.height() == height {
            return Ok(part);
        }
        let mut canvas = vec![0; width * height * 3];
        if self.crop_mode == CropMode::Border {
            let colour = mean_colour(self);
            canvas.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&colour));
        }
        for y in 0..part.height() {
            let at = ((down.margin + y) * width + across.margin) * 3;
            canvas[at..at + part.width() * 3].copy_from_slice(part.row(y));
        }
        Ok(Image::from_parts(width, height, canvas))
    }

    fn source_side(&self) -> usize {
        let [height, width] = self.image_size;
        (height.max(width) as f64 / self.crop_pct) as usize
    }

    fn region(&self, width: usize, height: usize) -> Result<Region, PreprocessError> {
        self.validate()?;
        let (new_width, new_height) = resized(self, width.max(1), height.max(1));
        let side = |length: usize, resized: usize, target: usize| {
            let CropPlacement { kept, margin } = CropPlacement::new(resized, target, self);
            let scale = length as f64 / resized as f64;
            ((kept.start as f64 - margin as f64) * scale, target as f64 * scale)
        };
        let (x, across) = side(width, new_width, self.image_size[1]);
        let (y, down) = side(height, new_height, self.image_size[0]);
        Ok(Region { x, y, width: across, height: down })
    }
}

/// Resizes, crops and normalises without rounding to bytes in between.
fn apply_floats(preprocess: &Preprocess, image: &Image, out: &mut [f32]) -> Result<(), PreprocessError> {
    preprocess.validate()?;
    let [height, width] = preprocess.image_size;
    if out.len() != 3 * height * width {
        return Err(PreprocessError::OutputLength { expected: 3 * height * width, found: out.len() });
    }
    let size = resized(preprocess, image.width(), image.height());
    let across = CropPlacement::new(size.0, width, preprocess);
    let down = CropPlacement::new(size.1, height, preprocess);
    let (columns, rows) = (across.kept.clone(), down.kept.clone());
    let part = torchvision::resize_floats(image, size, columns.clone(), rows.clone(), preprocess.interpolation);
    for (channel, plane) in out.chunks_exact_mut(height * width).enumerate() {
        let (mean, std) = (preprocess.mean[channel], preprocess.std[channel]);
        plane.fill(-mean / std);
        for (y, row) in part.chunks_exact(columns.len() * 3).enumerate() {
            let plane = &mut plane[(down.margin + y) * width + across.margin..];
            for (value, pixel) in plane.iter_mut().zip(row.chunks_exact(3)) {
                *value = (pixel[channel] - mean) / std;
            }
        }
    }
    Ok(())
}

/// Width and height of an image after resizing and before cropping.
fn resized(preprocess: &Preprocess, width: usize, height: usize) -> (usize, usize) {
    let [target_height, target_width] =
        preprocess.image_size.map(|side| ((side as f64 / preprocess.crop_pct).floor()).max(1.0));
    let (w, h) = (width as f64, height as f64);
    let proportional = |ratio: f64| {
        // Rounded half to even, as Python does; timm fails where this would give zero.
        let side = |length: f64| (length / ratio).round_ties_even().max(1.0) as usize;
        (side(w), side(h))
    };
    let shortest = |short: f64| {
        let long = (short * w.max(h) / w.min(h)) as usize;
        if width <= height { (short as usize, long) } else { (long, short as usize) }
    };
    match preprocess.crop_mode {
        CropMode::Unscaled => (width, height),
        CropMode::Squash => (target_width as usize, target_height as usize),
        CropMode::Border => proportional((h / target_height).max(w / target_width)),
        CropMode::Center if preprocess.crop_rule == CropRule::Transformers => shortest(target_width.min(target_height)),
        CropMode::Center if target_width != target_height => proportional((h / target_height).min(w / target_width)),
        CropMode::Center => shortest(target_width),
    }
}

pub(crate) fn mean_colour(preprocess: &Preprocess) -> [u8; 3] {
    std::array::from_fn(|channel| {
        let mean = preprocess.mean[channel.min(preprocess.mean.len() - 1)];
        (f64::from(mean) * 255.0).round_ties_even() as u8
    })
}

/// The position of a side that is cropped or padded around the centre.
struct CropPlacement {
    /// The part that is kept.
    kept: Range<usize>,
    /// The padding before it.
    margin: usize,
}

impl CropPlacement {
    fn new(length: usize, target: usize, preprocess: &Preprocess) -> Self {
        if length <= target {
            let missing = target - length;
            let up = preprocess.crop_rule == CropRule::Transformers && preprocess.resizer == Resizer::Pillow;
            return Self { kept: 0..length, margin: if up { missing.div_ceil(2) } else { missing / 2 } };
        }
        let excess = length - target;
        let start = match preprocess.crop_rule {
            CropRule::Transformers => excess / 2,
            // Half to even again: an excess of 1 crops from 0, an excess of 3 from 2.
            CropRule::Torchvision => (excess as f64 / 2.0).round_ties_even() as usize,
        };
        Self { kept: start..start + target, margin: 0 }
    }
}
