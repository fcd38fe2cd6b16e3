//! Dot products of a query with consecutive rows, and of every row of one block with every row of another. Each kernel exists
//! for AVX-512, AVX2 and portable Rust, and is chosen at run time.
//!
//! The sums of f32 kernels differ between instruction sets in their last bits; callers bound that error and decide close
//! cases in f64.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use half::f16;

/// Rows of blocks for [`Kernels::tile`] are padded with zeros to a multiple of this many elements.
pub(crate) const PADDING: usize = 16;

/// Implementations for one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// AVX-512 F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Plain Rust, on every machine.
    Portable,
}

impl Kernels {
    /// The implementations that this machine can run, fastest first.
    pub(crate) fn available() -> Vec<Kernels> {
        let mut available = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
            {
                available.push(Kernels::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                available.push(Kernels::Avx2);
            }
        }
        available.push(Kernels::Portable);
        available
    }

    /// The fastest implementation on this machine.
    pub(crate) fn detect() -> Kernels {
        Kernels::available()[0]
    }

    /// The dot products of `query` with consecutive f16 rows of its length, one for each element of `scores`.
    pub(crate) fn dot_f16(self, query: &[f32], rows: &[f16], scores: &mut [f32]) {
        assert_eq!(rows.len(), query.len() * scores.len());
        match self {
            // SAFETY: `available` has found the instructions, and the lengths were compared above.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 => unsafe { avx512::dot_f16(query, rows, scores) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 => unsafe { avx2::dot_f16(query, rows, scores) },
            Kernels::Portable => portable::dot_f16(query, rows, scores),
        }
    }

    /// The dot products of `query` with consecutive i8 rows of its length. The caller bounds the elements of `query` so that
    /// no sum overflows, see [`largest_element`].
    pub(crate) fn dot_i8(self, query: &[i16], rows: &[i8], scores: &mut [i32]) {
        assert_eq!(rows.len(), query.len() * scores.len());
        match self {
            // SAFETY: `available` has found the instructions, and the lengths were compared above.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 => unsafe { avx512::dot_i8(query, rows, scores) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 => unsafe { avx2::dot_i8(query, rows, scores) },
            Kernels::Portable => portable::dot_i8(query, rows, scores),
        }
    }

    /// The dot products of every row of `a` with every row of `b`, `scores[i * (rows of b) + j]`. Rows have `dim` elements, a
    /// multiple of [`PADDING`].
    pub(crate) fn tile(self, dim: usize, a: &[f32], b: &[f32], scores: &mut [f32]) {
        assert!(dim > 0 && dim.is_multiple_of(PADDING) && a.len().is_multiple_of(dim) && b.len().is_multiple_of(dim));
        assert_eq!(scores.len(), (a.len() / dim) * (b.len() / dim));
        match self {
            // SAFETY: `available` has found the instructions, and the lengths were compared above.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 => unsafe { avx512::tile(dim, a, b, scores) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 => unsafe { avx2::tile(dim, a, b, scores) },
            Kernels::Portable => portable::tile(dim, a, b, scores),
        }
    }
}

/// The largest magnitude of a query's elements for [`Kernels::dot_i8`]: no sum of `dim` products with i8 exceeds an i32.
pub(crate) fn largest_element(dim: usize) -> i16 {
    i16::try_from(i32::MAX as usize / (128 * dim.max(1))).unwrap_or(i16::MAX)
}

/// Calls `kernel` for register tiles of up to `A` rows by `B` rows that cover all pairs: with the first row of each, and
/// how many rows of each to compute.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn register_tiles<const A: usize, const B: usize>(rows: [usize; 2], mut kernel: impl FnMut([usize; 2], [usize; 2])) {
    for i in (0..rows[0]).step_by(A) {
        for j in (0..rows[1]).step_by(B) {
            kernel([i, j], [A.min(rows[0] - i), B.min(rows[1] - j)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reproducible values between -1 and 1.
    fn values(count: usize, mut seed: u64) -> Vec<f32> {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn exact(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    #[test]
    fn f16_rows_of_any_length_on_every_instruction_set() {
        for (dim, count) in [(1, 1), (7, 3), (15, 5), (16, 4), (33, 9), (100, 6), (512, 7)] {
            let query = values(dim, 1);
            let rows: Vec<f16> = values(dim * count, 2).into_iter().map(f16::from_f32).collect();
            for kernels in Kernels::available() {
                let mut scores = vec![f32::NAN; count];
                kernels.dot_f16(&query, &rows, &mut scores);
                for (row, score) in rows.chunks(dim).zip(&scores) {
                    let row: Vec<f32> = row.iter().map(|v| v.to_f32()).collect();
                    let exact = exact(&query, &row);
                    assert!((f64::from(*score) - exact).abs() < 1e-6 * dim as f64, "{kernels:?} {dim}");
                }
            }
        }
    }

    #[test]
    fn i8_rows_are_summed_exactly_at_the_ends_of_the_range() {
        for (dim, count) in [(1, 1), (15, 5), (31, 2), (32, 4), (65, 9), (512, 7), (5000, 3)] {
            let largest = f32::from(largest_element(dim));
            let mut query: Vec<i16> = values(dim, 1).iter().map(|v| (v * largest) as i16).collect();
            let mut rows: Vec<i8> = values(dim * count, 2).iter().map(|v| (v * 127.0) as i8).collect();
            query[dim / 2] = -(largest as i16);
            rows[..dim].fill(-128);
            if dim > 100 {
                query.fill(largest as i16);
            }
            for kernels in Kernels::available() {
                let mut scores = vec![0; count];
                kernels.dot_i8(&query, &rows, &mut scores);
                for (row, score) in rows.chunks(dim).zip(&scores) {
                    let exact: i64 = query.iter().zip(row).map(|(q, v)| i64::from(*q) * i64::from(*v)).sum();
                    assert_eq!(i64::from(*score), exact, "{kernels:?} {dim}");
                }
            }
        }
    }

    #[test]
    fn tiles_cover_every_pair() {
        for (dim, rows) in [(16, [1, 1]), (16, [5, 3]), (48, [4, 4]), (512, [9, 7]), (32, [6, 13])] {
            let [a, b] = [values(dim * rows[0], 3), values(dim * rows[1], 4)];
            for kernels in Kernels::available() {
                let mut scores = vec![f32::NAN; rows[0] * rows[1]];
                kernels.tile(dim, &a, &b, &mut scores);
                let pairs = a.chunks(dim).flat_map(|a| b.chunks(dim).map(move |b| exact(a, b)));
                for (score, exact) in scores.iter().zip(pairs) {
                    assert!((f64::from(*score) - exact).abs() < 1e-6 * dim as f64, "{kernels:?} {dim} {rows:?}");
                }
            }
        }
    }
}
