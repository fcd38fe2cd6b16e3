//! From a picture to the numbers a model reads: resize, crop, scale, normalise.
//! The geometry is that of timm's evaluation transform and the arithmetic that of torchvision,
//! because published weights were trained and measured behind them. Nothing here is random.

mod normalise;

use crate::image::Image;
use crate::resize::{Filter, resize_window};
use std::ops::Range;
use thiserror::Error;

pub(crate) use normalise::Channel;

/// How a picture of any shape becomes one of the model's shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CropMode {
    /// Keep the proportions, fill the target, lose what sticks out.
    #[default]
    Center,
    /// Change the proportions, lose nothing but what `crop_pct` cuts.
    Squash,
    /// Keep the proportions, fit inside the target, fill the border with the mean colour.
    Border,
}

impl CropMode {
    /// Every mode.
    pub const ALL: [CropMode; 3] = [CropMode::Center, CropMode::Squash, CropMode::Border];

    /// The name that timm uses: `"center"`, `"squash"` or `"border"`.
    pub fn name(self) -> &'static str {
        match self {
            CropMode::Center => "center",
            CropMode::Squash => "squash",
            CropMode::Border => "border",
        }
    }
}

impl std::fmt::Display for CropMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for CropMode {
    type Err = PreprocessError;

    fn from_str(name: &str) -> Result<Self, PreprocessError> {
        CropMode::ALL
            .into_iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| PreprocessError::UnknownCropMode(name.to_owned()))
    }
}

/// What is wrong with the settings or with the place for the result.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PreprocessError {
    /// A crop mode that is not one of ours.
    #[error("unknown crop mode \"{0}\"; use center, squash or border")]
    UnknownCropMode(String),
    /// `image_size` is zero or absurd.
    #[error("image_size is {height} x {width}, each side must be 1 to {MAX_SIDE}")]
    ImageSize {
        /// Rows asked for.
        height: usize,
        /// Columns asked for.
        width: usize,
    },
    /// `crop_pct` is not a usable fraction.
    #[error("crop_pct is {0}, it must be between 0.01 and 100 (1 uses the whole picture)")]
    CropPct(f64),
    /// `mean` and `std` do not describe one or three channels.
    #[error("mean has {mean} values and std {std}; both need 3 (RGB) or both 1 (grey)")]
    Channels {
        /// Values in `mean`.
        mean: usize,
        /// Values in `std`.
        std: usize,
    },
    /// A value of `mean` or `std` would give NaN or infinity.
    #[error("mean {mean} with std {std} in channel {channel}: both must be finite, std not zero")]
    Normalisation {
        /// Which channel.
        channel: usize,
        /// Its mean.
        mean: f32,
        /// Its standard deviation.
        std: f32,
    },
    /// The slice for the result has the wrong length.
    #[error("the output holds {found} values, {expected} are needed (channels x height x width)")]
    OutputLength {
        /// Values needed.
        expected: usize,
        /// Values given.
        found: usize,
    },
}

/// A rectangle in a picture: left, top, width and height, in pixels with fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Region {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// The longest side of a model's input; only there to turn nonsense into an error.
const MAX_SIDE: usize = 1 << 15;

/// The preprocessing that belongs to a model's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// Height and width of the model's input.
    pub image_size: [usize; 2],
    /// The part of the resized picture that the crop keeps: it is resized to `image_size / crop_pct`.
    pub crop_pct: f64,
    /// What happens to pictures of other proportions.
    pub crop_mode: CropMode,
    /// The filter for resizing.
    pub interpolation: Filter,
    /// Mean per channel, subtracted from values in 0..1; one value makes a grey model.
    pub mean: Vec<f32>,
    /// Standard deviation per channel, divided by after that.
    pub std: Vec<f32>,
}

impl Default for Preprocess {
    /// What timm uses for most Vision Transformers: 224, 0.9, bicubic, values in -1..1.
    fn default() -> Self {
        Self {
            image_size: [224, 224],
            crop_pct: 0.9,
            crop_mode: CropMode::Center,
            interpolation: Filter::Bicubic,
            mean: vec![0.5; 3],
            std: vec![0.5; 3],
        }
    }
}

impl Preprocess {
    /// Mean of ImageNet's training pictures, used by DeiT, ResNet and many others.
    pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
    /// Standard deviation that goes with [`IMAGENET_MEAN`](Self::IMAGENET_MEAN).
    pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

    /// Channels of the result: 3, or 1 for a grey model.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// Number of values that one picture becomes.
    pub fn output_len(&self) -> usize {
        self.channels().saturating_mul(self.image_size[0]).saturating_mul(self.image_size[1])
    }

