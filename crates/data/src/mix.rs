//! Mixup (Zhang et al., 2017) and CutMix (Yun et al., 2019): every image of a batch is blended with, or gets a
//! rectangle of, its partner in the reversed batch, or in the reversed part of a batch that is cut into parts; the
//! targets are blended in the same proportion. The arithmetic is that of timm's per-batch mode; the choices are a
//! function of seed and step. Everything happens in place.

use crate::augment::{CropBox, SampleRandom};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Mixing of batches and smoothing of targets; off by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mix {
    /// Mixup's alpha, the parameter of its beta distribution; 0 for none.
    pub mixup: f64,
    /// CutMix's alpha; 0 for none.
    pub cutmix: f64,
    /// Probability that a batch is mixed at all.
    pub probability: f64,
    /// Probability of CutMix where both are on.
    pub switch: f64,
    /// The step from which on no batch is mixed.
    pub until: u64,
    /// Label smoothing: the probability that is spread over all classes.
    pub smoothing: f64,
}

impl Default for Mix {
    fn default() -> Self {
        Self { mixup: 0.0, cutmix: 0.0, probability: 1.0, switch: 0.5, until: u64::MAX, smoothing: 0.0 }
    }
}

/// An invalid setting of mixing.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("mix.{name} is {value}, it must be {allowed}")]
pub struct MixError {
    name: &'static str,
    value: f64,
    allowed: &'static str,
}

/// The mixing of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mixing {
    /// None.
    #[default]
    None,
    /// Each image is `lambda` of itself plus `1 - lambda` of its partner.
    Mixup {
        /// The image's weight.
        lambda: f64,
    },
    /// Each image has a rectangle of its partner.
    CutMix {
        /// The fraction of the area that is the image's.
        lambda: f64,
        /// The rectangle of the partner.
        region: CropBox,
    },
}

impl Mix {
    /// Checks all settings.
    pub fn validate(&self) -> Result<(), MixError> {
        let alpha = "0 (none) or a positive number";
        let probability = "from 0 to 1";
        let share = 0.0..=1.0;
        for (name, value, is_right, allowed) in [
            ("mixup", self.mixup, self.mixup >= 0.0 && self.mixup.is_finite(), alpha),
            ("cutmix", self.cutmix, self.cutmix >= 0.0 && self.cutmix.is_finite(), alpha),
            ("probability", self.probability, share.contains(&self.probability), probability),
            ("switch", self.switch, share.contains(&self.switch), probability),
            ("smoothing", self.smoothing, (0.0..1.0).contains(&self.smoothing), "at least 0 and below 1"),
        ] {
            if !is_right {
                return Err(MixError { name, value, allowed });
            }
        }
        Ok(())
    }

    /// The mixing of a step's batch of `height` x `width` images.
    pub fn choose(&self, seed: u64, step: u64, height: usize, width: usize) -> Mixing {
        let mut random = SampleRandom::for_batch(seed, step);
        if step >= self.until || (self.mixup <= 0.0 && self.cutmix <= 0.0) || !random.chance(self.probability) {
            return Mixing::None;
        }
        let is_cutmix = self.cutmix > 0.0 && (self.mixup <= 0.0 || random.chance(self.switch));
        let lambda = random.beta(if is_cutmix { self.cutmix } else { self.mixup });
        if lambda == 1.0 {
            return Mixing::None;
        }
        if !is_cutmix {
            return Mixing::Mixup { lambda };
        }
        let side = (1.0 - lambda).sqrt();
        let (rows, columns) = ((height as f64 * side) as usize, (width as f64 * side) as usize);
        // The centre is anywhere in the image; the rectangle is clipped.
        let mut span = |length: usize, part: usize| {
            let centre = random.below(length);
            let start = centre.saturating_sub(part / 2);
            (start, (centre + part.div_ceil(2)).min(length) - start)
        };
        let ((top, height_part), (left, width_part)) = (span(height, rows), span(width, columns));
        let region = CropBox { left, top, width: width_part, height: height_part };
        let lambda = 1.0 - (height_part * width_part) as f64 / (height * width) as f64;
        Mixing::CutMix { lambda, region }
    }
}

impl Mixing {
    /// The weight of each image in its result.
    pub fn lambda(&self) -> f64 {
        match self {
            Mixing::None => 1.0,
            Mixing::Mixup { lambda } | Mixing::CutMix { lambda, .. } => *lambda,
        }
    }

