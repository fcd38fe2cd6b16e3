//! Both operands as bf16x3 in the layout of tile registers: A from its rows, B from its packed panels.
//!
//! A kc block of an operand is `[strip][k step][2 tiles][SPLITS][TILE_BYTES]`: a strip is `ACC_SIDE` rows of A or
//! columns of B, a k step `K_STEP` positions along k, a tile `TILE_ROWS` rows or columns of the strip, and `SPLITS` the
//! three bf16 parts. B is split one kc block at a time; [`SplitA`] holds all kc blocks of A, one after the other.
//!
//! TDPBF16PS multiplies pairs of neighbouring bf16. A pair holds positions k and k + K_STEP / 2, not k and k + 1: two
//! vector loads then give the halves of 16 pairs without a shuffle. A and B have the same pairs, so the terms of a sum
//! are the same, in another order.

use std::arch::x86_64::*;

use super::super::Gemm;
use super::PANEL;
use super::partition::{BF16X3_BYTES, amx_kc};
use crate::amx::{ACC_SIDE, K_STEP, K_STEP_BYTES, SPLITS, TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, split_bf16x3};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// How many k steps ahead of its use a packed B is prefetched.
const PREFETCH_K_STEPS: usize = 2;

/// All of A as bf16x3, one kc block after the other.
#[derive(Clone, Copy)]
pub(super) struct SplitA {
    start: *const u8,
    /// Rows of A, rounded up to a multiple of `ACC_SIDE`.
    rows: usize,
    /// The row of A that is row 0 of [`SplitA::at`].
    first_row: usize,
}

// SAFETY: `new` returns only after all tasks have written the memory; from then on it is only read.
unsafe impl Send for SplitA {}
// SAFETY: as above.
unsafe impl Sync for SplitA {}

impl SplitA {
    /// Splits A into `to` on the threads of the pool.
    ///
    /// # Safety
    /// `m` rows of `k` elements of A, `lda` apart, must be readable. `to` must hold `m` rounded up to `ACC_SIDE` rows
    /// of `k` rounded up to `K_STEP` elements as bf16x3; it must outlive the result and stay unwritten meanwhile. The
    /// machine must have AVX-512.
    pub unsafe fn new(pool: &ThreadPool, gemm: &Gemm<'_>, to: &mut [f32]) -> SplitA {
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
                // SAFETY: the caller guarantees A, the room and AVX-512; a strip of a kc block is written by one task.
                unsafe { splitter.split(usize::MAX) };
            }
        });
        split
    }

    /// Without the first `rows` rows, a multiple of `ACC_SIDE`.
    pub fn skip_rows(self, rows: usize) -> SplitA {
        SplitA { first_row: self.first_row + rows, ..self }
    }

    /// The strips from `row` on, a multiple of `ACC_SIDE`, in the kc block that starts at `k_start`.
    pub fn at(&self, row: usize, k_start: usize, k_len: usize) -> *const u8 {
        self.start.wrapping_add(self.offset(row, k_start, k_len))
    }

    /// The kc blocks before `k_start` are full, and kc is a multiple of `K_STEP`; only the last one is padded along k.
    fn offset(&self, row: usize, k_start: usize, k_len: usize) -> usize {
        (k_start * self.rows + (self.first_row + row) * k_len.next_multiple_of(K_STEP)) * BF16X3_BYTES
    }
}

/// Splits the kc block `k_start..k_start + k_len` of `n` columns of a packed B, `[panel][k][PANEL]`.
///
/// # Safety
/// The panels of the `n` columns must be readable. `to` must have room for `n` rounded up to `ACC_SIDE` columns of
/// `k_len` rounded up to `K_STEP` elements as bf16x3.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn split_b(b: *const f32, n: usize, k: usize, k_start: usize, k_len: usize, to: *mut u8) {
    let k_steps = k_len.div_ceil(K_STEP);
    for column in (0..n.next_multiple_of(ACC_SIDE)).step_by(TILE_ROWS) {
        let from = b.wrapping_add(column / PANEL * PANEL * k + column % PANEL + k_start * PANEL);
        let tile = column % ACC_SIDE / TILE_ROWS;
        let to = to.wrapping_add(column / ACC_SIDE * k_steps * K_STEP_BYTES + tile * SPLITS * TILE_BYTES);
        // The last panel is padded with zeros, but may end before the last strip: tiles without a panel are zero, and
        // so are the positions after k_len.
        let k_valid = if column < n { k_len } else { 0 };
        for step in 0..k_steps {
            for i in 0..K_STEP / 2 {
                let k_index = step * K_STEP + i;
                let row = |k: usize| (if k < k_valid { u16::MAX } else { 0 }, from.wrapping_add(k * PANEL));
                let ((x_mask, x), (y_mask, y)) = (row(k_index), row(k_index + K_STEP / 2));
                // SAFETY: lanes are read only where a panel has them, and `to` has room; a prefetch does not fault.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(PREFETCH_K_STEPS * K_STEP * PANEL).cast());
                    _mm_prefetch::<_MM_HINT_T0>(y.wrapping_add(PREFETCH_K_STEPS * K_STEP * PANEL).cast());
                    let (x, y) = (_mm512_maskz_loadu_ps(x_mask, x), _mm512_maskz_loadu_ps(y_mask, y));
                    split_bf16x3(x, y, to.add(step * K_STEP_BYTES + i * TILE_ROW_BYTES), TILE_BYTES);
                }
            }
        }
    }
}

/// A mask of the first `min(n, 16)` lanes.
fn first_lanes(n: usize) -> u16 {
    if n >= 16 { u16::MAX } else { (1 << n) - 1 }
}

/// Splits a strip of A a few k steps at a time, so that the work can be interleaved with TMUL instructions.
///
/// Rows of the strip after `rows` are not written: LDTILECFG for `rows` rows leaves them out of the products, but for
/// one row of an empty lower tile, the sums of which do not go to C.
pub(super) struct RowSplitter {
    from: *const f32,
    lda: usize,
    /// Rows of the strip that A has, at most `ACC_SIDE`.
    pub rows: usize,
    k_len: usize,
    to: *mut u8,
    /// The row that is split next.
    row: usize,
    /// The next k step of `row`.
    step: usize,
}

impl RowSplitter {
    /// Starts at the first of at most `ACC_SIDE` rows.
    pub fn new(from: *const f32, lda: usize, rows: usize, k_len: usize, to: *mut u8) -> RowSplitter {
        RowSplitter { from, lda, rows, k_len, to, row: 0, step: 0 }
    }

    /// Splits at most `count` units, each one k step (`K_STEP` elements) of one row.
    ///
    /// # Safety
    /// `k_len` elements of every row must be readable, and the destination must have room for `ACC_SIDE` rows of
    /// `k_len` rounded up to `K_STEP` elements as bf16x3.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn split(&mut self, mut count: usize) {
        let k_steps = self.k_len.div_ceil(K_STEP);
        while count > 0 && self.row < self.rows {
            let in_this_row = count.min(k_steps - self.step);
            let mut from = self.from.wrapping_add(self.row * self.lda + self.step * K_STEP);
            let tile = self.row / TILE_ROWS * SPLITS * TILE_BYTES + self.row % TILE_ROWS * TILE_ROW_BYTES;
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
