//! The vector work of a product on AMX, interleaved with the TMUL instructions of the current accumulators: the bf16x3
//! split of the next rows of A, and the store of the previous accumulators to C.

use super::split::RowSplitter;
use crate::activation::ActivationFn;
use crate::amx::{ACC_SIDE, Interleaved};
use crate::simd::{Avx512, Simd};

/// Rows of accumulators that a call of [`Interleaved::advance`] stores. After the microkernel, its caller stores those
/// that are left.
const STORED_ROWS: usize = 4;

/// Accumulators in memory, `[rows][ACC_SIDE]`, that go to C with no more of an epilogue than an activation and a
/// residual.
pub(super) struct AccumulatorStore {
    pub sums: *const f32,
    /// Rows left.
    pub rows: usize,
    /// Whether the old C is added: it holds the sums of earlier kc blocks, or the caller accumulates.
    pub add_c: bool,
    pub c: *mut f32,
    pub ldc: usize,
    /// Added after the activation; null if unused.
    pub residual: *const f32,
    /// Row stride of `residual`.
    pub residual_stride: usize,
}

impl AccumulatorStore {
    /// Nothing to store.
    pub fn none() -> AccumulatorStore {
        let (sums, c, residual) = (std::ptr::null(), std::ptr::null_mut(), std::ptr::null());
        AccumulatorStore { sums, rows: 0, add_c: false, c, ldc: 0, residual, residual_stride: 0 }
    }

    /// Stores the next rows, at most `rows` of them.
    ///
    /// # Safety
    /// The rows of the sums and of the residual must be readable, and those of C valid.
    #[inline(always)]
    pub unsafe fn store<F: ActivationFn>(&mut self, s: Avx512, f: F, rows: usize) {
        let rows = rows.min(self.rows);
        for _ in 0..rows {
            // The two vectors of ACC_SIDE columns.
            for j in [0, Avx512::LANES] {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let c = self.c.add(j);
                    let mut x = s.load(self.sums.add(j));
                    if self.add_c {
                        x = s.add(x, s.load(c));
                    }
                    x = f.value(s, x);
                    if !self.residual.is_null() {
                        x = s.add(x, s.load(self.residual.add(j)));
                    }
                    s.store(c, x);
                }
            }
            self.sums = self.sums.wrapping_add(ACC_SIDE);
            self.c = self.c.wrapping_add(self.ldc);
            self.residual = self.residual.wrapping_add(self.residual_stride);
        }
        self.rows -= rows;
    }
}

/// The split of the next rows of A and the store of the previous accumulators.
pub(super) struct SplitAndStore<F> {
    pub s: Avx512,
    pub f: F,
    pub splitter: RowSplitter,
    /// How much a call of [`Interleaved::advance`] splits, in units of one k step (`K_STEP` elements) of one row.
    pub splits_per_call: usize,
    pub store: AccumulatorStore,
}

impl<F: ActivationFn> Interleaved for SplitAndStore<F> {
    #[inline(always)]
    unsafe fn advance(&mut self) {
        // SAFETY: `s` proves that the instructions are available; the caller guarantees the memory.
        unsafe {
            self.splitter.split(self.splits_per_call);
            self.store.store(self.s, self.f, STORED_ROWS);
        }
    }
}
