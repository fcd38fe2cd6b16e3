//! Interpolation with AVX2: the four doubles of a register are the channels of a pixel. The operations and their order
//! are those of the portable loops in `sample.rs`, so the bytes are the same. Differences of bytes are computed in
//! integers, which is exact and faster.

use super::sample::{BorderedImage, Interpolation};
use std::arch::x86_64::*;

/// Proof that the CPU has AVX2.
#[derive(Clone, Copy)]
pub(super) struct Avx2Proof(());

impl Avx2Proof {
    pub(super) fn detect() -> Option<Self> {
        std::arch::is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

/// Linear between 2 x 2 pixels.
#[derive(Clone, Copy)]
pub(super) struct Linear(pub(super) Avx2Proof);

/// Cubic between 4 x 4 pixels.
#[derive(Clone, Copy)]
pub(super) struct Cubic(pub(super) Avx2Proof);

impl Interpolation for Linear {
    #[inline(always)]
    fn value(self, source: &BorderedImage, at: usize, dx: f64, dy: f64) -> [u8; 3] {
        // SAFETY: the CPU has AVX2, or `self` could not exist.
        unsafe { linear(source, at, dx, dy) }
    }
}

impl Interpolation for Cubic {
    #[inline(always)]
    fn value(self, source: &BorderedImage, at: usize, dx: f64, dy: f64) -> [u8; 3] {
        // SAFETY: the CPU has AVX2, or `self` could not exist.
        unsafe { cubic(source, at, dx, dy) }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn linear(source: &BorderedImage, at: usize, dx: f64, dy: f64) -> [u8; 3] {
    let part = _mm256_set1_pd(dx);
    let row = |at: usize| {
        let [left, right] = *source.pixels_at::<2>(at);
        let left = channels(left);
        let difference = _mm256_cvtepi32_pd(_mm_sub_epi32(channels(right), left));
        _mm256_add_pd(_mm256_cvtepi32_pd(left), _mm256_mul_pd(difference, part))
    };
    let upper = row(at);
    if dy == 0.0 {
        return bytes(upper);
    }
    let difference = _mm256_sub_pd(row(at + source.stride()), upper);
    bytes(_mm256_add_pd(upper, _mm256_mul_pd(difference, _mm256_set1_pd(dy))))
}

#[inline]
#[target_feature(enable = "avx2")]
fn cubic(source: &BorderedImage, at: usize, dx: f64, dy: f64) -> [u8; 3] {
    let row = |at: usize| {
        let [a, b, c, d] = *source.pixels_at::<4>(at - 1);
        if dx == 0.0 {
            return _mm256_cvtepi32_pd(channels(b));
        }
        let (a, b, c, d) = (channels(a), channels(b), channels(c), channels(d));
        let (c_a, b_a) = (_mm_sub_epi32(c, a), _mm_sub_epi32(b, a));
        let d_c = _mm_sub_epi32(d, c);
        // 2 (a - b) + c - d, and -a + b - c + d.
        let square = _mm_sub_epi32(_mm_sub_epi32(_mm_setzero_si128(), _mm_add_epi32(b_a, b_a)), d_c);
        let cube = _mm_add_epi32(b_a, d_c);
        let [b, linear, square, cube] = [b, c_a, square, cube].map(|value| _mm256_cvtepi32_pd(value));
        polynomial(b, linear, square, cube, dx)
    };
    if dy == 0.0 {
        return bytes(row(at));
    }
    let stride = source.stride();
    let (a, b, c, d) = (row(at - stride), row(at), row(at + stride), row(at + 2 * stride));
    let minus_a = _mm256_xor_pd(a, _mm256_set1_pd(-0.0));
    let linear = _mm256_add_pd(minus_a, c);
    let twice = _mm256_mul_pd(_mm256_set1_pd(2.0), _mm256_sub_pd(a, b));
    let square = _mm256_sub_pd(_mm256_add_pd(twice, c), d);
    let cube = _mm256_add_pd(_mm256_sub_pd(_mm256_add_pd(minus_a, b), c), d);
    bytes(polynomial(b, linear, square, cube, dy))
}

#[inline]
#[target_feature(enable = "avx2")]
fn polynomial(constant: __m256d, linear: __m256d, square: __m256d, cube: __m256d, part: f64) -> __m256d {
    let part = _mm256_set1_pd(part);
    let value = _mm256_add_pd(square, _mm256_mul_pd(part, cube));
    let value = _mm256_add_pd(linear, _mm256_mul_pd(part, value));
    _mm256_add_pd(constant, _mm256_mul_pd(part, value))
}

#[inline]
#[target_feature(enable = "avx2")]
fn channels(pixel: [u8; 4]) -> __m128i {
    _mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_ne_bytes(pixel)))
}

/// Truncated towards zero and saturated to a byte.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes(value: __m256d) -> [u8; 3] {
    let whole = _mm256_cvttpd_epi32(value);
    let bytes = _mm_packus_epi16(_mm_packus_epi32(whole, whole), whole);
    let [red, green, blue, _] = _mm_cvtsi128_si32(bytes).to_ne_bytes();
    [red, green, blue]
}
