//! Position embeddings for another number of patches, by timm's bicubic interpolation with antialiasing, transformers' without
//! it, or the linear zoom of Google's vision_transformer. Sums are in f64.

use super::{Tensor, WeightsError};

/// More patches a side than any image has: a wrong setting must not take all memory.
const MAX_SIDE: usize = 1 << 14;

/// How a grid of position embeddings is resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resampling {
    /// PyTorch's `interpolate(mode="bicubic", antialias=True)`, which timm uses.
    #[default]
    Bicubic,
    /// PyTorch's `interpolate(mode="bicubic")` without antialiasing, which transformers uses.
    SharpBicubic,
    /// SciPy's `zoom(order=1)`, corners aligned, which vision_transformer and the paper use.
    Linear,
}

/// The filter of one output position: its first input, and the weights from there on.
struct Taps {
    first: usize,
    weights: Vec<f64>,
}

/// Resizes the embeddings in `positions` (`[1, prefix + rows * columns, dim]`) to the grid `new`, rows first. The first
/// `prefix` tokens (class, distillation, registers) are not in the grid and are kept. Without `old` the grid must be square.
pub fn resample(
    positions: &Tensor,
    prefix: usize,
    old: Option<[usize; 2]>,
    new: [usize; 2],
    method: Resampling,
) -> Result<Tensor, WeightsError> {
    let wrong = |expected: String| WeightsError::shape("pos_embed", &positions.shape, expected);
    let &[1, tokens, dim] = positions.shape.as_slice() else {
        return Err(wrong("[1, tokens, dim]".into()));
    };
    if super::element_count(&positions.shape) != Some(positions.data.len()) {
        return Err(wrong("as many values as its shape says".into()));
    }
    let Some(patches) = tokens.checked_sub(prefix) else {
        return Err(wrong(format!("at least the {prefix} prefix tokens")));
    };
    let old = old.unwrap_or([patches.isqrt(); 2]);
    if old[0].checked_mul(old[1]) != Some(patches) {
        return Err(wrong(format!(
            "{prefix} prefix tokens and a grid of {}x{} (give the grid where it is not square)",
            old[0], old[1]
        )));
    }
    let Some((kept, grid)) = positions.data.split_at_checked(prefix * dim) else {
        return Err(wrong("as many values as its shape says".into()));
    };
    let resized = match method {
        Resampling::Bicubic => resample_bicubic(grid, old, new, dim)?,
        Resampling::SharpBicubic => separable(grid, old, new, dim, sharp_cubic_taps)?,
        Resampling::Linear => resample_linear(grid, old, new, dim)?,
    };
    Tensor::new(vec![1, prefix + new[0] * new[1], dim], [kept, &resized].concat())
}

/// Resizes a grid of `dim` values per cell as PyTorch's bicubic interpolation with antialiasing does: cubic with
/// a = -0.5, half-pixel centres, the filter widened when shrinking and renormalised at the borders.
pub fn resample_bicubic(grid: &[f32], old: [usize; 2], new: [usize; 2], dim: usize) -> Result<Vec<f32>, WeightsError> {
    separable(grid, old, new, dim, cubic_taps)
}

/// Resizes a grid of `dim` values per cell linearly with its corners aligned, as `scipy.ndimage.zoom(order=1)` does.
pub fn resample_linear(grid: &[f32], old: [usize; 2], new: [usize; 2], dim: usize) -> Result<Vec<f32>, WeightsError> {
    separable(grid, old, new, dim, linear_taps)
}

