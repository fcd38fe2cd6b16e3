//! Kernels for AVX-512. Tails are loaded under a mask.

use std::arch::x86_64::*;

use half::f16;

use super::register_tiles;

/// Independent sums of a row, which hide the latency of FMA.
const CHAINS: usize = 4;
/// Products in one iteration.
const UNROLLED: usize = 8;

/// Rows are read one after another: several at a time, which would share the loads of the query, give the hardware's
/// prefetchers several streams in a page, and were three times as slow on Zen 4 (12 instead of 36 GB/s on a core).
///
/// # Safety
/// The CPU has the instructions below; `rows` holds a row of the query's length for every score.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn dot_f16(query: &[f32], rows: &[f16], scores: &mut [f32]) {
    let dim = query.len();
    let (unrolled, whole) = (dim / (16 * UNROLLED) * (16 * UNROLLED), dim / 16 * 16);
    let tail = (1u16 << (dim % 16)) - 1;
    for (row, score) in rows.chunks_exact(dim).zip(scores) {
        let row = row.as_ptr().cast::<u16>();
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        // SAFETY: `whole` is at most the length of the query and the row.
        unsafe {
            for k in (0..unrolled).step_by(16 * UNROLLED) {
                for step in 0..UNROLLED {
                    let at = k + 16 * step;
                    let v = _mm512_cvtph_ps(_mm256_loadu_si256(row.add(at).cast()));
                    let sum = &mut sums[step % CHAINS];
                    *sum = _mm512_fmadd_ps(v, _mm512_loadu_ps(query.as_ptr().add(at)), *sum);
                }
            }
            for at in (unrolled..whole).step_by(16) {
                let v = _mm512_cvtph_ps(_mm256_loadu_si256(row.add(at).cast()));
                sums[0] = _mm512_fmadd_ps(v, _mm512_loadu_ps(query.as_ptr().add(at)), sums[0]);
            }
        }
        if tail != 0 {
            // SAFETY: the mask covers the elements from `whole` to `dim`.
            unsafe {
                let q = _mm512_maskz_loadu_ps(tail, query.as_ptr().add(whole));
                let v = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(tail, row.add(whole).cast()));
                sums[0] = _mm512_fmadd_ps(v, q, sums[0]);
            }
        }
        let sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
        *score = _mm512_reduce_add_ps(sum);
    }
}

/// # Safety
/// The CPU has the instructions below; `rows` holds a row of the query's length for every score.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn dot_i8(query: &[i16], rows: &[i8], scores: &mut [i32]) {
    let dim = query.len();
    let (whole, tail) = (dim / 32 * 32, (1u32 << (dim % 32)) - 1);
    for (row, score) in rows.chunks_exact(dim).zip(scores) {
        let row = row.as_ptr();
        let mut sum = _mm512_setzero_si512();
        for k in (0..whole).step_by(32) {
            // SAFETY: elements `k..k + 32` are inside the query and the row.
            unsafe {
                let q = _mm512_loadu_si512(query.as_ptr().add(k).cast());
                let v = _mm512_cvtepi8_epi16(_mm256_loadu_si256(row.add(k).cast()));
                sum = _mm512_add_epi32(sum, _mm512_madd_epi16(v, q));
            }
        }
        if tail != 0 {
            // SAFETY: the mask covers the elements from `whole` to `dim`.
            unsafe {
                let q = _mm512_maskz_loadu_epi16(tail, query.as_ptr().add(whole));
                let v = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(tail, row.add(whole)));
                sum = _mm512_add_epi32(sum, _mm512_madd_epi16(v, q));
            }
        }
        *score = _mm512_reduce_add_epi32(sum);
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
