//! The training transform: random augmentation and preprocessing of an image. An [`Augmentation`] holds the settings of
//! a recipe; a [`TrainTransform`] combines them with a model's preprocessing and turns an image into one row of a
//! batch.

use crate::augment::crop::{CropWindow, cut};
use crate::augment::{
    AutoAugment, ColourJitter, CropBox, Erasing, Fill, PolicyError, SampleRandom, Sampling, blur, enhance, geometry,
    point, three_augment,
};
use crate::image::Image;
use crate::preprocess::{ApplyPreprocess, Channel, Preprocess, PreprocessError, mean_colour};
use crate::resize::{resize, resize_window};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The crop of a training image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Crop {
    /// The centre, as in evaluation.
    #[default]
    Centre,
    /// A random part with a random aspect ratio, resized to the model's size.
    Resized {
        /// Minimum and maximum fraction of the area.
        #[serde(default = "Crop::usual_scale")]
        scale: [f64; 2],
        /// Minimum and maximum aspect ratio, width to height.
        #[serde(default = "Crop::usual_ratio")]
        ratio: [f64; 2],
    },
    /// The image, resized to cover the model's size if it has another, padded by a border; then a random window of it.
    Padded {
        /// Width of the border.
        pixels: usize,
        /// The content of the border.
        #[serde(default)]
        fill: Fill,
    },
}

impl Crop {
    /// A random part with the usual limits for ImageNet: 8 % to 100 % of the area, aspect ratios of 3:4 to 4:3.
    pub fn usual() -> Self {
        Crop::Resized { scale: Self::usual_scale(), ratio: Self::usual_ratio() }
    }

    fn usual_scale() -> [f64; 2] {
        [0.08, 1.0]
    }

    fn usual_ratio() -> [f64; 2] {
        [3.0 / 4.0, 4.0 / 3.0]
    }
}

/// The augmentation settings of a recipe. By default, the centre crop and nothing else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augmentation {
    /// The crop.
    pub crop: Crop,
    /// Probability of a horizontal flip.
    pub flip: f64,
    /// Probability of a vertical flip.
    pub vertical_flip: f64,
    /// RandAugment or AutoAugment in timm's notation, such as `rand-m9-mstd0.5-inc1`.
    pub auto_augment: Option<String>,
    /// DeiT III's 3-Augment.
    pub three_augment: bool,
    /// Random brightness, contrast, saturation and hue.
    pub colour_jitter: ColourJitter,
    /// Probability of the colour jitter.
    pub colour_jitter_probability: f64,
    /// Probability of grey, after the colour jitter.
    pub grey: f64,
    /// Probability of a Gaussian blur with a standard deviation of 0.1 to 2 pixels, after grey.
    pub blur: f64,
    /// Probability of solarizing at 128, after the blur.
    pub solarize: f64,
    /// Random erasing, applied last.
    pub erasing: Erasing,
    /// Repeated augmentation: versions of an image per epoch. The epoch then shows fewer images, not more batches.
    pub repeated: usize,
}

impl Default for Augmentation {
    fn default() -> Self {
        Self {
            crop: Crop::default(),
            flip: 0.0,
            vertical_flip: 0.0,
            auto_augment: None,
            three_augment: false,
            colour_jitter: ColourJitter::default(),
            colour_jitter_probability: 1.0,
            grey: 0.0,
            blur: 0.0,
            solarize: 0.0,
            erasing: Erasing::default(),
            repeated: 1,
        }
    }
}

/// An invalid setting of a transform.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum TransformError {
    /// An invalid policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An invalid preprocessing.
    #[error(transparent)]
    Preprocess(#[from] PreprocessError),
    /// A value out of range.
    #[error("{name} is {value}, it must be {allowed}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
}