fn separable(
    grid: &[f32],
    old: [usize; 2],
    new: [usize; 2],
    dim: usize,
    taps: fn(usize, usize) -> Vec<Taps>,
) -> Result<Vec<f32>, WeightsError> {
    let shape = vec![old[0], old[1], dim];
    if super::element_count(&shape) != Some(grid.len()) || grid.is_empty() {
        return Err(WeightsError::Count { shape, found: grid.len() });
    }
    if new.iter().any(|side| !(1..=MAX_SIDE).contains(side)) {
        return Err(WeightsError::shape("pos_embed", &new, format!("a grid of 1 to {MAX_SIDE} patches a side")));
    }
    if old == new {
        return Ok(grid.to_vec());
    }

    let columns = taps(old[1], new[1]);
    let mut wide = vec![0f64; old[0] * new[1] * dim];
    for (from, to) in grid.chunks_exact(old[1] * dim).zip(wide.chunks_exact_mut(new[1] * dim)) {
        for (tap, cell) in columns.iter().zip(to.chunks_exact_mut(dim)) {
            for (weight, source) in tap.weights.iter().zip(from[tap.first * dim..].chunks_exact(dim)) {
                for (sum, &value) in cell.iter_mut().zip(source) {
                    *sum += weight * f64::from(value);
                }
            }
        }
    }

    let row = new[1] * dim;
    let mut resized = Vec::with_capacity(new[0] * row);
    for tap in taps(old[0], new[0]) {
        let mut sums = vec![0f64; row];
        for (weight, source) in tap.weights.iter().zip(wide[tap.first * row..].chunks_exact(row)) {
            for (sum, value) in sums.iter_mut().zip(source) {
                *sum += weight * value;
            }
        }
        resized.extend(sums.iter().map(|&sum| sum as f32));
    }
    Ok(resized)
}

/// The matrix `[new][old]` that resizes a line of patches' pixels: PyTorch's bicubic interpolation with antialiasing or, for
/// Google's files, its linear one without, centres at half pixels.
pub(super) fn resize_matrix(old: usize, new: usize, method: Resampling) -> Vec<Vec<f64>> {
    let taps = if method == Resampling::Linear { half_pixel_taps(old, new) } else { cubic_taps(old, new) };
    taps.into_iter()
        .map(|Taps { first, weights }| {
            let mut row = vec![0.0; old];
            row[first..][..weights.len()].copy_from_slice(&weights);
            row
        })
        .collect()
}

/// Two cells, those beyond the border taken from it.
fn half_pixel_taps(old: usize, new: usize) -> Vec<Taps> {
    let scale = old as f64 / new as f64;
    (0..new)
        .map(|i| {
            let place = (scale * (i as f64 + 0.5) - 0.5).clamp(0.0, (old - 1) as f64);
            let (first, part) = (place as usize, place.fract());
            let weights = if first + 1 < old { vec![1.0 - part, part] } else { vec![1.0] };
            Taps { first, weights }
        })
        .collect()
}

fn cubic_taps(old: usize, new: usize) -> Vec<Taps> {
    let scale = old as f64 / new as f64;
    let widening = scale.max(1.0);
    let support = 2.0 * widening;
    (0..new)
        .map(|i| {
            let centre = scale * (i as f64 + 0.5);
            // Casts saturate: a filter that would start before the first cell starts at it.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(old);
            let mut weights: Vec<f64> =
                (first..end).map(|j| cubic((j as f64 - centre + 0.5) / widening, -0.5)).collect();
            let total: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= total);
            Taps { first, weights }
        })
        .collect()
}

/// Four cells, those beyond the border taken from it.
fn sharp_cubic_taps(old: usize, new: usize) -> Vec<Taps> {
    let scale = old as f64 / new as f64;
    (0..new)
        .map(|i| {
            let centre = scale * (i as f64 + 0.5) - 0.5;
            let cell = |j: i64| (centre.floor() as i64 + j).clamp(0, old as i64 - 1) as usize;
            let first = cell(-1);
            let mut weights = vec![0.0; cell(2) - first + 1];
            for j in -1..=2 {
                weights[cell(j) - first] += cubic(centre - centre.floor() - j as f64, -0.75);
            }
            Taps { first, weights }
        })
        .collect()
}

/// Cubic convolution (Keys, 1981) with the parameter `a`.
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}

fn linear_taps(old: usize, new: usize) -> Vec<Taps> {
    let step = if new > 1 { (old - 1) as f64 / (new - 1) as f64 } else { 0.0 };
    (0..new)
        .map(|i| {
            let place = (i as f64 * step).min((old - 1) as f64);
            let first = place.floor() as usize;
            let part = place - first as f64;
            let weights = if first + 1 < old { vec![1.0 - part, part] } else { vec![1.0] };
            Taps { first, weights }
        })
        .collect()
}