    /// Mixes `count` images of planes of rows of `width` values.
    pub fn mix(&self, images: &mut [f32], count: usize, height: usize, width: usize) {
        match self {
            Mixing::None => {}
            Mixing::Mixup { lambda } => mixup(images, count, *lambda),
            Mixing::CutMix { region, .. } => cutmix(images, count, height, width, *region),
        }
    }
}

/// Every image becomes `lambda` of itself plus `1 - lambda` of its partner in the reversed batch.
pub fn mixup(images: &mut [f32], count: usize, lambda: f64) {
    let (own, other) = (lambda as f32, (1.0 - lambda) as f32);
    pairs(images, count, |a, b| {
        for (a, b) in a.iter_mut().zip(b) {
            (*a, *b) = (*a * own + *b * other, *b * own + *a * other);
        }
    });
    if let Some(middle) = middle(images, count) {
        middle.iter_mut().for_each(|value| *value = *value * own + *value * other);
    }
}

/// Every image gets the rectangle of its partner in the reversed batch.
pub fn cutmix(images: &mut [f32], count: usize, height: usize, width: usize, region: CropBox) {
    let CropBox { left, top, width: columns, height: rows } = region;
    pairs(images, count, |a, b| {
        for (a, b) in a.chunks_exact_mut(height * width).zip(b.chunks_exact_mut(height * width)) {
            let lines = a.chunks_exact_mut(width).zip(b.chunks_exact_mut(width)).skip(top).take(rows);
            lines.for_each(|(a, b)| a[left..left + columns].swap_with_slice(&mut b[left..left + columns]));
        }
    });
}

/// Calls `work` with each image of the first half and its partner.
fn pairs(images: &mut [f32], count: usize, work: impl Fn(&mut [f32], &mut [f32])) {
    let length = images.len() / count.max(1);
    let (first, second) = images.split_at_mut(count / 2 * length);
    let partners = second.rchunks_exact_mut(length.max(1));
    first.chunks_exact_mut(length.max(1)).zip(partners).for_each(|(a, b)| work(a, b));
}

/// The middle image of an odd batch, which is its own partner.
fn middle(images: &mut [f32], count: usize) -> Option<&mut [f32]> {
    let length = images.len() / count.max(1);
    (count % 2 == 1).then(|| &mut images[count / 2 * length..][..length])
}

/// The target of a sample: its classes, with probabilities where the label is soft.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The classes.
    pub classes: &'a [u32],
    /// Their probabilities, which add up to 1.
    pub shares: Option<&'a [f32]>,
}

impl<'a> From<&'a [u32]> for Target<'a> {
    fn from(classes: &'a [u32]) -> Self {
        Target { classes, shares: None }
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Target<'a> {
    fn from(classes: &'a [u32; N]) -> Self {
        Target::from(&classes[..])
    }
}

impl Target<'_> {
    /// Adds this sample's weighted target to a row.
    fn add(self, row: &mut [f32], weight: f32) {
        for (place, class) in self.classes.iter().enumerate() {
            row[*class as usize] += weight * self.shares.map_or(1.0, |shares| shares[place]);
        }
    }
}

/// Writes the targets of a batch, a row of `classes` values per sample; `labels` returns the label of a place in the
/// batch. A sample's class gets `1 - smoothing + smoothing / classes`, every other class `smoothing / classes`; a soft
/// label distributes `1 - smoothing` by its probabilities. A row is `lambda` of the sample's target plus `1 - lambda`
/// of its partner's.
pub fn write_targets<'a, T: Into<Target<'a>>>(
    targets: &mut [f32],
    classes: usize,
    labels: impl Fn(usize) -> T,
    smoothing: f64,
    lambda: f64,
) {
    let off = smoothing / classes as f64;
    let [off, on, whole] = [off, 1.0 - smoothing + off, 1.0 - smoothing].map(|value| value as f32);
    let (own, other) = (lambda as f32, (1.0 - lambda) as f32);
    let count = targets.len() / classes.max(1);
    for (place, row) in targets.chunks_exact_mut(classes.max(1)).enumerate() {
        let (mine, partner): (Target, Target) = (labels(place).into(), labels(count - 1 - place).into());
        row.fill(off * own + off * other);
        if mine.shares.is_some() || partner.shares.is_some() {
            mine.add(row, whole * own);
            partner.add(row, whole * other);
            continue;
        }
        for label in mine.classes {
            row[*label as usize] = on * own + off * other;
        }
        for label in partner.classes {
            let is_mine = mine.classes.contains(label);
            row[*label as usize] = if is_mine { on * own + on * other } else { off * own + on * other };
        }
    }
}
