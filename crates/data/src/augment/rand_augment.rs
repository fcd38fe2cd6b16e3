//! RandAugment (Cubuk et al., 2019) in timm's version: several operations in a row, each applied with a probability, at
//! levels that vary around one magnitude.

use super::geometry::Sampling;
use super::operation::FULL_LEVEL;
use super::policy::{LevelNoise, PolicyError, PolicyParts};
use super::{AugmentOp, SampleRandom};
use crate::image::Image;

/// The settings of a policy `rand-...`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RandAugment {
    operations: Vec<AugmentOp>,
    /// The probability of each operation, unless all are equal: then no operation is drawn twice for an image.
    weights: Option<Vec<f64>>,
    layers: usize,
    probability: f64,
    magnitude: f64,
    noise: LevelNoise,
}

const KNOWN: &str = "m (magnitude), n (operations per image), p (probability of each), mstd (how much levels vary), \
                     mmax (the greatest level), inc (1: levels only increase the effect), t (set of operations: \
                     tweights, t3a, t3aw) and w (w0: timm's former weights)";

/// timm reads a deviation above this as a level drawn uniformly from 0 to the magnitude.
const EVEN: f64 = 100.0;

impl RandAugment {
    pub(super) fn parse(parts: &PolicyParts) -> Result<Self, PolicyError> {
        parts.only(&["m", "n", "p", "mstd", "mmax", "inc", "t", "w"], KNOWN)?;
        let increasing = match parts.whole("inc")? {
            None | Some(0) => false,
            Some(1) => true,
            Some(_) => return Err(parts.wrong("inc", "0 or 1")),
        };
        let (operations, weights) = match (parts.text("t"), parts.whole("w")?) {
            (None, None) => (all(increasing), None),
            (None, Some(0)) => (all(increasing), Some(FORMER_WEIGHTS.to_vec())),
            (None, Some(_)) => return Err(parts.wrong("w", "0, the only former set of weights")),
            (Some(_), Some(_)) => return Err(parts.wrong("w", "to stand alone, without a set of operations")),
            (Some("weights"), None) => weighted(&WEIGHTED),
            (Some("3aw"), None) => weighted(&WEIGHTED_3A),
            (Some("3a"), None) => {
                use AugmentOp::*;
                (vec![SolarizeIncreasing, Desaturate, GaussianBlur], None)
            }
            (Some(_), None) => return Err(parts.wrong("t", "a set of operations: weights, 3a or 3aw")),
        };
        let layers = parts.whole("n")?.unwrap_or(2) as usize;
        let drawable = weights.as_ref().map_or(usize::MAX, |weights| weights.iter().filter(|w| **w > 0.0).count());
        if layers > drawable {
            return Err(parts.wrong("n", "to be no more than the operations that have a weight"));
        }
        let probability = parts.number("p")?.unwrap_or(0.5);
        if !(0.0..=1.0).contains(&probability) {
            return Err(parts.wrong("p", "a probability from 0 to 1"));
        }
        let deviation = match parts.number("mstd")?.unwrap_or(0.0) {
            deviation if deviation > EVEN => f64::INFINITY,
            deviation => deviation,
        };
        let greatest = match parts.whole("mmax")? {
            None | Some(0) => FULL_LEVEL,
            Some(greatest) => f64::from(greatest),
        };
        let magnitude = parts.whole("m")?.map_or(FULL_LEVEL, f64::from);
        Ok(Self { operations, weights, layers, probability, magnitude, noise: LevelNoise { deviation, greatest } })
    }

    pub(super) fn apply(&self, image: &mut Image, sampling: Sampling, fill: [u8; 3], random: &mut SampleRandom) {
        // One bit per operation, of which there are at most 15.
        let mut drawn = 0u32;
        for _ in 0..self.layers {
            let which = match &self.weights {
                None => random.below(self.operations.len()),
                Some(weights) => draw(weights, drawn, random),
            };
            drawn |= 1 << which;
            if random.chance(self.probability) {
                let level = self.noise.level(self.magnitude, random);
                self.operations[which].apply(image, level, sampling, fill, random);
            }
        }
    }
}

/// Draws by weight among those not drawn yet.
fn draw(weights: &[f64], drawn: u32, random: &mut SampleRandom) -> usize {
    let left = || weights.iter().enumerate().filter(|(which, weight)| drawn & 1 << which == 0 && **weight > 0.0);
    let mut point = random.uniform() * left().map(|(_, weight)| weight).sum::<f64>();
    let mut last = 0;
    for (which, weight) in left() {
        last = which;
        point -= weight;
        if point < 0.0 {
            break;
        }
    }
    last
}

fn all(increasing: bool) -> Vec<AugmentOp> {
    use AugmentOp::*;
    let of_two = |plain: AugmentOp, increases: AugmentOp| if increasing { increases } else { plain };
    vec![
        AutoContrast,
        Equalize,
        Invert,
        Rotate,
        of_two(Posterize, PosterizeIncreasing),
        of_two(Solarize, SolarizeIncreasing),
        SolarizeAdd,
        of_two(Color, ColorIncreasing),
        of_two(Contrast, ContrastIncreasing),
        of_two(Brightness, BrightnessIncreasing),
        of_two(Sharpness, SharpnessIncreasing),
        ShearX,
        ShearY,
        TranslateXRel,
        TranslateYRel,
    ]
}

/// The weights of `w0` in timm before it was removed, in the order of `all`.
const FORMER_WEIGHTS: [f64; 15] =
    [0.025, 0.005, 0.0, 0.3, 0.0, 0.005, 0.005, 0.025, 0.005, 0.005, 0.025, 0.2, 0.2, 0.1, 0.1];

fn weighted(choices: &[(AugmentOp, f64)]) -> (Vec<AugmentOp>, Option<Vec<f64>>) {
    let (operations, weights) = choices.iter().copied().unzip();
    (operations, Some(weights))
}

const WEIGHTED: [(AugmentOp, f64); 15] = {
    use AugmentOp::*;
    [
        (Rotate, 3.0),
        (ShearX, 2.0),
        (ShearY, 2.0),
        (TranslateXRel, 1.0),
        (TranslateYRel, 1.0),
        (ColorIncreasing, 0.25),
        (SharpnessIncreasing, 0.25),
        (AutoContrast, 0.25),
        (SolarizeIncreasing, 0.05),
        (SolarizeAdd, 0.05),
        (ContrastIncreasing, 0.05),
        (BrightnessIncreasing, 0.05),
        (Equalize, 0.05),
        (PosterizeIncreasing, 0.05),
        (Invert, 0.05),
    ]
};

const WEIGHTED_3A: [(AugmentOp, f64); 14] = {
    use AugmentOp::*;
    [
        (SolarizeIncreasing, 6.0),
        (Desaturate, 6.0),
        (GaussianBlur, 6.0),
        (Rotate, 3.0),
        (ShearX, 2.0),
        (ShearY, 2.0),
        (PosterizeIncreasing, 1.0),
        (AutoContrast, 1.0),
        (ColorIncreasing, 1.0),
        (SharpnessIncreasing, 1.0),
        (ContrastIncreasing, 1.0),
        (BrightnessIncreasing, 1.0),
        (Equalize, 1.0),
        (Invert, 1.0),
    ]
};
