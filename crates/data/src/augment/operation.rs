//! The operations of policies, each at a level of 0 to 10 with timm's meaning: a higher level usually changes more, but
//! posterizing, solarizing and the enhancements exist in two variants, and only the "increasing" one does.

use super::geometry::{self, Sampling};
use super::{SampleRandom, blur, enhance, point};
use crate::image::Image;

/// An operation of timm's policies, with timm's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the operations' own")]
pub enum AugmentOp {
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    PosterizeIncreasing,
    PosterizeOriginal,
    Solarize,
    SolarizeIncreasing,
    SolarizeAdd,
    Color,
    ColorIncreasing,
    Contrast,
    ContrastIncreasing,
    Brightness,
    BrightnessIncreasing,
    Sharpness,
    SharpnessIncreasing,
    ShearX,
    ShearY,
    TranslateXRel,
    TranslateYRel,
    Desaturate,
    GaussianBlur,
    GaussianBlurRand,
}

/// The level at which the formulas give their full effect.
pub(super) const FULL_LEVEL: f64 = 10.0;

impl AugmentOp {
    /// The operation's argument at a level: degrees, bits, a threshold, an amount, a factor or a fraction of the side;
    /// zero for operations without one. `opposite` negates the direction.
    pub fn argument(self, level: f64, opposite: bool) -> f64 {
        use AugmentOp::*;
        let part = level / FULL_LEVEL;
        let either = |value: f64| if opposite { -value } else { value };
        match self {
            AutoContrast | Equalize | Invert => 0.0,
            Rotate => either(part * 30.0),
            Posterize => (part * 4.0).trunc(),
            PosterizeIncreasing => 4.0 - (part * 4.0).trunc(),
            PosterizeOriginal => (part * 4.0).trunc() + 4.0,
            Solarize => (part * 256.0).trunc().min(256.0),
            SolarizeIncreasing => 256.0 - (part * 256.0).trunc().min(256.0),
            SolarizeAdd => (part * 110.0).trunc().min(128.0),
            Color | Contrast | Brightness | Sharpness => part * 1.8 + 0.1,
            ColorIncreasing | ContrastIncreasing | BrightnessIncreasing | SharpnessIncreasing => {
                (1.0 + either(part * 0.9)).max(0.1)
            }
            ShearX | ShearY => either(part * 0.3),
            TranslateXRel | TranslateYRel => either(part * 0.45),
            Desaturate => (0.5 + (1.0 - 0.5) * part).clamp(0.5, 1.0),
            GaussianBlur => (0.1 + (2.0 - 0.1) * part).clamp(0.1, 2.0),
            GaussianBlurRand => part.clamp(0.0, 1.0),
        }
    }

    /// Applies the operation at a level. Geometric operations interpolate with `sampling` and fill uncovered pixels
    /// with `fill`.
    pub fn apply(self, image: &mut Image, level: f64, sampling: Sampling, fill: [u8; 3], random: &mut SampleRandom) {
        use AugmentOp::*;
        let argument = self.argument(level, random.chance(0.5));
        match self {
            AutoContrast => point::auto_contrast(image),
            Equalize => point::equalize(image),
            Invert => point::invert(image),
            Rotate => geometry::rotate(image, argument, sampling, fill),
            Posterize | PosterizeIncreasing | PosterizeOriginal => point::posterize(image, argument.max(0.0) as u32),
            Solarize | SolarizeIncreasing => point::solarize(image, argument),
            SolarizeAdd => point::solarize_add(image, argument as u8),
            Color | ColorIncreasing => enhance::colour(image, argument),
            Contrast | ContrastIncreasing => enhance::contrast(image, argument),
            Brightness | BrightnessIncreasing => enhance::brightness(image, argument),
            Sharpness | SharpnessIncreasing => enhance::sharpness(image, argument),
            ShearX => geometry::shear_x(image, argument, sampling, fill),
            ShearY => geometry::shear_y(image, argument, sampling, fill),
            TranslateXRel => {
                let pixels = argument * image.width() as f64;
                geometry::translate(image, pixels, 0.0, sampling, fill);
            }
            TranslateYRel => {
                let pixels = argument * image.height() as f64;
                geometry::translate(image, 0.0, pixels, sampling, fill);
            }
            Desaturate => enhance::colour(image, (1.0 - argument).clamp(0.0, 1.0)),
            GaussianBlur => blur::gaussian_blur(image, argument),
            GaussianBlurRand => blur::gaussian_blur(image, random.range(0.1, 2.0 * argument)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AugmentOp::*;

    #[test]
    fn levels_mean_what_they_mean_in_timm() {
        for (operation, level, opposite, expected) in [
            (Rotate, 9.0, false, 27.0),
            (Rotate, 9.0, true, -27.0),
            (Posterize, 9.0, false, 3.0),
            (PosterizeIncreasing, 9.0, false, 1.0),
            (PosterizeIncreasing, 10.0, false, 0.0),
            (PosterizeOriginal, 7.0, false, 6.0),
            (Solarize, 9.0, false, 230.0),
            (SolarizeIncreasing, 9.0, false, 26.0),
            (SolarizeIncreasing, 30.0, false, 0.0),
            (SolarizeAdd, 9.0, false, 99.0),
            (SolarizeAdd, 30.0, false, 128.0),
            (Color, 5.0, true, 1.0),
            (ContrastIncreasing, 10.0, true, 0.1),
            (ContrastIncreasing, 30.0, true, 0.1),
            (SharpnessIncreasing, 10.0, false, 1.9),
            (ShearX, 10.0, true, -0.3),
            (TranslateYRel, 10.0, false, 0.45),
            (Desaturate, 10.0, false, 1.0),
            (GaussianBlur, 0.0, false, 0.1),
            (GaussianBlurRand, 30.0, false, 1.0),
        ] {
            let found = operation.argument(level, opposite);
            assert!((found - expected).abs() < 1e-12, "{operation:?} at {level}: {found}");
        }
    }
}
