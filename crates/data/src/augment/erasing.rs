//! Random erasing (Zhong et al., 2017) as in timm: rectangles of a normalised image are overwritten with noise, with
//! one random colour, or with the mean colour.

use super::SampleRandom;
use serde::{Deserialize, Serialize};

/// The content of an erased rectangle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErasingMode {
    /// Zero: the mean colour.
    Const,
    /// One normal value per channel.
    Rand,
    /// Normal noise.
    #[default]
    Pixel,
}

/// The settings of random erasing; off by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Erasing {
    /// Probability that an image is erased.
    pub probability: f64,
    /// The content of the rectangles.
    pub mode: ErasingMode,
    /// The maximum number of rectangles; each image has a random number of at least 1, which share the area.
    pub count: usize,
    /// Minimum and maximum fraction of the area.
    pub area: [f64; 2],
    /// Minimum and maximum aspect ratio, height to width.
    pub aspect: [f64; 2],
}

impl Default for Erasing {
    fn default() -> Self {
        let aspect = [0.3, 1.0 / 0.3];
        Self { probability: 0.0, mode: ErasingMode::Pixel, count: 1, area: [0.02, 1.0 / 3.0], aspect }
    }
}

impl Erasing {
    /// Overwrites parts of an image of normalised planes, `height` x `width` each.
    pub fn apply(&self, values: &mut [f32], height: usize, width: usize, random: &mut SampleRandom) {
        if self.probability <= 0.0 || !random.chance(self.probability) {
            return;
        }
        let count = 1 + random.below(self.count.max(1));
        for _ in 0..count {
            for _ in 0..10 {
                let target = random.range(self.area[0], self.area[1]) * (height * width) as f64 / count as f64;
                let aspect = libm::exp(random.range(libm::log(self.aspect[0]), libm::log(self.aspect[1])));
                let rows = (target * aspect).sqrt().round_ties_even() as usize;
                let columns = (target / aspect).sqrt().round_ties_even() as usize;
                if columns < width && rows < height {
                    let top = random.below(height - rows + 1);
                    let left = random.below(width - columns + 1);
                    for plane in values.chunks_exact_mut(height * width) {
                        let lines = plane.chunks_exact_mut(width).skip(top).take(rows);
                        self.overwrite(lines.map(|line| &mut line[left..left + columns]), random);
                    }
                    break;
                }
            }
        }
    }

    fn overwrite<'a>(&self, lines: impl Iterator<Item = &'a mut [f32]>, random: &mut SampleRandom) {
        match self.mode {
            ErasingMode::Const => lines.for_each(|line| line.fill(0.0)),
            ErasingMode::Rand => {
                let colour = random.normal() as f32;
                lines.for_each(|line| line.fill(colour));
            }
            ErasingMode::Pixel => lines.for_each(|line| random.fill_normal(line)),
        }
    }
}
