//! First filters for another number of input channels, as timm adapts them, so that a model trained on RGB can be fine-tuned
//! on grey or multispectral images; and patch filters of another size, as FlexiViT resizes them.

use super::positions::{Resampling, resize_matrix};
use super::{Tensor, WeightsError};

/// More than any sensor has: a wrong setting must not take all memory.
const MAX_CHANNELS: usize = 1 << 12;

/// Adapts filters `[out, channels, height, width]` to `channels`. To one channel they are summed, so that a grey image gives
/// the same activations as its RGB form; to others the three are repeated in turn and scaled by `3 / channels`, so that
/// activations keep their size.
pub fn adapt_channels(filters: Tensor, channels: usize) -> Result<Tensor, WeightsError> {
    let &[out, from, height, width] = filters.shape.as_slice() else {
        return Err(WeightsError::shape("patch_embed.proj.weight", &filters.shape, "[out, channels, height, width]"));
    };
    if from == channels {
        return Ok(filters);
    }
    let shape = vec![out, channels, height, width];
    let adaptable = channels == 1 || (from == 3 && (2..=MAX_CHANNELS).contains(&channels));
    let filled = super::element_count(&filters.shape) == Some(filters.data.len());
    if !adaptable || !filled || filters.data.is_empty() || super::element_count(&shape).is_none() {
        return Err(WeightsError::shape(
            "patch_embed.proj.weight",
            &filters.shape,
            format!("3 input channels to adapt to {channels}"),
        ));
    }

    let area = height * width;
    let mut data = Vec::with_capacity(out * channels * area);
    for filter in filters.data.chunks_exact(from * area) {
        if channels == 1 {
            data.extend((0..area).map(|at| {
                let sum: f64 = (0..from).map(|channel| f64::from(filter[channel * area + at])).sum();
                sum as f32
            }));
        } else {
            let scale = 3.0 / channels as f32;
            for channel in 0..channels {
                let source = &filter[channel % 3 * area..][..area];
                data.extend(source.iter().map(|value| value * scale));
            }
        }
    }
    Tensor::new(shape, data)
}

/// Longer sides than any patch has.
const MAX_SIDE: usize = 1 << 10;

/// Resizes patch filters `[out, channels, height, width]` as FlexiViT does (Beyer et al., 2022, equation 4): with the
/// pseudo-inverse of the matrix that resizes patches, so that filters and patches that are both enlarged have the same product.
pub fn resize(filters: &Tensor, [height, width]: [usize; 2], method: Resampling) -> Result<Tensor, WeightsError> {
    let wrong = |expected: &str| WeightsError::shape("patch_embed.proj.weight", &filters.shape, expected);
    let &[out, channels, old_height, old_width] = filters.shape.as_slice() else {
        return Err(wrong("[out, channels, height, width]"));
    };
    let sides = [height, width, old_height, old_width];
    if sides.iter().any(|side| !(1..=MAX_SIDE).contains(side)) {
        return Err(wrong("patches of 1 to 1024 pixels a side"));
    }
    // The matrix of the rows and that of the columns: the two-dimensional one is their Kronecker product, and so is its
    // pseudo-inverse.
    let invert = |old, new| transposed_pseudo_inverse(resize_matrix(old, new, method));
    let (rows, columns) = match (invert(old_height, height), invert(old_width, width)) {
        (Some(rows), Some(columns)) => (rows, columns),
        _ => return Err(wrong("a size from which filters can be resized")),
    };
    let mut data = Vec::with_capacity(out * channels * height * width);
    for filter in filters.data.chunks_exact(old_height * old_width) {
        let wide: Vec<Vec<f64>> = filter
            .chunks_exact(old_width)
            .map(|line| columns.iter().map(|weights| dot(weights, line.iter().map(|&v| f64::from(v)))).collect())
            .collect();
        for weights in &rows {
            data.extend((0..width).map(|column| dot(weights, wide.iter().map(|line| line[column])) as f32));
        }
    }
    Tensor::new(vec![out, channels, height, width], data)
}

fn dot(weights: &[f64], values: impl Iterator<Item = f64>) -> f64 {
    weights.iter().zip(values).map(|(weight, value)| weight * value).sum()
}

