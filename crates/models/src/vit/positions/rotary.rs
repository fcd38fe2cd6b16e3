//! Rotary positions: pairs of channels of queries and keys are rotated by angles that follow from a patch's row and
//! column. They combine with every embedding of positions.

use vit_graph::ops::{Constant, RotaryPairs};
use vit_graph::{Init, Tensor};

use super::super::Vit;
use crate::layers::{Building, Forward};

/// How patches get their angles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryPositions {
    /// Where coordinates and frequencies come from.
    pub angles: RotaryAngles,
    /// Wavelengths grow geometrically from the first pair of channels up to nearly this factor.
    pub temperature: f32,
    /// Which two channels are a pair.
    pub pairs: RotaryPairs,
    /// The first half of the pairs belongs to columns instead of rows; with learned frequencies, the first ones do.
    pub columns_first: bool,
    /// Added to the indices of rows and columns.
    pub offset: f32,
}

/// Coordinates and frequencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RotaryAngles {
    /// Half of the pairs for rows, half for columns, counted in patches (EVA-02). With a reference, a grid of another size
    /// is scaled to it, so that the angles at the border stay those of pre-training.
    Axial {
        /// Rows and columns of the grid of pre-training.
        reference: Option<[usize; 2]>,
    },
    /// Half of the pairs for rows, half for columns, as patch centres in -1..1 of each side (DINOv3).
    Centred {
        /// Random changes of the coordinates in training.
        augmentation: CoordinateAugmentation,
        /// Periods rounded to bf16, as in the published files of DINOv3.
        bf16_periods: bool,
    },
    /// Every pair has frequencies for both axes, learned for each block and head (RoPE-Mixed; Heo et al., 2024).
    Mixed,
}

/// Random changes of all coordinates of a batch in training.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CoordinateAugmentation {
    /// Each axis is moved by up to this.
    pub shift: Option<f32>,
    /// Each axis is multiplied by a factor between this and its inverse, uniform in the logarithm.
    pub jitter: Option<f32>,
    /// Both axes are multiplied by one such factor.
    pub rescale: Option<f32>,
}

impl CoordinateAugmentation {
    fn is_active(&self) -> bool {
        [self.shift, self.jitter, self.rescale].iter().any(Option::is_some)
    }
}

impl RotaryPositions {
    /// As in EVA-02, pre-trained with this grid.
    pub fn eva02(reference: [usize; 2]) -> Self {
        RotaryPositions {
            angles: RotaryAngles::Axial { reference: Some(reference) },
            temperature: 10_000.0,
            pairs: RotaryPairs::Adjacent,
            columns_first: false,
            offset: 0.0,
        }
    }

    /// As in DINOv3.
    pub fn dinov3() -> Self {
        let augmentation = CoordinateAugmentation::default();
        RotaryPositions {
            angles: RotaryAngles::Centred { augmentation, bf16_periods: false },
            temperature: 100.0,
            pairs: RotaryPairs::Halves,
            ..RotaryPositions::eva02([1, 1])
        }
    }

    /// Rounds the periods of centred coordinates to bf16.
    pub(crate) fn round_periods(&mut self) {
        if let RotaryAngles::Centred { bf16_periods, .. } = &mut self.angles {
            *bf16_periods = true;
        }
    }

    /// Whether a graph for training draws random numbers for them.
    pub(crate) fn is_random(&self) -> bool {
        matches!(self.angles, RotaryAngles::Centred { augmentation, .. } if augmentation.is_active())
    }

    /// The two coordinates of every patch, `[rows * columns, 2]`, in the order of the frequencies' axes. Rounded to f32
    /// where timm rounds.
    pub fn coordinates(&self, grid: [usize; 2]) -> Vec<f32> {
        let along = |axis: usize, index: usize| {
            let (at, extent) = (index as f32 + self.offset, grid[axis] as f32);
            match self.angles {
                RotaryAngles::Axial { reference: Some(reference) } => at / extent * reference[axis] as f32,
                RotaryAngles::Axial { reference: None } | RotaryAngles::Mixed => at,
                RotaryAngles::Centred { .. } => 2.0 * ((at + 0.5) / extent) - 1.0,
            }
        };
        let [rows, columns] = grid;
        (0..rows * columns)
            .flat_map(|patch| {
                let [row, column] = [along(0, patch / columns), along(1, patch % columns)];
                if self.columns_first { [column, row] } else { [row, column] }
            })
            .collect()
    }

    /// The fixed frequencies of one head, `[2, 1, head_dim / 2]`: the first half of the pairs turns with the first
    /// coordinate, the second with the other.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let quarter = head_dim / 4;
        let of = |i: usize| {
            let period = f64::from(self.temperature).powf(i as f64 / quarter as f64);
            match self.angles {
                RotaryAngles::Centred { bf16_periods, .. } => {
                    let period = if bf16_periods { bf16(period as f32) } else { period as f32 };
                    (std::f64::consts::TAU / f64::from(period)) as f32
                }
                _ => (1.0 / period) as f32,
            }
        };
        let (zeros, band) = (vec![0.0; quarter], (0..quarter).map(of).collect::<Vec<f32>>());
        [&band, &zeros, &zeros, &band].map(|part| part.as_slice()).concat()
    }

    /// Why no model can have these.
    pub(crate) fn contradiction(&self, head_dim: usize) -> Option<String> {
        (!head_dim.is_multiple_of(4))
            .then(|| format!("rotary positions need heads whose width 4 divides, not {head_dim}"))
    }
}