impl Augmentation {
    /// Checks all settings.
    pub fn validate(&self) -> Result<(), TransformError> {
        let check = |is_right: bool, name, value: String, allowed| {
            if is_right { Ok(()) } else { Err(TransformError::Setting { name, value, allowed }) }
        };
        let probability = |name, value: f64| {
            check((0.0..=1.0).contains(&value), name, value.to_string(), "a probability from 0 to 1")
        };
        let between = |name, [low, high]: [f64; 2], least: f64, greatest: f64, allowed| {
            let is_right = least <= low && low <= high && high <= greatest && low > 0.0 && high.is_finite();
            check(is_right, name, format!("{low} to {high}"), allowed)
        };
        const AREA: &str = "a range of shares above 0 and up to 1";
        const RATIO: &str = "a range of numbers above 0";
        probability("flip", self.flip)?;
        probability("vertical_flip", self.vertical_flip)?;
        probability("colour_jitter_probability", self.colour_jitter_probability)?;
        probability("grey", self.grey)?;
        probability("blur", self.blur)?;
        probability("solarize", self.solarize)?;
        probability("erasing.probability", self.erasing.probability)?;
        between("erasing.area", self.erasing.area, 0.0, 1.0, AREA)?;
        between("erasing.aspect", self.erasing.aspect, 0.0, f64::MAX, RATIO)?;
        check(self.erasing.count >= 1, "erasing.count", self.erasing.count.to_string(), "at least 1")?;
        check(self.repeated >= 1, "repeated", self.repeated.to_string(), "at least 1 (each image once)")?;
        let ColourJitter { brightness, contrast, saturation, hue } = self.colour_jitter;
        for (name, value) in [
            ("colour_jitter.brightness", brightness),
            ("colour_jitter.contrast", contrast),
            ("colour_jitter.saturation", saturation),
        ] {
            check(value >= 0.0 && value.is_finite(), name, value.to_string(), "0 or more")?;
        }
        check((0.0..=0.5).contains(&hue), "colour_jitter.hue", hue.to_string(), "from 0 to 0.5")?;
        match self.crop {
            Crop::Centre => Ok(()),
            Crop::Resized { scale, ratio } => {
                between("crop.scale", scale, 0.0, 1.0, AREA)?;
                between("crop.ratio", ratio, 0.0, f64::MAX, RATIO)
            }
            Crop::Padded { pixels, .. } => check(pixels <= 4096, "crop.pixels", pixels.to_string(), "at most 4096"),
        }
    }
}

/// Augmentation and preprocessing for a model; everything that is the same for all images is computed once.
#[derive(Clone, Debug)]
pub struct TrainTransform {
    preprocess: Preprocess,
    augmentation: Augmentation,
    policy: Option<AutoAugment>,
    channels: Vec<Channel>,
    fill: [u8; 3],
    /// Transforms of the same image, whose results follow.
    further_views: Vec<TrainTransform>,
}

impl TrainTransform {
    /// Combines augmentation settings with the preprocessing of a model.
    pub fn new(preprocess: &Preprocess, augmentation: &Augmentation) -> Result<Self, TransformError> {
        preprocess.validate()?;
        augmentation.validate()?;
        let channels = preprocess.mean.iter().zip(&preprocess.std).map(|(mean, std)| Channel::new(*mean, *std));
        Ok(Self {
            policy: augmentation.auto_augment.as_deref().map(AutoAugment::parse).transpose()?,
            channels: channels.collect(),
            fill: mean_colour(preprocess),
            preprocess: preprocess.clone(),
            augmentation: augmentation.clone(),
            further_views: Vec::new(),
        })
    }

    /// The same with further views of each image, perhaps of other sizes (multi-crop), which follow the first.
    pub fn with_views(mut self, further: impl IntoIterator<Item = TrainTransform>) -> Self {
        self.further_views.extend(further);
        self
    }

    /// Values per image, of all its views.
    pub fn output_len(&self) -> usize {
        self.preprocess.output_len() + self.further_views.iter().map(TrainTransform::output_len).sum::<usize>()
    }

    /// The side of a square image that suits the transform: without resizing where the crop has a fixed size, and with room for
    /// crops where their size is random.
    pub fn source_side(&self) -> usize {
        let [height, width] = self.preprocess.image_size;
        let own = match self.augmentation.crop {
            Crop::Centre => self.preprocess.source_side(),
            Crop::Resized { .. } => height.max(width) * 3 / 2,
            Crop::Padded { .. } => height.max(width),
        };
        self.further_views.iter().map(TrainTransform::source_side).fold(own, usize::max)
    }