/// `(Rᵀ)⁺` of a matrix `R [new][old]` of full rank, again `[new][old]`: `(R Rᵀ)⁻¹ R` or, if it has more rows than columns,
/// `R (Rᵀ R)⁻¹`.
fn transposed_pseudo_inverse(matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let transpose = |m: &[Vec<f64>]| -> Vec<Vec<f64>> {
        (0..m[0].len()).map(|column| m.iter().map(|row| row[column]).collect()).collect()
    };
    let gram = |m: &[Vec<f64>]| -> Vec<Vec<f64>> {
        m.iter().map(|a| m.iter().map(|b| dot(a, b.iter().copied())).collect()).collect()
    };
    if matrix.len() <= matrix[0].len() {
        solve(gram(&matrix), matrix)
    } else {
        let columns = transpose(&matrix);
        solve(gram(&columns), columns).map(|solved| transpose(&solved))
    }
}

/// `A⁻¹ B` by Gauss-Jordan elimination with pivots; `None` for a singular `A`.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    for column in 0..a.len() {
        let pivot = (column..a.len()).max_by(|&i, &j| a[i][column].abs().total_cmp(&a[j][column].abs()))?;
        a.swap(column, pivot);
        b.swap(column, pivot);
        let inverse = 1.0 / a[column][column];
        if !inverse.is_finite() || inverse.abs() > 1e12 {
            return None;
        }
        for row in [&mut a[column], &mut b[column]] {
            row.iter_mut().for_each(|value| *value *= inverse);
        }
        let (pivot_a, pivot_b) = (a[column].clone(), b[column].clone());
        for row in (0..a.len()).filter(|&row| row != column) {
            let factor = a[row][column];
            a[row].iter_mut().zip(&pivot_a).for_each(|(value, pivot)| *value -= factor * pivot);
            b[row].iter_mut().zip(&pivot_b).for_each(|(value, pivot)| *value -= factor * pivot);
        }
    }
    Some(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rgb() -> Tensor {
        Tensor::new(vec![2, 3, 1, 2], (0..12).map(|v| v as f32).collect()).unwrap()
    }

    #[test]
    fn grey_filters_are_the_sum_of_rgb() {
        let grey = adapt_channels(rgb(), 1).unwrap();
        assert_eq!(grey.shape, [2, 1, 1, 2]);
        assert_eq!(grey.data, [6., 9., 24., 27.]);
    }

    #[test]
    fn more_channels_repeat_rgb_and_keep_the_scale() {
        let four = adapt_channels(rgb(), 4).unwrap();
        assert_eq!(four.shape, [2, 4, 1, 2]);
        assert_eq!(four.data[..8], [0., 0.75, 1.5, 2.25, 3., 3.75, 0., 0.75]);
        let two = adapt_channels(rgb(), 2).unwrap();
        assert_eq!(two.data[..4], [0., 1.5, 3., 4.5]);
    }

    #[test]
    fn other_shapes_are_refused() {
        assert!(adapt_channels(rgb(), 0).is_err());
        let five = Tensor::new(vec![1, 5, 1, 1], vec![0.; 5]).unwrap();
        assert!(adapt_channels(five, 2).is_err());
        let flat = Tensor::new(vec![4], vec![0.; 4]).unwrap();
        assert!(adapt_channels(flat, 1).is_err());
    }

    /// `timm.layers.resample_patch_embed` of timm 1.0.30 for squares of 0 to 15, divided by 10.
    #[test]
    fn patches_of_another_size_are_those_of_timm() {
        let filters = Tensor::new(vec![1, 1, 4, 4], (0..16).map(|v| (v * v) as f32 / 10.0).collect()).unwrap();
        for (size, method, expected) in [
            ([3, 3], Resampling::Bicubic, &[1.04541, 1.40019, 3.20916, 4.4958, 6.62395, 11.41826][..]),
            ([6, 6], Resampling::Bicubic, &[-0.04251, -0.05095, -0.04421, 0.00395, 0.12993, 0.22829]),
            ([6, 5], Resampling::Linear, &[-0.08389, -0.1495, -0.13553, -0.02141, 0.14666, 0.15576]),
            ([3, 2], Resampling::Linear, &[-0.36, 0.9323, 12.32001, 21.92001, 38.03999, 51.14768]),
        ] {
            let resized = resize(&filters, size, method).unwrap();
            assert_eq!(resized.shape, [1, 1, size[0], size[1]]);
            for (found, expected) in resized.data.iter().zip(expected) {
                assert!((found - expected).abs() < 2e-5, "{size:?}: {found} and {expected}");
            }
        }
    }
}
