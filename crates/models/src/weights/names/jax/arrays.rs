//! Flax's layouts (`[in, out]`, with an axis of heads) to timm's (`[out, in]`, without).

use crate::weights::{Tensor, WeightsError};

/// A kernel of `inputs` input axes followed by output axes, as `[out, in]`.
pub(super) fn dense(name: &str, kernel: Tensor, inputs: usize) -> Result<Tensor, WeightsError> {
    if kernel.shape.len() <= inputs || inputs == 0 {
        return Err(WeightsError::shape(name, &kernel.shape, "a kernel [in, …, out]"));
    }
    let rows = kernel.shape[..inputs].iter().product();
    let columns = kernel.shape[inputs..].iter().product();
    Tensor::new(vec![columns, rows], transposed(&kernel.data, rows, columns))
}

/// The attention's output kernel `[heads, head dim, out]` as `[out, in]`; `[in, out]` is accepted too.
pub(super) fn from_heads(name: &str, kernel: Tensor) -> Result<Tensor, WeightsError> {
    let inputs = kernel.shape.len().saturating_sub(1);
    dense(name, kernel, inputs)
}

/// A bias split into heads, as one axis.
pub(super) fn bias(values: Tensor) -> Tensor {
    Tensor { shape: vec![values.data.len()], data: values.data }
}

/// A convolution `[height, width, in, out]` as `[out, in, height, width]`.
pub(in super::super) fn conv(name: &str, kernel: Tensor) -> Result<Tensor, WeightsError> {
    let &[height, width, channels, out] = kernel.shape.as_slice() else {
        return Err(WeightsError::shape(name, &kernel.shape, "[height, width, in, out]"));
    };
    let by_out = transposed(&kernel.data, height * width * channels, out);
    let mut data = Vec::with_capacity(by_out.len());
    if !by_out.is_empty() {
        for filter in by_out.chunks_exact(height * width * channels) {
            data.extend(transposed(filter, height * width, channels));
        }
    }
    Tensor::new(vec![out, channels, height, width], data)
}

/// Position embeddings `[tokens, dim]`, `[1, tokens, dim]` or `[rows, columns, dim]`, as `[1, tokens, dim]`.
pub(super) fn positions(name: &str, values: Tensor) -> Result<Tensor, WeightsError> {
    let (tokens, dim) = match *values.shape.as_slice() {
        [tokens, dim] => (tokens, dim),
        [rows, columns, dim] => (rows * columns, dim),
        _ => {
            return Err(WeightsError::shape(name, &values.shape, "[1, tokens, dim]"));
        }
    };
    Tensor::new(vec![1, tokens, dim], values.data)
}

/// The layers of a tensor stacked along its first axis.
pub(super) fn unstack(name: &str, stacked: &Tensor) -> Result<Vec<Tensor>, WeightsError> {
    let Some((&depth, shape)) = stacked.shape.split_first() else {
        return Err(WeightsError::shape(name, &stacked.shape, "a leading axis of layers"));
    };
    if stacked.data.is_empty() {
        return Err(WeightsError::shape(name, &stacked.shape, "at least one layer with values"));
    }
    stacked.data.chunks_exact(stacked.data.len() / depth).map(|layer| Tensor::new(shape.into(), layer.into())).collect()
}

/// A row-major matrix with its axes exchanged.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    // Square tiles, because a plain loop misses the cache at every element of a large matrix.
    const TILE: usize = 32;
    let mut out = vec![0.0; values.len()];
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for row in top..(top + TILE).min(rows) {
                for column in left..(left + TILE).min(columns) {
                    out[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    out
}
