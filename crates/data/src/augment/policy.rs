//! Policies of random operations in timm's notation: `rand-m9-mstd0.5-inc1` draws operations for every image
//! (RandAugment), `original-mstd0.5` and others draw one of the pairs that AutoAugment's search found.

use super::geometry::Sampling;
use super::operation::FULL_LEVEL;
use super::rand_augment::RandAugment;
use super::{AugmentOp, SampleRandom};
use crate::image::Image;
use thiserror::Error;

/// An invalid policy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// No policy has this name.
    #[error(
        "unknown augmentation policy \"{0}\"; it starts with rand (as in rand-m9-mstd0.5-inc1), original, originalr, \
         v0, v0r or 3a"
    )]
    Name(String),
    /// A part that the policy does not have.
    #[error("unknown part \"{part}\" in the augmentation policy \"{policy}\"; known are {known}")]
    Part {
        /// The part.
        part: String,
        /// The whole text.
        policy: String,
        /// The parts that it has.
        known: &'static str,
    },
    /// A part with an invalid value.
    #[error("\"{part}\" in the augmentation policy \"{policy}\" needs {expected}")]
    Value {
        /// The part.
        part: String,
        /// The whole text.
        policy: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A part that occurs twice.
    #[error("the augmentation policy \"{policy}\" says {part} twice")]
    Twice {
        /// The part.
        part: String,
        /// The whole text.
        policy: String,
    },
}

/// A parsed policy.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoAugment(PolicyKind);

#[derive(Clone, Debug, PartialEq)]
enum PolicyKind {
    Random(RandAugment),
    Found { choices: Vec<Vec<PolicyStep>>, noise: LevelNoise },
}

/// An operation of AutoAugment's policies, its probability and its level.
type PolicyStep = (AugmentOp, f64, f64);

/// The random variation of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LevelNoise {
    /// Standard deviation around the level; infinite for a uniform distribution from 0 to the level.
    pub(super) deviation: f64,
    /// The highest level.
    pub(super) greatest: f64,
}

impl LevelNoise {
    pub(super) fn level(self, level: f64, random: &mut SampleRandom) -> f64 {
        let level = match self.deviation {
            0.0 => level,
            deviation if deviation.is_infinite() => random.range(0.0, level),
            deviation => level + deviation * random.normal(),
        };
        level.clamp(0.0, self.greatest)
    }
}

impl AutoAugment {
    /// Parses a policy.
    pub fn parse(policy: &str) -> Result<Self, PolicyError> {
        let (name, parts) = policy.split_once('-').unwrap_or((policy, ""));
        let parts = PolicyParts::new(policy, parts)?;
        if name == "rand" {
            return Ok(Self(PolicyKind::Random(RandAugment::parse(&parts)?)));
        }
        let choices = found(name).ok_or_else(|| PolicyError::Name(policy.to_owned()))?;
        parts.only(&["mstd"], "mstd (how much levels vary)")?;
        let deviation = parts.number("mstd")?.unwrap_or(0.0);
        Ok(Self(PolicyKind::Found { choices, noise: LevelNoise { deviation, greatest: FULL_LEVEL } }))
    }

    /// Applies the policy. Geometric operations interpolate with `sampling` and fill uncovered pixels with `fill`.
    pub fn apply(&self, image: &mut Image, sampling: Sampling, fill: [u8; 3], random: &mut SampleRandom) {
        match &self.0 {
            PolicyKind::Random(policy) => policy.apply(image, sampling, fill, random),
            PolicyKind::Found { choices, noise } => {
                for (operation, probability, level) in &choices[random.below(choices.len())] {
                    if random.chance(*probability) {
                        let level = noise.level(*level, random);
                        operation.apply(image, level, sampling, fill, random);
                    }
                }
            }
        }
    }
}

/// The parts after a policy's name: a key of letters and, from the first digit on, a value. Only `tweights` has a value
/// of letters.
pub(super) struct PolicyParts<'a> {
    policy: &'a str,
    parts: Vec<(&'a str, &'a str)>,
}