    /// Checks the settings; everything else here does so first.
    pub fn validate(&self) -> Result<(), PreprocessError> {
        let [height, width] = self.image_size;
        if !(1..=MAX_SIDE).contains(&height) || !(1..=MAX_SIDE).contains(&width) {
            return Err(PreprocessError::ImageSize { height, width });
        }
        if !(0.01..=100.0).contains(&self.crop_pct) {
            return Err(PreprocessError::CropPct(self.crop_pct));
        }
        let (mean, std) = (self.mean.len(), self.std.len());
        if mean != std || !(mean == 1 || mean == 3) {
            return Err(PreprocessError::Channels { mean, std });
        }
        for (channel, (&mean, &std)) in self.mean.iter().zip(&self.std).enumerate() {
            if !mean.is_finite() || !std.is_normal() {
                return Err(PreprocessError::Normalisation { channel, mean, std });
            }
        }
        Ok(())
    }

    /// The model's input for `image`: channels x height x width, normalised.
    pub fn apply(&self, image: &Image) -> Result<Vec<f32>, PreprocessError> {
        self.validate()?;
        let mut out = vec![0.0; self.output_len()];
        self.apply_into(image, &mut out)?;
        Ok(out)
    }

    /// As [`apply`](Self::apply), into a slice of [`output_len`](Self::output_len) values, such
    /// as one row of a batch.
    pub fn apply_into(&self, image: &Image, out: &mut [f32]) -> Result<(), PreprocessError> {
        let cropped = self.crop(image)?;
        self.normalise_into(&cropped, out)
    }

    /// Scales and normalises a picture that already has the model's size into `out`.
    pub fn normalise_into(&self, image: &Image, out: &mut [f32]) -> Result<(), PreprocessError> {
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

    /// The resized and cropped picture, before any scaling: what the model gets to see. For a
    /// grey model it is grey.
    pub fn crop(&self, image: &Image) -> Result<Image, PreprocessError> {
        self.validate()?;
        let grey;
        let image = if self.channels() == 1 {
            grey = image.to_grey();
            &grey
        } else {
            image
        };
        let [height, width] = self.image_size;
        let (new_width, new_height) = self.resized(image.width(), image.height());
        let across = Placement::new(new_width, width);
        let down = Placement::new(new_height, height);
        let part =
            resize_window(image, (new_width, new_height), across.kept.clone(), down.kept.clone(), self.interpolation);
        if part.width() == width && part.height() == height {
            return Ok(part);
        }
        let mut canvas = vec![0; width * height * 3];
        if self.crop_mode == CropMode::Border {
            let colour = self.mean_colour();
            canvas.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&colour));
        }
        for y in 0..part.height() {
            let at = ((down.margin + y) * width + across.margin) * 3;
            canvas[at..at + part.width() * 3].copy_from_slice(part.row(y));
        }
        Ok(Image::from_parts(width, height, canvas))
    }

    /// The part of a picture of this size that becomes the model's input, in the picture's own pixels. It leaves the
    /// picture where the input has a border.
    pub fn region(&self, width: usize, height: usize) -> Result<Region, PreprocessError> {
        self.validate()?;
        let (new_width, new_height) = self.resized(width.max(1), height.max(1));
        let side = |length: usize, resized: usize, target: usize| {
            let Placement { kept, margin } = Placement::new(resized, target);
            let scale = length as f64 / resized as f64;
            ((kept.start as f64 - margin as f64) * scale, target as f64 * scale)
        };
        let (x, across) = side(width, new_width, self.image_size[1]);
        let (y, down) = side(height, new_height, self.image_size[0]);
        Ok(Region { x, y, width: across, height: down })
    }

    /// Width and height of the picture after resizing and before cropping.
    fn resized(&self, width: usize, height: usize) -> (usize, usize) {
        let [target_height, target_width] =
            self.image_size.map(|side| ((side as f64 / self.crop_pct).floor()).max(1.0));
        let (w, h) = (width as f64, height as f64);
        let proportional = |ratio: f64| {
            // Rounded half to even, as Python does; timm fails where this would give zero.
            let side = |length: f64| (length / ratio).round_ties_even().max(1.0) as usize;
            (side(w), side(h))
        };
        match self.crop_mode {
            CropMode::Squash => (target_width as usize, target_height as usize),
            CropMode::Border => proportional((h / target_height).max(w / target_width)),
            CropMode::Center if target_width != target_height => {
                proportional((h / target_height).min(w / target_width))
            }
            CropMode::Center => {
                let long = (target_width * w.max(h) / w.min(h)) as usize;
                let short = target_width as usize;
                if width <= height { (short, long) } else { (long, short) }
            }
        }
    }

    pub(crate) fn mean_colour(&self) -> [u8; 3] {
        std::array::from_fn(|channel| {
            let mean = self.mean[channel.min(self.mean.len() - 1)];
            (f64::from(mean) * 255.0).round_ties_even() as u8
        })
    }
}

/// Where a length lands when cropped or padded to another around the centre.
struct Placement {
    /// The part that stays.
    kept: Range<usize>,
    /// Empty space before it.
    margin: usize,
}

impl Placement {
    fn new(length: usize, target: usize) -> Self {
        if length <= target {
            return Self { kept: 0..length, margin: (target - length) / 2 };
        }
        // Half to even again: an excess of 1 cuts at 0, an excess of 3 at 2.
        let start = ((length - target) as f64 / 2.0).round_ties_even() as usize;
        Self { kept: start..start + target, margin: 0 }
    }
}
