//! Quantisation as [`vit_graph::quantise`] defines it, vectorised for rows of activations. Operations and their order
//! are the same as there, so both give the same bytes.

use super::path::{Dot, DotKernel};
use crate::simd::Simd;

#[inline(always)]
fn round(x: f32) -> i32 {
    x.round_ties_even() as i32
}

/// The quantisation scale of a channel and its inverse: both 0 if the scale would be subnormal, NaN and 0 if an element
/// is not finite.
#[inline(always)]
pub(super) fn weight_scale(w: &[f32]) -> (f32, f32) {
    let mut largest = 0.0;
    let mut finite = true;
    for w in w {
        largest = if w.abs() > largest { w.abs() } else { largest };
        finite &= w.is_finite();
    }
    let scale = largest / 127.0;
    if !finite {
        (f32::NAN, 0.0)
    } else if scale < f32::MIN_POSITIVE {
        (0.0, 0.0)
    } else {
        (scale, 1.0 / scale)
    }
}

/// A quantised weight, given the results of [`weight_scale`].
#[inline(always)]
pub(super) fn weight(w: f32, scale: f32, inverse: f32) -> i8 {
    // The largest magnitude times the inverse is 127 up to two roundings, so no value rounds to 128.
    if scale.is_nan() { 0 } else { round(w * inverse) as i8 }
}

/// The quantisation of a row: `q = round(x * inverse) + zero`, and `x` is about `scale * (q - zero)`.
struct RowScale {
    scale: f32,
    inverse: f32,
    zero: i32,
}

impl RowScale {
    /// For values from `-minus_low`, at most 0, to `high`, at least 0.
    #[inline(always)]
    fn new(minus_low: f32, high: f32, finite: bool) -> RowScale {
        // Divided first: the sum could overflow.
        let scale = high / 255.0 + minus_low / 255.0;
        if !finite {
            RowScale { scale: f32::NAN, inverse: 0.0, zero: 0 }
        } else if scale < f32::MIN_POSITIVE {
            RowScale { scale: 0.0, inverse: 0.0, zero: 0 }
        } else {
            let inverse = 1.0 / scale;
            RowScale { scale, inverse, zero: round(minus_low * inverse) }
        }
    }
}

/// Quantises rows of activations, with a scale and a zero point, as [`Dot::offset`] gives it, for each.
pub(super) struct QuantiseRows<'a> {
    pub k: usize,
    pub a: &'a [f32],
    pub lda: usize,
    /// Quantised rows, `stride` bytes apart, with room for whole vectors.
    pub to: &'a mut [u8],
    pub stride: usize,
    pub scales: &'a mut [f32],
    pub offsets: &'a mut [i32],
}

impl DotKernel for QuantiseRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let s = d.float();
        let lanes = D::Float::LANES;
        let k = self.k;
        assert!(self.stride >= k.next_multiple_of(lanes) * D::LEFT_BYTES, "rows overlap");
        for (i, to) in self.to.chunks_exact_mut(self.stride).enumerate() {
            let row = if k == 0 { &[] } else { &self.a[i * self.lda..][..k] };
            let from = row.as_ptr();
            // Two independent chains of each hide the latency of a maximum.
            let mut minus_low = [s.splat(0.0); 2];
            let mut high = [s.splat(0.0); 2];
            // 0 if all values are finite, else NaN.
            let mut check = [s.splat(0.0); 2];
            let mut t = 0;
            // SAFETY: loads stay below k, and by the assertion every vector that starts there fits in `to`.
            unsafe {
                while t + 2 * lanes <= k {
                    for j in 0..2 {
                        let x = s.load(from.add(t + j * lanes));
                        high[j] = s.max(high[j], x);
                        minus_low[j] = s.max(minus_low[j], s.sub(s.splat(0.0), x));
                        check[j] = s.mul_add(x, s.splat(0.0), check[j]);
                    }
                    t += 2 * lanes;
                }
                while t < k {
                    let x = s.load_up_to(from.add(t), k - t);
                    high[0] = s.max(high[0], x);
                    minus_low[0] = s.max(minus_low[0], s.sub(s.splat(0.0), x));
                    check[0] = s.mul_add(x, s.splat(0.0), check[0]);
                    t += lanes;
                }
                let finite = s.sum(s.add(check[0], check[1])) == 0.0;
                let minus_low = s.largest(s.max(minus_low[0], minus_low[1]));
                let high = s.largest(s.max(high[0], high[1]));
                let RowScale { scale, inverse, zero } = RowScale::new(minus_low, high, finite);
                self.scales[i] = scale;
                self.offsets[i] = D::offset(zero);
                let inverse = s.splat(inverse);
                let to = to.as_mut_ptr();
                let mut t = 0;
                while t + lanes <= k {
                    d.store_left(to.add(t * D::LEFT_BYTES), s.mul(s.load(from.add(t)), inverse), zero);
                    t += lanes;
                }
                if t < k {
                    let x = s.load_first(from.add(t), k - t);
                    d.store_left(to.add(t * D::LEFT_BYTES), s.mul(x, inverse), zero);
                }
            }
        }
    }
}
