//! The evaluation transform that belongs to a model's weights, as plain data: resize, crop, scale, normalise. It follows
//! timm's. `vit-models` reads and writes it with a configuration, `vit-data` applies it to images, and neither knows the
//! other.

use thiserror::Error;

/// How a resized pixel is computed from its neighbours. All filters but `Nearest` widen when shrinking (antialiasing),
/// as in Pillow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// The pixel under the centre, no antialiasing.
    Nearest,
    /// Mean of the pixels covered.
    Box,
    /// Triangle.
    Bilinear,
    /// Hamming-windowed sinc of width 1.
    Hamming,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// Sinc windowed by a sinc, three lobes.
    Lanczos,
}

impl Filter {
    /// All filters, from narrow to wide.
    pub const ALL: [Filter; 6] =
        [Filter::Nearest, Filter::Box, Filter::Bilinear, Filter::Hamming, Filter::Bicubic, Filter::Lanczos];

    /// The name that Pillow, torchvision and timm use, such as `"bicubic"`.
    pub fn name(self) -> &'static str {
        match self {
            Filter::Nearest => "nearest",
            Filter::Box => "box",
            Filter::Bilinear => "bilinear",
            Filter::Hamming => "hamming",
            Filter::Bicubic => "bicubic",
            Filter::Lanczos => "lanczos",
        }
    }
}

impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Filter {
    type Err = UnknownFilter;

    fn from_str(name: &str) -> Result<Self, UnknownFilter> {
        Filter::ALL.into_iter().find(|filter| filter.name() == name).ok_or_else(|| UnknownFilter(name.to_owned()))
    }
}

/// A name that no filter has.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("unknown interpolation \"{0}\"; use nearest, box, bilinear, hamming, bicubic or lanczos")]
pub struct UnknownFilter(pub String);

/// How an image of any shape becomes one of the model's shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CropMode {
    /// Keep the aspect ratio, cover the target, crop the rest.
    #[default]
    Center,
    /// Change the aspect ratio; only `crop_pct` crops.
    Squash,
    /// Keep the aspect ratio, fit inside the target, fill the border with the mean colour.
    Border,
    /// Do not resize; crop what is larger than the target, pad what is smaller. Only transformers has it.
    Unscaled,
}

impl CropMode {
    /// All modes.
    pub const ALL: [CropMode; 4] = [CropMode::Center, CropMode::Squash, CropMode::Border, CropMode::Unscaled];

    /// The name that timm uses: `"center"`, `"squash"` or `"border"`; `"unscaled"` is not timm's.
    pub fn name(self) -> &'static str {
        match self {
            CropMode::Center => "center",
            CropMode::Squash => "squash",
            CropMode::Border => "border",
            CropMode::Unscaled => "unscaled",
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

/// The library whose arithmetic resizes images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Resizer {
    /// Pillow: weights of 22 bits, bytes after each of the two passes. timm and most image processors of transformers.
    #[default]
    Pillow,
    /// torchvision on tensors of bytes: weights of 15 bits. transformers' processors of that backend ("fast").
    Torchvision,
    /// torchvision on tensors of floats, without rounding. DINOv3's processor.
    TorchvisionFloats,
}

impl Resizer {
    /// All of them.
    pub const ALL: [Resizer; 3] = [Resizer::Pillow, Resizer::Torchvision, Resizer::TorchvisionFloats];

    /// The name in files of this project.
    pub fn name(self) -> &'static str {
        match self {
            Resizer::Pillow => "pillow",
            Resizer::Torchvision => "torchvision",
            Resizer::TorchvisionFloats => "torchvision_floats",
        }
    }
}

impl std::str::FromStr for Resizer {
    type Err = PreprocessError;

    fn from_str(name: &str) -> Result<Self, PreprocessError> {
        Resizer::ALL
            .into_iter()
            .find(|resizer| resizer.name() == name)
            .ok_or_else(|| PreprocessError::UnknownResizer(name.to_owned()))
    }
}

/// The library whose rounding a crop follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CropRule {
    /// timm and torchvision: a crop begins at half of the excess, rounded half to even, and padding before the image is half
    /// of what is missing, rounded down. For an input that is not square, the image is resized to cover it.
    #[default]
    Torchvision,
    /// transformers: a crop begins at half of the excess, rounded down, and padding before the image is rounded up, or down
    /// where torchvision resizes. The image's shorter side is resized to the input's shorter side divided by `crop_pct`.
    Transformers,
}

impl CropRule {
    /// All rules.
    pub const ALL: [CropRule; 2] = [CropRule::Torchvision, CropRule::Transformers];

