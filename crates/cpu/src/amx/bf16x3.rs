//! The bf16x3 split: an f32 as the sum of three bf16 (x3 counts parts, not products). For its limits see [`super`].

use std::arch::x86_64::*;

/// The number of bf16 parts of an f32.
pub(crate) const SPLITS: usize = 3;

/// Splits two vectors and writes `SPLITS` vectors of bf16 pairs, `stride` bytes apart, the largest parts first. The
/// lower half of a 32-bit lane holds the part of `x`, the upper half that of `y`: the pairs along k that TDPBF16PS
/// multiplies.
///
/// # Safety
/// 64 bytes must be writable at `to + part * stride` for each part.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn split_bf16x3(mut x: __m512, mut y: __m512, to: *mut u8, stride: usize) {
    let half_bf16_ulp = _mm512_set1_epi32(0x8000);
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    for part in 0..SPLITS {
        let (mut first, mut second) = (_mm512_castps_si512(x), _mm512_castps_si512(y));
        // The remainder after two parts has at most 8 mantissa bits: it is a bf16 already.
        if part + 1 < SPLITS {
            // Rounds to the nearest bf16, ties away from zero: the signed remainder has one bit less than after
            // truncation.
            first = _mm512_and_si512(_mm512_add_epi32(first, half_bf16_ulp), upper);
            second = _mm512_and_si512(_mm512_add_epi32(second, half_bf16_ulp), upper);
            x = _mm512_sub_ps(x, _mm512_castsi512_ps(first));
            y = _mm512_sub_ps(y, _mm512_castsi512_ps(second));
        }
        // (second & upper) | (first >> 16)
        let pair = _mm512_ternarylogic_epi32::<0xEC>(second, _mm512_srli_epi32::<16>(first), upper);
        // SAFETY: guaranteed by the caller.
        unsafe { _mm512_storeu_si512(to.add(part * stride).cast(), pair) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn three_bf16_add_up_to_the_f32() {
        if !Isa::Avx512.is_available() {
            eprintln!("skipped: this machine has no avx512");
            return;
        }
        let values = [0.0, -0.0, 1.0, 0.1, -0.1, 3.999_999_8, 1.0 / 3.0, 65_537.0, 16_777_215.0, 1e-30, -7e30, 2.5e-5];
        for x in values {
            for y in values {
                let mut pairs = [[0u32; 16]; SPLITS];
                // SAFETY: the machine has the instructions, and there is room for three vectors.
                unsafe { split_bf16x3(_mm512_set1_ps(x), _mm512_set1_ps(y), pairs.as_mut_ptr().cast(), 64) };
                let sum = |bf16: fn(u32) -> u32| {
                    let parts = pairs.map(|pair| f32::from_bits(bf16(pair[7])));
                    // Each part but the last is the nearest bf16.
                    let [first, second, third] = parts.map(f64::from);
                    assert!((second + third).abs() <= first.abs() / 256.0, "{parts:?}");
                    assert!(third.abs() <= first.abs() / 65_536.0, "{parts:?}");
                    first + second + third
                };
                assert_eq!(sum(|pair| pair << 16), f64::from(x));
                assert_eq!(sum(|pair| pair & 0xFFFF_0000), f64::from(y));
            }
        }
    }
}
