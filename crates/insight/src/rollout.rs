//! Attention rollout (Abnar and Zuidema, 2020), as the paper's Figure 6 uses it: how much of every input token reaches
//! every output token if information only flows along attention and residual connections.

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

fn identity(tokens: usize) -> Vec<f64> {
    (0..tokens * tokens).map(|i| if i / tokens == i % tokens { 1.0 } else { 0.0 }).collect()
}

/// The heads' mean plus the identity, each row scaled to a sum of 1.
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
