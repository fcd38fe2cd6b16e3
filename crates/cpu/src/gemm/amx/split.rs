//! Both operands as bf16x3 in the layout of tile registers: A from its rows, B from its packed panels.
//! The layout is `[ACC_SIDE rows or columns][k step][2 tiles][SPLITS][TILE_BYTES]`.

use std::arch::x86_64::*;

use super::super::Gemm;
use super::PANEL;
use super::partition::{BF16X3_BYTES, amx_kc};
use crate::amx::{ACC_SIDE, K_STEP, K_STEP_BYTES, SPLITS, TILE_BYTES, TILE_ROWS, split_bf16x3};
use crate::thread_pool::{DisjointMut, Pool};

/// All of A as bf16x3, one block of k after the other.
#[derive(Clone, Copy)]
pub(super) struct SplitA {
    start: *const u8,
    /// Rows of A, rounded up to a multiple of `ACC_SIDE`.
    rows: usize,
    /// The row that positions count from.
    first_row: usize,
}

// SAFETY: the memory is written before a `SplitA` exists, and only read through it.
unsafe impl Send for SplitA {}
// SAFETY: as above.
unsafe impl Sync for SplitA {}

impl SplitA {
    /// Splits A into `to` on the threads of the pool.
    ///
    /// # Safety
    /// A must be readable and `to` long enough, and outlive the result; the machine must have AVX-512.
    pub unsafe fn new(pool: &Pool, gemm: &Gemm<'_>, to: &mut [f32]) -> SplitA {
        let Gemm { m, k, lda, .. } = *gemm;
        let kc = amx_kc(k);
        let to = DisjointMut::new(to);
        let split = SplitA { start: to.at(0).cast(), rows: m.next_multiple_of(ACC_SIDE), first_row: 0 };
        pool.run(m.div_ceil(ACC_SIDE), &|i| {
            let row = i * ACC_SIDE;
            for k_start in (0..k).step_by(kc) {
                let k_len = kc.min(k - k_start);
                let from = gemm.a.as_ptr().wrapping_add(row * lda + k_start);
                let to = to.at(0).cast::<u8>().wrapping_add(split.offset(row, k_start, k_len));
                let mut splitter = RowSplitter::new(from, lda, ACC_SIDE.min(m - row), k_len, to);
                // SAFETY: guaranteed by the caller.
                unsafe { splitter.split(usize::MAX) };
            }
        });
        split
    }

    /// The same rows, counted from a later one.
    pub fn from_row(self, row: usize) -> SplitA {
        SplitA { first_row: self.first_row + row, ..self }
    }

    /// The rows from `row` on in the block of k that starts at `k_start`.
    pub fn at(&self, row: usize, k_start: usize, k_len: usize) -> *const u8 {
        self.start.wrapping_add(self.offset(row, k_start, k_len))
    }

    fn offset(&self, row: usize, k_start: usize, k_len: usize) -> usize {
        (k_start * self.rows + (self.first_row + row) * k_len.next_multiple_of(K_STEP)) * BF16X3_BYTES
    }
}

/// Splits a block of k of `n` columns of a packed B with `k` terms in all.
///
/// # Safety
/// The panels must be readable, and `to` must have room for the columns, rounded up to a multiple of `ACC_SIDE`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn split_b(b: *const f32, n: usize, k: usize, k_start: usize, k_len: usize, to: *mut u8) {
    let k_steps = k_len.div_ceil(K_STEP);
    for column in (0..n.next_multiple_of(ACC_SIDE)).step_by(TILE_ROWS) {
        let from = b.wrapping_add(column / PANEL * PANEL * k + column % PANEL + k_start * PANEL);
        let tile = column % ACC_SIDE / TILE_ROWS;
        let to = to.wrapping_add(column / ACC_SIDE * k_steps * K_STEP_BYTES + tile * SPLITS * TILE_BYTES);
        // Panels are padded, but there may be none for the last columns; these, and terms after the last, are zero.
        let terms = if column < n { k_len } else { 0 };
        for step in 0..k_steps {
            for i in 0..K_STEP / 2 {
                let term = step * K_STEP + i;
                let row = |term: usize| (if term < terms { u16::MAX } else { 0 }, from.wrapping_add(term * PANEL));
                let ((x_mask, x), (y_mask, y)) = (row(term), row(term + K_STEP / 2));
                // SAFETY: masked lanes are not read, the others are B's; a prefetch does not fault.
                unsafe {
                    // The k step after the next.
                    _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(2 * K_STEP * PANEL).cast());
                    _mm_prefetch::<_MM_HINT_T0>(y.wrapping_add(2 * K_STEP * PANEL).cast());
                    let (x, y) = (_mm512_maskz_loadu_ps(x_mask, x), _mm512_maskz_loadu_ps(y_mask, y));
                    split_bf16x3(x, y, to.add(step * K_STEP_BYTES + i * 64), TILE_BYTES);
                }
            }
        }
    }
}

/// A mask of the first `min(n, 16)` lanes.
fn first_lanes(n: usize) -> u16 {
    if n >= 16 { u16::MAX } else { (1 << n) - 1 }
}

/// Splits rows of A step by step, so that the work can be interleaved.
pub(super) struct RowSplitter {
    from: *const f32,
    lda: usize,
    pub rows: usize,
    k_len: usize,
    to: *mut u8,
    row: usize,
    /// The k step in the row.
    step: usize,
}

impl RowSplitter {
    /// Starts at the first of at most `ACC_SIDE` rows.
    pub fn new(from: *const f32, lda: usize, rows: usize, k_len: usize, to: *mut u8) -> RowSplitter {
        RowSplitter { from, lda, rows, k_len, to, row: 0, step: 0 }
    }

    /// Splits the next k steps of rows, at most `count` of them.
    ///
    /// # Safety
    /// The rows must be readable, and there must be room for `ACC_SIDE` rows of bf16x3 at the destination.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn split(&mut self, mut count: usize) {
        let k_steps = self.k_len.div_ceil(K_STEP);
        while count > 0 && self.row < self.rows {
            let in_this_row = count.min(k_steps - self.step);
            let mut from = self.from.wrapping_add(self.row * self.lda + self.step * K_STEP);
            let tile = self.row / TILE_ROWS * SPLITS * TILE_BYTES + self.row % TILE_ROWS * 64;
            let mut to = self.to.wrapping_add(self.step * K_STEP_BYTES + tile);
            for step in self.step..self.step + in_this_row {
                // SAFETY: masked lanes are not read; the caller guarantees the rest.
                unsafe {
                    let next = from.wrapping_add(K_STEP / 2);
                    let (x, y) = if (step + 1) * K_STEP <= self.k_len {
                        (_mm512_loadu_ps(from), _mm512_loadu_ps(next))
                    } else {
                        let left = self.k_len - step * K_STEP;
                        let x = _mm512_maskz_loadu_ps(first_lanes(left), from);
                        (x, _mm512_maskz_loadu_ps(first_lanes(left.saturating_sub(K_STEP / 2)), next))
                    };
                    split_bf16x3(x, y, to, TILE_BYTES);
                }
                from = from.wrapping_add(K_STEP);
                to = to.wrapping_add(K_STEP_BYTES);
            }
            count -= in_this_row;
            self.step += in_this_row;
            if self.step == k_steps {
                (self.row, self.step) = (self.row + 1, 0);
            }
        }
    }
}
