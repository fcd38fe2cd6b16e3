//! Colour jitter: brightness, contrast, saturation and hue by random amounts in random order, as in torchvision.

use super::{SampleRandom, enhance, hue};
use crate::image::Image;
use serde::{Deserialize, Serialize};

/// The ranges of colour jitter. Factors are drawn from 1 - x to 1 + x (at least 0), the rotation of the hue from -x to
/// x of the full circle. All zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ColourJitter {
    /// Brightness.
    pub brightness: f64,
    /// Contrast.
    pub contrast: f64,
    /// Saturation.
    pub saturation: f64,
    /// Hue, at most 0.5.
    pub hue: f64,
}

impl ColourJitter {
    /// The same range for brightness, contrast and saturation, no hue: what recipes give as one value.
    pub fn uniform(amount: f64) -> Self {
        Self { brightness: amount, contrast: amount, saturation: amount, hue: 0.0 }
    }

    /// Whether all ranges are zero.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Applies the jitter.
    pub fn apply(&self, image: &mut Image, random: &mut SampleRandom) {
        if self.is_none() {
            return;
        }
        let mut order = [0, 1, 2, 3];
        random.shuffle(&mut order);
        let mut factor = |amount: f64| random.range((1.0 - amount).max(0.0), 1.0 + amount);
        let factors = [factor(self.brightness), factor(self.contrast), factor(self.saturation)];
        let turn = random.range(-self.hue, self.hue);
        for which in order {
            match which {
                0 if self.brightness > 0.0 => enhance::brightness(image, factors[0]),
                1 if self.contrast > 0.0 => enhance::contrast(image, factors[1]),
                2 if self.saturation > 0.0 => enhance::colour(image, factors[2]),
                3 if self.hue > 0.0 => hue::hue(image, turn),
                _ => {}
            }
        }
    }
}
