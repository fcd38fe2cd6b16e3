//! Kernels for AVX2 with FMA and F16C. Tails are computed one element at a time.

use std::arch::x86_64::*;

use half::f16;

use super::register_tiles;

/// Independent sums of a row, which hide the latency of FMA.
const CHAINS: usize = 4;
/// Products in one iteration.
const UNROLLED: usize = 8;

/// Rows are read one after another, as with AVX-512.
///
/// # Safety
/// The CPU has the instructions below; `rows` holds a row of the query's length for every score.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dot_f16(query: &[f32], rows: &[f16], scores: &mut [f32]) {
    let dim = query.len();
    let (unrolled, whole) = (dim / (8 * UNROLLED) * (8 * UNROLLED), dim / 8 * 8);
    for (values, score) in rows.chunks_exact(dim).zip(scores) {
        let row = values.as_ptr();
        let mut sums = [_mm256_setzero_ps(); CHAINS];
        // SAFETY: `whole` is at most the length of the query and the row.
        unsafe {
            for k in (0..unrolled).step_by(8 * UNROLLED) {
                for step in 0..UNROLLED {
                    let at = k + 8 * step;
                    let v = _mm256_cvtph_ps(_mm_loadu_si128(row.add(at).cast()));
                    let sum = &mut sums[step % CHAINS];
                    *sum = _mm256_fmadd_ps(v, _mm256_loadu_ps(query.as_ptr().add(at)), *sum);
                }
            }
            for at in (unrolled..whole).step_by(8) {
                let v = _mm256_cvtph_ps(_mm_loadu_si128(row.add(at).cast()));
                sums[0] = _mm256_fmadd_ps(v, _mm256_loadu_ps(query.as_ptr().add(at)), sums[0]);
            }
        }
        let total = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
        let tail = query[whole..].iter().zip(&values[whole..]).map(|(q, v)| q * v.to_f32());
        *score = sum(total) + tail.sum::<f32>();
    }
}

/// # Safety
/// The CPU has the instructions below; `rows` holds a row of the query's length for every score.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn dot_i8(query: &[i16], rows: &[i8], scores: &mut [i32]) {
    let dim = query.len();
    let whole = dim / 16 * 16;
    for (row, score) in rows.chunks_exact(dim).zip(scores) {
        let mut total = _mm256_setzero_si256();
        for k in (0..whole).step_by(16) {
            // SAFETY: elements `k..k + 16` are inside the query and the row.
            unsafe {
                let q = _mm256_loadu_si256(query.as_ptr().add(k).cast());
                let v = _mm256_cvtepi8_epi16(_mm_loadu_si128(row.as_ptr().add(k).cast()));
                total = _mm256_add_epi32(total, _mm256_madd_epi16(v, q));
            }
        }
        let tail = query[whole..].iter().zip(&row[whole..]).map(|(q, v)| i32::from(*q) * i32::from(*v));
        *score = sum_i32(total) + tail.sum::<i32>();
    }
}

/// Register tiles of 4 x 2 pairs: 8 sums and 3 operands of the 16 registers.
///
/// # Safety
/// The CPU has the instructions below; the lengths are those that [`super::Kernels::tile`] checks.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn tile(dim: usize, a: &[f32], b: &[f32], scores: &mut [f32]) {
    let columns = b.len() / dim;
    register_tiles::<4, 2>([a.len() / dim, columns], |[i, j], [height, width]| {
        // SAFETY: both rows are inside their blocks; a tile at the edge repeats the last row.
        let (a, b) = unsafe {
            let a: [*const f32; 4] = std::array::from_fn(|r| a.as_ptr().add((i + r.min(height - 1)) * dim));
            let b: [*const f32; 2] = std::array::from_fn(|c| b.as_ptr().add((j + c.min(width - 1)) * dim));
            (a, b)
        };
        let mut sums = [[_mm256_setzero_ps(); 2]; 4];
        for k in (0..dim).step_by(8) {
            // SAFETY: `dim` is a multiple of 16, so elements `k..k + 8` are inside the rows.
            unsafe {
                let b = b.map(|row| _mm256_loadu_ps(row.add(k)));
                for r in 0..4 {
                    let a = _mm256_loadu_ps(a[r].add(k));
                    for c in 0..2 {
                        sums[r][c] = _mm256_fmadd_ps(a, b[c], sums[r][c]);
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate().take(height) {
            for (c, lanes) in sums.iter().enumerate().take(width) {
                scores[(i + r) * columns + j + c] = sum(*lanes);
            }
        }
    });
}

#[target_feature(enable = "avx2")]
fn sum(lanes: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[target_feature(enable = "avx2")]
fn sum_i32(lanes: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
}