    /// The model's preprocessing.
    pub fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    /// The augmentation settings.
    pub fn augmentation(&self) -> &Augmentation {
        &self.augmentation
    }

    /// Writes the transformed image to `into`: `[channel][height][width]` of each view, normalised,
    /// [`output_len`](Self::output_len) values.
    pub fn apply(&self, image: &Image, random: &mut SampleRandom, into: &mut [f32]) -> Result<(), TransformError> {
        let [height, width] = self.preprocess.image_size;
        let expected = self.output_len();
        if into.len() != expected {
            return Err(PreprocessError::OutputLength { expected, found: into.len() }.into());
        }
        let (into, mut further) = into.split_at_mut(self.preprocess.output_len());
        let augmented = self.augmented(image, random)?;
        for (number, (channel, plane)) in self.channels.iter().zip(into.chunks_exact_mut(height * width)).enumerate() {
            channel.write(augmented.pixels(), number, plane);
        }
        self.augmentation.erasing.apply(into, height, width, random);
        for view in &self.further_views {
            let (into, rest) = std::mem::take(&mut further).split_at_mut(view.output_len());
            view.apply(image, random, into)?;
            further = rest;
        }
        Ok(())
    }

    /// The augmented image before normalisation.
    pub fn augmented(&self, image: &Image, random: &mut SampleRandom) -> Result<Image, TransformError> {
        let [height, width] = self.preprocess.image_size;
        let settings = &self.augmentation;
        let filter = self.preprocess.interpolation;
        let mut augmented = match settings.crop {
            Crop::Centre => self.preprocess.crop(image)?,
            Crop::Resized { scale, ratio } => {
                let region = CropBox::random(image.width(), image.height(), scale, ratio, random);
                resize(&cut(image, region), width, height, filter)
            }
            Crop::Padded { pixels, fill } => {
                let covering = covering_size(image, width, height);
                let left = random.below(covering.0 + 2 * pixels - width + 1);
                let top = random.below(covering.1 + 2 * pixels - height + 1);
                let window = CropWindow { border: pixels, fill, corner: (left, top), size: (width, height) };
                // Only the visible part is resized: an image of 1 x 1,000,000 pixels would grow to gigabytes.
                match window.shown(covering) {
                    _ if covering == (image.width(), image.height()) => window.of(image, (0, 0), covering),
                    Some((columns, rows)) => {
                        let origin = (columns.start, rows.start);
                        window.of(&resize_window(image, covering, columns, rows, filter), origin, covering)
                    }
                    None => Image::from_parts(width, height, vec![0; width * height * 3]),
                }
            }
        };
        if settings.flip > 0.0 && random.chance(settings.flip) {
            geometry::flip(&mut augmented);
        }
        if settings.vertical_flip > 0.0 && random.chance(settings.vertical_flip) {
            geometry::flip_vertically(&mut augmented);
        }
        if let Some(policy) = &self.policy {
            policy.apply(&mut augmented, Sampling::from(filter), self.fill, random);
        }
        if settings.three_augment {
            three_augment(&mut augmented, random);
        }
        if settings.colour_jitter_probability >= 1.0 || random.chance(settings.colour_jitter_probability) {
            settings.colour_jitter.apply(&mut augmented, random);
        }
        if settings.grey > 0.0 && random.chance(settings.grey) {
            enhance::to_grey(&mut augmented);
        }
        if settings.blur > 0.0 && random.chance(settings.blur) {
            blur::gaussian_blur(&mut augmented, random.range(0.1, 2.0));
        }
        if settings.solarize > 0.0 && random.chance(settings.solarize) {
            point::solarize(&mut augmented, 128.0);
        }
        if self.channels.len() == 1 {
            augmented = augmented.to_grey();
        }
        Ok(augmented)
    }
}

/// The size at which an image just covers `width` x `height`, with its aspect ratio; for a square this is torchvision's
/// rule for the shorter side.
fn covering_size(image: &Image, width: usize, height: usize) -> (usize, usize) {
    let (w, h) = (image.width(), image.height());
    // Compares w / width with h / height.
    if w * height <= h * width { (width, (width * h / w).max(height)) } else { ((height * w / h).max(width), height) }
}