impl std::fmt::Display for RotaryPositions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.angles {
            RotaryAngles::Axial { reference: None } => "rotary, by row and column",
            RotaryAngles::Axial { reference: Some([rows, columns]) } => {
                return write!(f, "rotary, by row and column of a grid scaled to {rows} x {columns}");
            }
            RotaryAngles::Centred { .. } => "rotary, by patch centres from -1 to 1",
            RotaryAngles::Mixed => "rotary, with learned frequencies for every block and head",
        })
    }
}

/// The nearest bf16, ties to even.
pub(crate) fn bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// The tables of cosines and sines of a model's blocks.
pub(in super::super) enum BlockRotations {
    /// The same for all blocks and heads.
    Shared([Tensor; 2]),
    /// Learned frequencies `[2, depth, heads, head_dim / 2]`, and coordinates.
    Learned { coordinates: Tensor, frequencies: Tensor },
}

impl BlockRotations {
    /// The tables of one block: cosines and sines `[1 or heads, patches, head_dim / 2]`.
    pub fn of_block(&self, depth: usize) -> [Tensor; 2] {
        match self {
            BlockRotations::Shared(tables) => tables.clone(),
            BlockRotations::Learned { coordinates, frequencies } => {
                let (heads, pairs) = (frequencies.extent(2), frequencies.extent(3));
                coordinates.rotary_tables(&frequencies.slice(1, depth, 1).reshape([2, heads, pairs]))
            }
        }
    }
}

impl Forward<'_, Vit> {
    /// The tables of rotary positions, if the model has them.
    pub(in super::super) fn rotations(&self, image: &Tensor) -> Option<BlockRotations> {
        let (vit, positions) = (self.net, self.net.rotary?);
        let ([rows, columns], head_dim) = (vit.grid(), vit.dim / vit.heads);
        let coordinates = image.constant(Constant::f32([rows * columns, 2], positions.coordinates(vit.grid())));
        if positions.angles == RotaryAngles::Mixed {
            let init = Init::RotaryFrequencies { temperature: positions.temperature, pairs: head_dim / 2 };
            let frequencies = image.parameter("rope.freqs", [2, vit.depth, vit.heads, head_dim / 2], init);
            return Some(BlockRotations::Learned { coordinates, frequencies });
        }
        let frequencies = image.constant(Constant::f32([2, 1, head_dim / 2], positions.frequencies(head_dim)));
        let (coordinates, frequencies) = match positions.angles {
            RotaryAngles::Centred { augmentation, .. } => {
                augmented(augmentation, self.building, coordinates, frequencies)
            }
            _ => (coordinates, frequencies),
        };
        Some(BlockRotations::Shared(coordinates.rotary_tables(&frequencies)))
    }
}

/// Coordinates moved, and frequencies scaled in place of the coordinates: the products are the same, and these values are
/// stored in f32 whatever the precision, since they are the tables' inputs.
fn augmented(
    CoordinateAugmentation { shift, jitter, rescale }: CoordinateAugmentation,
    building: &Building,
    coordinates: Tensor,
    frequencies: Tensor,
) -> (Tensor, Tensor) {
    let Some(seed) = building.seed() else { return (coordinates, frequencies) };
    let coordinates = match shift {
        Some(shift) => coordinates + seed.uniform([1, 2], -shift, shift),
        None => coordinates,
    };
    let factor = |most: f32, axes: usize| seed.uniform([axes, 1, 1], -most.ln(), most.ln()).exp();
    let factors = [jitter.map(|most| factor(most, 2)), rescale.map(|most| factor(most, 1))];
    (coordinates, factors.into_iter().flatten().fold(frequencies, |scaled, factor| scaled * factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eva02_scales_another_grid_to_that_of_pre_training() {
        let positions = RotaryPositions::eva02([16, 16]);
        let coordinates = positions.coordinates([2, 4]);
        assert_eq!(coordinates, [0.0, 0.0, 0.0, 4.0, 0.0, 8.0, 0.0, 12.0, 8.0, 0.0, 8.0, 4.0, 8.0, 8.0, 8.0, 12.0]);
        let columns_first = RotaryPositions { columns_first: true, offset: 1.0, ..positions };
        assert_eq!(columns_first.coordinates([2, 4])[..4], [4.0, 8.0, 8.0, 8.0]);
        // Frequencies of a head of 8 channels: 1 and 1/100 for rows, the same for columns.
        assert_eq!(positions.frequencies(8), [1.0, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0, 0.01]);
    }

    #[test]
    fn dinov3_has_patch_centres_and_periods() {
        let positions = RotaryPositions::dinov3();
        assert_eq!(positions.coordinates([2, 1]), [-0.5, 0.0, 0.5, 0.0]);
        let frequencies = positions.frequencies(8);
        for (found, period) in frequencies[..2].iter().zip([1.0, 10.0]) {
            assert!((f64::from(*found) - std::f64::consts::TAU / period).abs() < 1e-6);
        }
        assert_eq!(bf16(1.154_781_9), 1.156_25);
    }
}
