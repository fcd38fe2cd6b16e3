//! The definition of int8 linear layers: the rounding of weights and activations, which every device follows exactly.
//!
//! With `x ≈ scale_x (q - zero)` and `w ≈ scale_w p` an element of the product is `Σ (q - zero) p · scale_w · scale_x`,
//! where the sum is an exact integer.

/// A row of activations as unsigned bytes: `x ≈ scale (value - zero)`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedRow {
    /// The quantisation scale; NaN if the row has a value that is not finite.
    pub scale: f32,
    /// The zero point.
    pub zero: u8,
    /// The quantised activations.
    pub values: Vec<u8>,
}

/// The weights of an output channel as signed bytes: `w ≈ scale · value`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedWeights {
    /// The quantisation scale; NaN if a weight is not finite.
    pub scale: f32,
    /// The quantised weights, in -127..=127.
    pub values: Vec<i8>,
}

/// Quantises a row of activations over its own range, extended to include 0:
///
/// ```text
/// low = min(0, x...)    high = max(0, x...)    scale = high / 255 + -low / 255    inverse = 1 / scale
/// zero  = -round(low * inverse)
/// value = min(round(x * inverse) + zero, 255)
/// ```
///
/// in `f32`, where `round` is to the nearest integer, halves to the even one; as it is monotone, values are not
/// negative. A row whose scale is below [`f32::MIN_POSITIVE`] counts as zeros: scale 0, zero 0, values 0. A row with a
/// NaN or an infinity has scale NaN, zero 0, values 0, which makes every result of it NaN.
pub fn quantise_row(x: &[f32]) -> QuantisedRow {
    let low = x.iter().fold(0.0, |a: f32, &x| a.min(x));
    let high = x.iter().fold(0.0, |a: f32, &x| a.max(x));
    let scale = high / 255.0 + -low / 255.0;
    if !x.iter().all(|x| x.is_finite()) {
        return QuantisedRow { scale: f32::NAN, zero: 0, values: vec![0; x.len()] };
    }
    if scale < f32::MIN_POSITIVE {
        return QuantisedRow { scale: 0.0, zero: 0, values: vec![0; x.len()] };
    }
    let inverse = 1.0 / scale;
    let zero = round(-low * inverse);
    let values = x.iter().map(|x| (round(x * inverse) + zero).min(255) as u8).collect();
    QuantisedRow { scale, zero: zero as u8, values }
}

/// Quantises the weights of one output channel:
///
/// ```text
/// scale = max(|w|...) / 127    value = round(w * (1 / scale))
/// ```
///
/// in `f32`, where `round` is to the nearest integer, halves to the even one. Weights whose scale is below
/// [`f32::MIN_POSITIVE`] count as zeros: scale 0, values 0. If one is NaN or infinite the scale is NaN, the values 0.
pub fn quantise_weights(w: &[f32]) -> QuantisedWeights {
    let scale = w.iter().fold(0.0, |a: f32, w| a.max(w.abs())) / 127.0;
    if !w.iter().all(|w| w.is_finite()) {
        return QuantisedWeights { scale: f32::NAN, values: vec![0; w.len()] };
    }
    if scale < f32::MIN_POSITIVE {
        return QuantisedWeights { scale: 0.0, values: vec![0; w.len()] };
    }
    let inverse = 1.0 / scale;
    QuantisedWeights { scale, values: w.iter().map(|w| round(w * inverse) as i8).collect() }
}

fn round(x: f32) -> i32 {
    x.round_ties_even() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_maps_onto_all_bytes_and_zero_is_exact() {
        let row = quantise_row(&[-1.0, 0.0, 1.55]);
        assert_eq!((row.zero, row.values[1]), (100, 100));
        assert_eq!((row.values[0], row.values[2]), (0, 255));
        let weights = quantise_weights(&[-2.0, 0.0, 1.0]);
        assert_eq!(weights.values, [-127, 0, 64]);
    }

    #[test]
    fn non_finite_values_make_the_scale_nan() {
        assert!(quantise_row(&[1.0, f32::NAN]).scale.is_nan());
        assert!(quantise_weights(&[f32::INFINITY]).scale.is_nan());
        assert_eq!(quantise_row(&[0.0, 0.0]).scale, 0.0);
    }
}
