//! Kernels for AVX-512. Tails are loaded under a mask.

use std::arch::x86_64::*;

use half::f16;

use super::register_tiles;

/// Rows that share a load of the query. Their sums are independent, which hides the latency of FMA.
const ROWS: usize = 4;
/// Bytes between the row that is multiplied and the lines that are prefetched. The hardware's prefetchers stop at the end of
/// a page, and a row may be as long as a quarter of one.
const PREFETCH: usize = 8192;

/// # Safety
/// The CPU has the instructions below; `rows` holds a row of the query's length for every score.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn dot_f16(query: &[f32], rows: &[f16], scores: &mut [f32]) {
    let dim = query.len();
    let (whole, tail) = (dim / 16 * 16, (1u16 << (dim % 16)) - 1);
    let rows = rows.as_ptr().cast::<u16>();
    for (group, scores) in scores.chunks_mut(ROWS).enumerate() {
        // SAFETY: `scores` has an element for every row of the group, so the row is inside `rows`.
        let row = |r: usize| unsafe { rows.add((group * ROWS + r.min(scores.len() - 1)) * dim) };
        let rows: [*const u16; ROWS] = std::array::from_fn(row);
        let mut sums = [_mm512_setzero_ps(); ROWS];
        for k in (0..whole).step_by(16) {
            // SAFETY: elements `k..k + 16` are inside the query and inside every row.
            unsafe {
                let q = _mm512_loadu_ps(query.as_ptr().add(k));
                for r in 0..ROWS {
                    // Half a line is loaded, so that every second one starts a line.
                    if k % 32 == 0 {
                        _mm_prefetch::<_MM_HINT_T0>(rows[r].wrapping_add(k + PREFETCH / 2).cast());
                    }
                    let v = _mm512_cvtph_ps(_mm256_loadu_si256(rows[r].add(k).cast()));
                    sums[r] = _mm512_fmadd_ps(v, q, sums[r]);
                }
            }
        }
        if tail != 0 {
            // SAFETY: the mask covers the elements from `whole` to `dim`.
            unsafe {
                let q = _mm512_maskz_loadu_ps(tail, query.as_ptr().add(whole));
                for r in 0..ROWS {
                    let v = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(tail, rows[r].add(whole).cast()));
                    sums[r] = _mm512_fmadd_ps(v, q, sums[r]);
                }
            }
        }
        for (score, sum) in scores.iter_mut().zip(sums) {
            *score = _mm512_reduce_add_ps(sum);
        }
    }
}

/// # Safety
/// The CPU has the instructions below; `rows` holds a row of the query's length for every score.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn dot_i8(query: &[i16], rows: &[i8], scores: &mut [i32]) {
    let dim = query.len();
    let (whole, tail) = (dim / 32 * 32, (1u32 << (dim % 32)) - 1);
    for (group, scores) in scores.chunks_mut(ROWS).enumerate() {
        // SAFETY: `scores` has an element for every row of the group, so the row is inside `rows`.
        let row = |r: usize| unsafe { rows.as_ptr().add((group * ROWS + r.min(scores.len() - 1)) * dim) };
        let rows: [*const i8; ROWS] = std::array::from_fn(row);
        let mut sums = [_mm512_setzero_si512(); ROWS];
        for k in (0..whole).step_by(32) {
            // SAFETY: elements `k..k + 32` are inside the query and inside every row.
            unsafe {
                let q = _mm512_loadu_si512(query.as_ptr().add(k).cast());
                for r in 0..ROWS {
                    if k % 64 == 0 {
                        _mm_prefetch::<_MM_HINT_T0>(rows[r].wrapping_add(k + PREFETCH));
                    }
                    let v = _mm512_cvtepi8_epi16(_mm256_loadu_si256(rows[r].add(k).cast()));
                    sums[r] = _mm512_add_epi32(sums[r], _mm512_madd_epi16(v, q));
                }
            }
        }
        if tail != 0 {
            // SAFETY: the mask covers the elements from `whole` to `dim`.
            unsafe {
                let q = _mm512_maskz_loadu_epi16(tail, query.as_ptr().add(whole));
                for r in 0..ROWS {
                    let v = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(tail, rows[r].add(whole)));
                    sums[r] = _mm512_add_epi32(sums[r], _mm512_madd_epi16(v, q));
                }
            }
        }
        for (score, sum) in scores.iter_mut().zip(sums) {
            *score = _mm512_reduce_add_epi32(sum);
        }
    }
}

/// Register tiles of 4 x 4 pairs: 16 sums and 5 operands of the 32 registers.
///
/// # Safety
/// The CPU has the instructions below; the lengths are those that [`super::Kernels::tile`] checks.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn tile(dim: usize, a: &[f32], b: &[f32], scores: &mut [f32]) {
    let columns = b.len() / dim;
    register_tiles::<4, 4>([a.len() / dim, columns], |[i, j], [height, width]| {
        // SAFETY: both rows are inside their blocks; a tile at the edge repeats the last row.
        let (a, b) = unsafe {
            let a: [*const f32; 4] = std::array::from_fn(|r| a.as_ptr().add((i + r.min(height - 1)) * dim));
            let b: [*const f32; 4] = std::array::from_fn(|c| b.as_ptr().add((j + c.min(width - 1)) * dim));
            (a, b)
        };
        let mut sums = [[_mm512_setzero_ps(); 4]; 4];
        for k in (0..dim).step_by(16) {
            // SAFETY: `dim` is a multiple of 16, so elements `k..k + 16` are inside the rows.
            unsafe {
                let b = b.map(|row| _mm512_loadu_ps(row.add(k)));
                for r in 0..4 {
                    let a = _mm512_loadu_ps(a[r].add(k));
                    for c in 0..4 {
                        sums[r][c] = _mm512_fmadd_ps(a, b[c], sums[r][c]);
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate().take(height) {
            for (c, sum) in sums.iter().enumerate().take(width) {
                scores[(i + r) * columns + j + c] = _mm512_reduce_add_ps(*sum);
            }
        }
    });
}
