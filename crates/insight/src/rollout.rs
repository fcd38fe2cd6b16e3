//! Attention rollout (Abnar and Zuidema, 2020), as in the paper's Figure 6: the share of every input token in every output
//! token if information flows along attention and residual connections only.

use crate::{Attention, InsightError};

/// The product of all layers' attention, first layer innermost: `[tokens, tokens]`, rows are output tokens and add up
/// to 1. Each layer's heads are averaged, and the residual connection counts as much as the attention.
pub fn rollout(layers: &[Attention]) -> Result<Vec<f32>, InsightError> {
    let Some(first) = layers.first() else {
        return Err(InsightError::Unsuitable("attention rollout needs at least one layer".into()));
    };
    let tokens = first.tokens();
    let mut flow: Vec<f64> = identity(tokens);
    for (index, layer) in layers.iter().enumerate() {
        if layer.tokens() != tokens {
            return Err(InsightError::Unsuitable(format!(
                "layer {index} has {} tokens, the first one {tokens}: rollout needs the same tokens in all layers",
                layer.tokens()
            )));
        }
        flow = product(&with_residual(layer), &flow, tokens);
    }
    Ok(flow.into_iter().map(|v| v as f32).collect())
}

/// `start` (a weighting of the output tokens) times the rollout matrix, computed as vector-matrix products from the last
/// layer to the first. Layers are `[tokens, tokens]`, heads already averaged, the first layer first.
pub fn rollout_of(start: &[f32], layers: &[&[f32]]) -> Result<Vec<f32>, InsightError> {
    propagate(start, layers, |row, attended| row.iter_mut().zip(attended).for_each(|(r, a)| *r = (*r + a) / 2.0))
}

/// Class-specific relevance (Chefer et al., 2021): layers hold the positive part of attention times gradient, heads
/// averaged, and the update is `r + r A`.
pub fn relevance_of(start: &[f32], layers: &[&[f32]]) -> Result<Vec<f32>, InsightError> {
    propagate(start, layers, |row, attended| row.iter_mut().zip(attended).for_each(|(r, a)| *r += a))
}

/// Propagates the row vector `r` from the last layer to the first; `join` combines `r` with `r A`.
fn propagate(start: &[f32], layers: &[&[f32]], join: impl Fn(&mut [f64], Vec<f64>)) -> Result<Vec<f32>, InsightError> {
    let tokens = start.len();
    let mut row: Vec<f64> = start.iter().map(|&v| f64::from(v)).collect();
    for layer in layers.iter().rev() {
        if layer.len() != tokens * tokens {
            return Err(InsightError::Length { what: "a layer", found: layer.len(), expected: tokens * tokens });
        }
        let mut attended = vec![0.0; tokens];
        for (&share, weights) in row.iter().zip(layer.chunks(tokens)) {
            attended.iter_mut().zip(weights).for_each(|(a, &w)| *a += share * f64::from(w));
        }
        join(&mut row, attended);
    }
    Ok(row.into_iter().map(|v| v as f32).collect())
}

fn identity(tokens: usize) -> Vec<f64> {
    (0..tokens * tokens).map(|i| if i / tokens == i % tokens { 1.0 } else { 0.0 }).collect()
}

/// The mean over heads plus the identity, rows normalised.
fn with_residual(layer: &Attention) -> Vec<f64> {
    let tokens = layer.tokens();
    let mut matrix = layer.mean();
    for (i, row) in matrix.chunks_mut(tokens).enumerate() {
        row[i] += 1.0;
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|v| *v /= sum);
    }
    matrix
}

fn product(left: &[f64], right: &[f64], n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n * n];
    for (out, left) in out.chunks_mut(n).zip(left.chunks(n)) {
        for (&factor, right) in left.iter().zip(right.chunks(n)) {
            out.iter_mut().zip(right).for_each(|(o, r)| *o += factor * r);
        }
    }
    out
}
