//! Mimetic initialisation of attention (Trockman and Kolter, 2023).
//!
//! In trained Vision Transformers `Wqᵀ Wk` is close to a multiple of the identity and `Wp Wv` to a negative one, and learned
//! positions resemble sinusoids. Initialised like this, attention prefers similar and neighbouring tokens, which small
//! datasets do not teach. Instead of the paper's decomposition, keys are a mixture of the queries and noise, projections one
//! of the negative transposed values and noise.

use vit_graph::GraphError;
use vit_graph::device::{Initial, Parameters};

use super::{Positions, Vit, sin_cos};
use crate::weights::{Tensor, Weights};
use crate::{Mode, Network};

/// The factor of queries and of noise in the keys.
const KEYS: f32 = 0.7;

/// The factor of values and of noise in the projection.
const PROJECTION: f32 = 0.5;

/// The amplitude of the positions: similar to that of patch embeddings.
const WAVES: f32 = 0.7;

impl Vit {
    /// All parameters by their initialisers, but attention and learned positions by mimetic initialisation.
    pub fn mimetic(&self, seed: u64) -> Result<Weights, GraphError> {
        let graph = self.build(1, Mode::Training)?;
        let mut weights = Weights::default();
        for (_, parameter) in graph.parameters() {
            let data = Initial { seed }.take(parameter).unwrap_or_default().into_owned();
            weights.tensors.insert(parameter.name.clone(), Tensor { shape: parameter.shape.to_vec(), data });
        }
        for block in 0..self.depth {
            let name = |layer: &str| format!("blocks.{block}.attn.{layer}.weight");
            let Some(qkv) = weights.tensors.get_mut(&name("qkv")) else { continue };
            let (queries, rest) = qkv.data.split_at_mut(self.dim * self.dim);
            let (keys, values) = rest.split_at_mut(self.dim * self.dim);
            for (key, query) in keys.iter_mut().zip(&*queries) {
                *key = KEYS * (*key + query);
            }
            let values = values.to_vec();
            let Some(projection) = weights.tensors.get_mut(&name("proj")) else { continue };
            for (i, p) in projection.data.iter_mut().enumerate() {
                let transposed = values[i % self.dim * self.dim + i / self.dim];
                *p = PROJECTION * (*p - transposed);
            }
        }
        if let (Positions::Learned, Some(positions)) = (self.positions, weights.tensors.get_mut("pos_embed")) {
            let waves = sin_cos(self.grid(), self.dim);
            let first = positions.data.len().saturating_sub(waves.len());
            positions.data[first..].iter_mut().zip(waves).for_each(|(p, wave)| *p = WAVES * wave);
        }
        Ok(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(dim: usize, a: &[f32], b: &[f32]) -> Vec<f32> {
        (0..dim * dim).map(|i| (0..dim).map(|k| a[k * dim + i / dim] * b[k * dim + i % dim]).sum()).collect()
    }

    /// The mean of the diagonal, and the largest mean of a row beside it.
    fn diagonal(dim: usize, m: &[f32]) -> (f32, f32) {
        let mean = (0..dim).map(|i| m[i * dim + i]).sum::<f32>() / dim as f32;
        let beside = |row: usize| {
            let sum: f32 = (0..dim).filter(|&c| c != row).map(|c| m[row * dim + c]).sum();
            (sum / (dim - 1) as f32).abs()
        };
        (mean, (0..dim).map(beside).fold(0.0, f32::max))
    }

    #[test]
    fn attention_starts_near_the_identity_and_its_negative() {
        let variant = crate::variant("vit_lite_patch4_32").unwrap();
        let vit: &Vit = variant.architecture.downcast_ref().unwrap();
        let (weights, dim) = (vit.mimetic(3).unwrap(), vit.dim);
        for block in [0, vit.depth - 1] {
            let of = |layer: &str| &weights.tensors[&format!("blocks.{block}.attn.{layer}.weight")].data;
            let part = |i: usize| &of("qkv")[i * dim * dim..][..dim * dim];
            let (mean, beside) = diagonal(dim, &product(dim, part(0), part(1)));
            assert!((mean - 0.7).abs() < 0.1 && beside < 0.05, "{mean} {beside}");
            // Wp Wv: rows of the projection by columns of the values.
            let proj: Vec<f32> = (0..dim * dim).map(|i| of("proj")[i % dim * dim + i / dim]).collect();
            let (mean, beside) = diagonal(dim, &product(dim, &proj, part(2)));
            assert!((mean + 0.5).abs() < 0.1 && beside < 0.05, "{mean} {beside}");
        }
        let positions = &weights.tensors["pos_embed"];
        let waves = sin_cos(vit.grid(), dim);
        let patches = &positions.data[positions.data.len() - waves.len()..];
        assert!(patches.iter().zip(&waves).all(|(p, wave)| *p == 0.7 * wave));
    }
}
