//! How images are prepared for a model, as its configuration says; the `data` crate does it.

/// The evaluation transform that weights were trained for.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessing {
    /// Height and width that the model takes.
    pub image_size: [usize; 2],
    /// The share of the resized image that the crop keeps.
    pub crop_pct: f64,
    /// timm's crop mode: `center`, `squash` or `border`.
    pub crop_mode: String,
    /// Pillow's name of the filter, e.g. `bicubic`.
    pub interpolation: String,
    /// Subtracted from each channel, in units of full scale.
    pub mean: Vec<f32>,
    /// Each channel is divided by it.
    pub std: Vec<f32>,
}

impl Preprocessing {
    /// Colours from -1 to 1, as in Google's models.
    pub fn inception() -> Self {
        Preprocessing {
            image_size: [224, 224],
            crop_pct: 0.9,
            crop_mode: "center".into(),
            interpolation: "bicubic".into(),
            mean: vec![0.5; 3],
            std: vec![0.5; 3],
        }
    }

    /// Colours standardised by ImageNet's mean and deviation.
    pub fn imagenet() -> Self {
        Preprocessing { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225], ..Self::inception() }
    }

    /// Whole images of 32 pixels, colours standardised by CIFAR-10's mean and deviation.
    pub fn cifar() -> Self {
        Preprocessing {
            image_size: [32, 32],
            crop_pct: 1.0,
            mean: vec![0.4914, 0.4822, 0.4465],
            std: vec![0.247, 0.2435, 0.2616],
            ..Self::inception()
        }
    }
}
