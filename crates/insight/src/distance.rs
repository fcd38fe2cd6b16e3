//! Mean attention distance (the paper's Figure 7, right, and appendix D.7), a transformer's analogue of receptive field
//! size.

use crate::{Attention, InsightError};

/// The mean distance between a patch and the patches it attends to, weighted by attention, for every head; `patch` is a
/// patch's height and width.
///
/// The first `prefix` tokens (class, distillation, registers) have no position in the image and are left out. The weights
/// on patches are renormalised for each query, so that attention to those tokens does not shorten distances.
pub fn attention_distance(
    attention: Attention,
    prefix: usize,
    grid: [usize; 2],
    patch: [f64; 2],
) -> Result<Vec<f32>, InsightError> {
    let (tokens, patches) = (attention.tokens(), grid[0] * grid[1]);
    if prefix + patches != tokens || patches == 0 {
        return Err(InsightError::Unsuitable(format!(
            "{tokens} tokens are not {prefix} and a grid of {} x {} patches",
            grid[0], grid[1]
        )));
    }
    // By row and column offset; all pairs of patches share these few distances.
    let table: Vec<f64> =
        (0..patches).map(|at| ((at / grid[1]) as f64 * patch[0]).hypot((at % grid[1]) as f64 * patch[1])).collect();
    let between = |a: usize, b: usize| {
        let (rows, columns) = ((a / grid[1]).abs_diff(b / grid[1]), (a % grid[1]).abs_diff(b % grid[1]));
        table[rows * grid[1] + columns]
    };
    let head = |head: usize| {
        let weights = attention.head(head);
        let mean = |query: usize| {
            let row = &weights[(prefix + query) * tokens + prefix..][..patches];
            let (sum, weighted) = row.iter().enumerate().fold((0.0, 0.0), |(sum, weighted), (key, &w)| {
                let w = f64::from(w);
                (sum + w, weighted + w * between(query, key))
            });
            if sum > 0.0 { weighted / sum } else { 0.0 }
        };
        ((0..patches).map(mean).sum::<f64>() / patches as f64) as f32
    };
    Ok((0..attention.heads()).map(head).collect())
}
