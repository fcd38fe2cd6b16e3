//! Tables of relative position biases for another window, as timm resizes them (after BEiT): the old offsets are spread over
//! the new window, near ones closer together than far ones, and biases between them interpolated linearly.

use super::{Tensor, WeightsError};

/// Resizes a table `[offsets, heads]`, rows of offsets first.
pub fn resample_table(table: &[f32], heads: usize, old: [usize; 2], new: [usize; 2]) -> Result<Vec<f32>, WeightsError> {
    let offsets = |window: [usize; 2]| window.map(|side| (2 * side).saturating_sub(1));
    let ([rows, columns], [new_rows, new_columns]) = (offsets(old), offsets(new));
    if rows * columns * heads != table.len() || table.is_empty() {
        return Err(WeightsError::Count { shape: vec![rows * columns, heads], found: table.len() });
    }
    if old == new {
        return Ok(table.to_vec());
    }
    let (vertical, horizontal) = (taps(rows, new_rows), taps(columns, new_columns));
    let mut resized = Vec::with_capacity(new_rows * new_columns * heads);
    for &(top, down) in &vertical {
        for &(left, right) in &horizontal {
            for head in 0..heads {
                let at = |row: usize, column: usize| f64::from(table[(row * columns + column) * heads + head]);
                let (below, beside) = ((top + 1).min(rows - 1), (left + 1).min(columns - 1));
                let upper = at(top, left) * (1.0 - right) + at(top, beside) * right;
                let lower = at(below, left) * (1.0 - right) + at(below, beside) * right;
                resized.push((upper * (1.0 - down) + lower * down) as f32);
            }
        }
    }
    Ok(resized)
}

/// A table laid out `[heads, rows, columns]` for another window.
pub fn resample_by_head(table: &Tensor, old: [usize; 2], new: [usize; 2]) -> Result<Tensor, WeightsError> {
    let heads = table.shape.first().copied().unwrap_or(0);
    let mut data = Vec::new();
    for head in table.data.chunks((table.data.len() / heads.max(1)).max(1)) {
        data.extend(resample_table(head, 1, old, new)?);
    }
    Tensor::new(vec![heads, 2 * new[0] - 1, 2 * new[1] - 1], data)
}

/// For every new offset along one side, the old one before it and the fraction of the step to the next.
fn taps(old: usize, new: usize) -> Vec<(usize, f64)> {
    let places = places(old, new);
    let middle = (new / 2) as f64;
    let tap = |i: usize| {
        let at = i as f64 - middle;
        let next = places.iter().position(|&p| p >= at).unwrap_or(places.len());
        match next {
            0 => (0, 0.0),
            n if n == places.len() => (n - 1, 0.0),
            n => (n - 1, (at - places[n - 1]) / (places[n] - places[n - 1])),
        }
    };
    (0..new).map(tap).collect()
}

/// The old offsets in units of the new ones: steps grow by a constant factor from the middle outwards.
fn places(old: usize, new: usize) -> Vec<f64> {
    let (steps, reach) = (old / 2, (new / 2) as f64);
    let (mut low, mut high, mut factor) = (1.01f64, 1.5f64, 1.01f64);
    while high - low > 1e-6 {
        factor = (low + high) / 2.0;
        let length = (1.0 - factor.powi(steps as i32)) / (1.0 - factor);
        if length > reach { high = factor } else { low = factor }
    }
    let mut side = Vec::with_capacity(steps);
    let mut at = 1.0;
    for i in 0..steps {
        // timm has these in f32.
        side.push(f64::from(at as f32));
        at += factor.powi(i as i32 + 1);
    }
    side.iter().rev().map(|p| -p).chain([0.0]).chain(side.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `timm.layers.resize_rel_pos_bias_table` of timm 1.0.30 on sines.
    #[test]
    fn tables_are_resized_as_timm_does() {
        let table: Vec<f32> = (0..98).map(|i| (i as f32 * 0.7).sin()).collect();
        let larger = resample_table(&table, 2, [4, 4], [6, 3]).unwrap();
        let smaller = resample_table(&table, 2, [4, 4], [2, 7]).unwrap();
        for (found, expected) in [
            (
                &larger[..8],
                &[0.9790089, 0.8511886, 0.3349882, -0.3507832, -0.8715757, -0.9824526, -0.6312667, 0.0168136][..],
            ),
            (&larger[46..48], &[0.0672069, 0.6941644]),
            (&larger[108..], &[0.1807749, -0.4899907]),
            (&smaller[..6], &[0.6819639, 0.9927664, 0.6819639, 0.9927664, 0.7335276, 0.7575297]),
            (&smaller[40..42], &[-0.4281827, -0.909667]),
        ] {
            assert_eq!(found.len(), expected.len());
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() < 2e-6, "{found:?} {expected:?}");
            }
        }
        assert_eq!((larger.len(), smaller.len()), (2 * 11 * 5, 2 * 3 * 13));
        assert_eq!(resample_table(&table, 2, [4, 4], [4, 4]).unwrap(), table);
        assert!(resample_table(&table, 2, [5, 4], [4, 4]).is_err());
    }
}