    /// The library's name.
    pub fn name(self) -> &'static str {
        match self {
            CropRule::Torchvision => "torchvision",
            CropRule::Transformers => "transformers",
        }
    }
}

impl std::str::FromStr for CropRule {
    type Err = PreprocessError;

    fn from_str(name: &str) -> Result<Self, PreprocessError> {
        CropRule::ALL
            .into_iter()
            .find(|rule| rule.name() == name)
            .ok_or_else(|| PreprocessError::UnknownCropRule(name.to_owned()))
    }
}

/// An unusable preprocessing setting, or an output slice of the wrong length.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum PreprocessError {
    /// A name that no crop mode has.
    #[error("unknown crop mode \"{0}\"; use center, squash, border or unscaled")]
    UnknownCropMode(String),
    /// A name that no crop rule has.
    #[error("unknown crop rule \"{0}\"; use torchvision or transformers")]
    UnknownCropRule(String),
    /// A name that no resizer has.
    #[error("unknown resizer \"{0}\"; use pillow, torchvision or torchvision_floats")]
    UnknownResizer(String),
    /// `image_size` is out of range.
    #[error("image_size is {height} x {width}, each side must be 1 to {MAX_SIDE}")]
    ImageSize {
        /// Its height.
        height: usize,
        /// Its width.
        width: usize,
    },
    /// `crop_pct` is out of range.
    #[error("crop_pct is {0}, it must be between 0.01 and 100 (1 uses the whole image)")]
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
        /// The channel.
        channel: usize,
        /// Its mean.
        mean: f32,
        /// Its standard deviation.
        std: f32,
    },
    /// The output slice has the wrong length.
    #[error("the output holds {found} values, {expected} are needed (channels x height x width)")]
    OutputLength {
        /// Values needed.
        expected: usize,
        /// Values given.
        found: usize,
    },
}

/// The longest side of a model's input: a sanity limit.
const MAX_SIDE: usize = 1 << 15;

/// The evaluation transform that a model's weights were trained for.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// Height and width of the model's input.
    pub image_size: [usize; 2],
    /// The fraction of the resized image that the crop keeps: images are resized to `image_size / crop_pct`.
    pub crop_pct: f64,
    /// How images of another aspect ratio are cropped.
    pub crop_mode: CropMode,
    /// How the crop's position is rounded.
    pub crop_rule: CropRule,
    /// Whose arithmetic resizes.
    pub resizer: Resizer,
    /// The filter for resizing.
    pub interpolation: Filter,
    /// Mean per channel, subtracted from values in 0..1; a single value makes a grey model.
    pub mean: Vec<f32>,
    /// Standard deviation per channel.
    pub std: Vec<f32>,
}

impl Default for Preprocess {
    /// [`inception`](Self::inception), which timm uses for most Vision Transformers.
    fn default() -> Self {
        Self::inception()
    }
}

impl Preprocess {
    /// Values in -1..1, as Google's models take them.
    pub fn inception() -> Self {
        Self {
            image_size: [224, 224],
            crop_pct: 0.9,
            crop_mode: CropMode::Center,
            crop_rule: CropRule::Torchvision,
            resizer: Resizer::Pillow,
            interpolation: Filter::Bicubic,
            mean: vec![0.5; 3],
            std: vec![0.5; 3],
        }
    }

    /// With the mean and deviation of OpenAI's CLIP, as EVA's weights have them.
    pub fn clip() -> Self {
        Self {
            mean: vec![0.481_454_66, 0.457_827_5, 0.408_210_73],
            std: vec![0.268_629_54, 0.261_302_6, 0.275_777_1],
            ..Self::inception()
        }
    }

    /// Normalised by ImageNet's mean and standard deviation, as for DeiT, ResNet and many others.
    pub fn imagenet() -> Self {
        Self { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225], ..Self::inception() }
    }

    /// Values in 0..1.
    pub fn unit() -> Self {
        Self { mean: vec![0.0; 3], std: vec![1.0; 3], ..Self::inception() }
    }

    /// Whole images of 32 pixels, normalised by CIFAR-10's mean and standard deviation.
    pub fn cifar() -> Self {
        Self {
            image_size: [32, 32],
            crop_pct: 1.0,
            mean: vec![0.4914, 0.4822, 0.4465],
            std: vec![0.247, 0.2435, 0.2616],
            ..Self::inception()
        }
    }

    /// Channels of the model's input: 3, or 1 for a grey model.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// Values of the model's input per image.
    pub fn output_len(&self) -> usize {
        self.channels().saturating_mul(self.image_size[0]).saturating_mul(self.image_size[1])
    }

    /// Checks that the transform can be applied to images.
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
}
