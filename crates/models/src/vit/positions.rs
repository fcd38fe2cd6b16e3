//! Position embeddings: none, learned, learned per row and column, or sine-cosine; and rotary positions.

use vit_graph::ops::Constant;
use vit_graph::{Init, Tensor};

use super::{Pretraining, Vit};
mod rotary;

pub(super) use rotary::BlockRotations;
pub use rotary::{CoordinateAugmentation, RotaryAngles, RotaryPositions};

/// How positions are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Not at all.
    None,
    /// One learned vector per token.
    Learned,
    /// One learned vector of half the width per row and per column, joined (appendix D.4).
    Learned2d,
    /// Fixed sines and cosines of row and column.
    SinCos,
}

/// Which tokens get a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionsOn {
    /// All, class token included; only learned positions exist for it.
    AllTokens,
    /// Patches only.
    Patches,
}

const EMBEDDING: Init = Init::TruncatedNormal { std: 0.02 };

/// Adds positions to all tokens or, where only patches have one, to the last `rows * columns`.
pub(super) fn add(vit: &Vit, tokens: &Tensor) -> Tensor {
    let [rows, columns] = vit.grid();
    let patches = rows * columns;
    match vit.positions {
        Positions::None => tokens.clone(),
        Positions::Learned => {
            let shape = [1, tokens.extent(1), vit.dim];
            // A masked autoencoder fills them with sines and cosines and does not train them.
            let fixed = matches!(vit.pretraining, Some(Pretraining::MaskedAutoencoder(_)));
            let table = match fixed {
                true => tokens.statistic("pos_embed", shape, EMBEDDING),
                false => tokens.parameter("pos_embed", shape, EMBEDDING),
            };
            tokens + &table
        }
        Positions::Learned2d => {
            let half = vit.dim / 2;
            let row = tokens.parameter("pos_embed_row", [1, rows, 1, half], EMBEDDING);
            let column = tokens.parameter("pos_embed_column", [1, 1, columns, half], EMBEDDING);
            let everywhere = [1, rows, columns, half];
            let grid = Tensor::concat(&[&row.broadcast(everywhere), &column.broadcast(everywhere)], 3);
            on_patches(tokens, &grid.reshape([1, patches, vit.dim]))
        }
        Positions::SinCos => {
            let table = Constant::f32([1, patches, vit.dim], sin_cos(vit.grid(), vit.dim));
            on_patches(tokens, &tokens.constant(table))
        }
    }
}

/// Adds an embedding to the last tokens only.
fn on_patches(tokens: &Tensor, embedding: &Tensor) -> Tensor {
    let (all, patches) = (tokens.extent(1), embedding.extent(1));
    if all == patches {
        return tokens + embedding;
    }
    let prefix = all.saturating_sub(patches);
    let embedded = tokens.slice(1, prefix, patches) + embedding;
    Tensor::concat(&[&tokens.slice(1, 0, prefix), &embedded], 1)
}

/// The table of big_vision: for each position sines and cosines of its column, then of its row, at a quarter of the
/// width each, with frequencies from 1 down to 1/10000.
pub fn sin_cos(grid: [usize; 2], dim: usize) -> Vec<f32> {
    sin_cos_table(grid, dim, (dim / 4).saturating_sub(1).max(1))
}

/// The table of masked autoencoders, whose frequencies end just above 1/10000, after `prefix` rows of zeros.
pub fn sin_cos_mae(prefix: usize, grid: [usize; 2], dim: usize) -> Vec<f32> {
    let mut table = vec![0.0; prefix * dim];
    table.extend(sin_cos_table(grid, dim, (dim / 4).max(1)));
    table
}

/// Frequency `i` is `10000^(-i / steps)`.
fn sin_cos_table([rows, columns]: [usize; 2], dim: usize, steps: usize) -> Vec<f32> {
    let quarter = dim / 4;
    let mut table = Vec::with_capacity(rows * columns * dim);
    for position in 0..rows * columns {
        let (y, x) = ((position / columns) as f64, (position % columns) as f64);
        let angle = |at: f64, i: usize| at / 10_000f64.powf(i as f64 / steps as f64);
        for (at, function) in [(x, f64::sin as fn(f64) -> f64), (x, f64::cos), (y, f64::sin), (y, f64::cos)] {
            table.extend((0..quarter).map(|i| function(angle(at, i)) as f32));
        }
    }
    table
}

/// Why these positions are impossible.
pub(super) fn contradiction(vit: &Vit) -> Option<String> {
    let divisor = match vit.positions {
        Positions::Learned2d => 2,
        Positions::SinCos => 4,
        _ => 1,
    };
    if let Some(reason) = vit.rotary.and_then(|rotary| rotary.contradiction(vit.dim / vit.heads)) {
        return Some(reason);
    }
    (!vit.dim.is_multiple_of(divisor))
        .then(|| format!("{:?} positions need a width that {divisor} divides, not {}", vit.positions, vit.dim))
}

#[cfg(test)]
mod tests {
    use super::sin_cos;

    #[test]
    fn sine_cosine_tables_are_those_of_big_vision() {
        let table = sin_cos([2, 3], 8);
        assert_eq!(table[..8], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
        // Row 1, column 2: sin and cos of 2, then of 1, at the frequencies 1 and 1/10000.
        let last = &table[5 * 8..];
        for (found, expected) in
            last.iter().zip([2f64.sin(), 2e-4f64.sin(), 2f64.cos(), 2e-4f64.cos(), 1f64.sin(), 1e-4f64.sin()])
        {
            assert!((f64::from(*found) - expected).abs() < 1e-6);
        }
    }
}