impl<'a> PolicyParts<'a> {
    fn new(policy: &'a str, text: &'a str) -> Result<Self, PolicyError> {
        let mut parts: Vec<(&str, &str)> = Vec::new();
        for part in text.split('-').filter(|_| !text.is_empty()) {
            let at =
                if part.starts_with('t') { 1 } else { part.find(|c: char| c.is_ascii_digit()).unwrap_or(part.len()) };
            let (key, value) = part.split_at(at);
            if parts.iter().any(|(other, _)| *other == key) {
                return Err(PolicyError::Twice { part: key.to_owned(), policy: policy.to_owned() });
            }
            parts.push((key, value));
        }
        Ok(Self { policy, parts })
    }

    /// Fails for keys that are not in the list.
    pub(super) fn only(&self, keys: &[&str], known: &'static str) -> Result<(), PolicyError> {
        match self.parts.iter().find(|(key, _)| !keys.contains(key)) {
            None => Ok(()),
            Some((key, value)) => {
                Err(PolicyError::Part { part: format!("{key}{value}"), policy: self.policy.to_owned(), known })
            }
        }
    }

    /// The value of a key, if present.
    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.parts.iter().find(|(other, _)| *other == key).map(|(_, value)| *value)
    }

    pub(super) fn wrong(&self, key: &str, expected: &'static str) -> PolicyError {
        let part = format!("{key}{}", self.text(key).unwrap_or_default());
        PolicyError::Value { part, policy: self.policy.to_owned(), expected }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, PolicyError> {
        self.text(key).map(|value| value.parse().map_err(|_| self.wrong(key, "a number"))).transpose()
    }

    pub(super) fn whole(&self, key: &str) -> Result<Option<u32>, PolicyError> {
        self.text(key).map(|value| value.parse().map_err(|_| self.wrong(key, "a whole number"))).transpose()
    }
}

/// The policies found by search (Cubuk et al., 2018, and its TPU version `v0`). An `r` marks posterizing that increases
/// with the level; `3a` is DeiT III's 3-Augment.
fn found(name: &str) -> Option<Vec<Vec<PolicyStep>>> {
    use AugmentOp::*;
    let pairs: &[[PolicyStep; 2]] = match name {
        "original" | "originalr" => &ORIGINAL,
        "v0" | "v0r" => &V0,
        "3a" => {
            let single = [(Solarize, 1.0, 5.0), (Desaturate, 1.0, 10.0), (GaussianBlurRand, 1.0, 10.0)];
            return Some(single.map(|step| vec![step]).to_vec());
        }
        _ => return None,
    };
    let increasing = name.ends_with('r');
    let step = |(operation, probability, level): PolicyStep| match operation {
        Posterize | PosterizeOriginal if increasing => (PosterizeIncreasing, probability, level),
        other => (other, probability, level),
    };
    Some(pairs.iter().map(|pair| pair.map(step).to_vec()).collect())
}

const ORIGINAL: [[PolicyStep; 2]; 25] = {
    use AugmentOp::*;
    [
        [(PosterizeOriginal, 0.4, 8.0), (Rotate, 0.6, 9.0)],
        [(Solarize, 0.6, 5.0), (AutoContrast, 0.6, 5.0)],
        [(Equalize, 0.8, 8.0), (Equalize, 0.6, 3.0)],
        [(PosterizeOriginal, 0.6, 7.0), (PosterizeOriginal, 0.6, 6.0)],
        [(Equalize, 0.4, 7.0), (Solarize, 0.2, 4.0)],
        [(Equalize, 0.4, 4.0), (Rotate, 0.8, 8.0)],
        [(Solarize, 0.6, 3.0), (Equalize, 0.6, 7.0)],
        [(PosterizeOriginal, 0.8, 5.0), (Equalize, 1.0, 2.0)],
        [(Rotate, 0.2, 3.0), (Solarize, 0.6, 8.0)],
        [(Equalize, 0.6, 8.0), (PosterizeOriginal, 0.4, 6.0)],
        [(Rotate, 0.8, 8.0), (Color, 0.4, 0.0)],
        [(Rotate, 0.4, 9.0), (Equalize, 0.6, 2.0)],
        [(Equalize, 0.0, 7.0), (Equalize, 0.8, 8.0)],
        [(Invert, 0.6, 4.0), (Equalize, 1.0, 8.0)],
        [(Color, 0.6, 4.0), (Contrast, 1.0, 8.0)],
        [(Rotate, 0.8, 8.0), (Color, 1.0, 2.0)],
        [(Color, 0.8, 8.0), (Solarize, 0.8, 7.0)],
        [(Sharpness, 0.4, 7.0), (Invert, 0.6, 8.0)],
        [(ShearX, 0.6, 5.0), (Equalize, 1.0, 9.0)],
        [(Color, 0.4, 0.0), (Equalize, 0.6, 3.0)],
        [(Equalize, 0.4, 7.0), (Solarize, 0.2, 4.0)],
        [(Solarize, 0.6, 5.0), (AutoContrast, 0.6, 5.0)],
        [(Invert, 0.6, 4.0), (Equalize, 1.0, 8.0)],
        [(Color, 0.6, 4.0), (Contrast, 1.0, 8.0)],
        [(Equalize, 0.8, 8.0), (Equalize, 0.6, 3.0)],
    ]
};

const V0: [[PolicyStep; 2]; 25] = {
    use AugmentOp::*;
    [
        [(Equalize, 0.8, 1.0), (ShearY, 0.8, 4.0)],
        [(Color, 0.4, 9.0), (Equalize, 0.6, 3.0)],
        [(Color, 0.4, 1.0), (Rotate, 0.6, 8.0)],
        [(Solarize, 0.8, 3.0), (Equalize, 0.4, 7.0)],
        [(Solarize, 0.4, 2.0), (Solarize, 0.6, 2.0)],
        [(Color, 0.2, 0.0), (Equalize, 0.8, 8.0)],
        [(Equalize, 0.4, 8.0), (SolarizeAdd, 0.8, 3.0)],
        [(ShearX, 0.2, 9.0), (Rotate, 0.6, 8.0)],
        [(Color, 0.6, 1.0), (Equalize, 1.0, 2.0)],
        [(Invert, 0.4, 9.0), (Rotate, 0.6, 0.0)],
        [(Equalize, 1.0, 9.0), (ShearY, 0.6, 3.0)],
        [(Color, 0.4, 7.0), (Equalize, 0.6, 0.0)],
        [(Posterize, 0.4, 6.0), (AutoContrast, 0.4, 7.0)],
        [(Solarize, 0.6, 8.0), (Color, 0.6, 9.0)],
        [(Solarize, 0.2, 4.0), (Rotate, 0.8, 9.0)],
        [(Rotate, 1.0, 7.0), (TranslateYRel, 0.8, 9.0)],
        [(ShearX, 0.0, 0.0), (Solarize, 0.8, 4.0)],
        [(ShearY, 0.8, 0.0), (Color, 0.6, 4.0)],
        [(Color, 1.0, 0.0), (Rotate, 0.6, 2.0)],
        [(Equalize, 0.8, 4.0), (Equalize, 0.0, 8.0)],
        [(Equalize, 1.0, 4.0), (AutoContrast, 0.6, 2.0)],
        [(ShearY, 0.4, 7.0), (SolarizeAdd, 0.6, 7.0)],
        [(Posterize, 0.8, 2.0), (Solarize, 0.6, 10.0)],
        [(Solarize, 0.6, 8.0), (Equalize, 0.6, 1.0)],
        [(Color, 0.8, 6.0), (Rotate, 0.4, 5.0)],
    ]
};
