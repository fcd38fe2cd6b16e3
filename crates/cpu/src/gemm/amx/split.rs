//! Both operands on their way to pieces: the rows of A, and the columns of a packed B.

use std::arch::x86_64::*;

use super::super::{Block, Gemm};
use super::PANEL;
use super::partition::{BYTES, terms};
use crate::amx::{PIECES, SIDE, STEP, STEP_BYTES, TILE, split};
use crate::pool::{DisjointMut, Pool};

/// All of A in pieces: for each block of terms two tiles of rows after the other.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    pub start: *const u8,
    /// Rows in all, a multiple of `SIDE`.
    rows: usize,
    /// Where the rows of a block begin.
    row: usize,
}

// SAFETY: what it points to is written before there is one.
unsafe impl Send for Pieces {}
// SAFETY: as above.
unsafe impl Sync for Pieces {}

impl Pieces {
    /// # Safety
    /// A must be readable, and there must be room; the machine must have AVX-512.
    pub unsafe fn new(pool: &Pool, gemm: &Gemm<'_>, room: &mut [f32]) -> Pieces {
        let Gemm { m, k, lda, .. } = *gemm;
        let most = terms(k);
        let room = DisjointMut::new(room);
        let pieces = Pieces { start: room.at(0).cast(), rows: m.next_multiple_of(SIDE), row: 0 };
        pool.run(m.div_ceil(SIDE), &|i| {
            let row = i * SIDE;
            for start in (0..k).step_by(most) {
                let terms = most.min(k - start);
                let from = gemm.a.as_ptr().wrapping_add(row * lda + start);
                let to = room.at(0).cast::<u8>().wrapping_add(pieces.offset(row, start, terms));
                // SAFETY: the caller vouches for A, the room and the machine.
                unsafe { Rows::new(from, lda, SIDE.min(m - row), terms, to).split(usize::MAX) };
            }
        });
        pieces
    }

    pub fn below(self, row: usize) -> Pieces {
        Pieces { row: self.row + row, ..self }
    }

    pub fn offset(&self, row: usize, start: usize, terms: usize) -> usize {
        (start * self.rows + (self.row + row) * terms.next_multiple_of(STEP)) * BYTES
    }
}

/// Takes some terms of B to pieces: for each square's columns one step after the other.
///
/// # Safety
/// The block vouches for B; `to` has room.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn split_columns(block: &Block<'_>, start: usize, terms: usize, to: *mut u8) {
    let steps = terms.div_ceil(STEP);
    for column in (0..block.n.next_multiple_of(SIDE)).step_by(16) {
        let from = block.b.wrapping_add(column / PANEL * PANEL * block.k + column % PANEL + start * PANEL);
        let to = to.wrapping_add(column / SIDE * steps * STEP_BYTES + column % SIDE / 16 * PIECES * TILE);
        // Panels are whole; columns after the last and terms after the last are zero.
        let terms = if column < block.n { terms } else { 0 };
        for step in 0..steps {
            for i in 0..STEP / 2 {
                let term = step * STEP + i;
                let row = |term: usize| (if term < terms { u16::MAX } else { 0 }, from.wrapping_add(term * PANEL));
                let ((x_mask, x), (y_mask, y)) = (row(term), row(term + STEP / 2));
                // SAFETY: masked lanes are not read, the others are B's; asking for a line does not fault.
                unsafe {
                    // Those of the step after the next.
                    _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(2 * STEP * PANEL).cast());
                    _mm_prefetch::<_MM_HINT_T0>(y.wrapping_add(2 * STEP * PANEL).cast());
                    let (x, y) = (_mm512_maskz_loadu_ps(x_mask, x), _mm512_maskz_loadu_ps(y_mask, y));
                    split(x, y, to.add(step * STEP_BYTES + i * 64), TILE);
                }
            }
        }
    }
}

/// A mask of the first `n` lanes, or of all.
fn first(n: usize) -> u16 {
    if n >= 16 { u16::MAX } else { (1 << n) - 1 }
}

/// Rows of A on their way to pieces.
pub(super) struct Rows {
    from: *const f32,
    lda: usize,
    pub rows: usize,
    terms: usize,
    to: *mut u8,
    /// Where it is: the row, and the step in it.
    row: usize,
    step: usize,
}

impl Rows {
    pub fn new(from: *const f32, lda: usize, rows: usize, terms: usize, to: *mut u8) -> Rows {
        Rows { from, lda, rows, terms, to, row: 0, step: 0 }
    }

    /// Takes the next so many steps of rows to pieces, or those that are left.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn split(&mut self, mut count: usize) {
        let steps = self.terms.div_ceil(STEP);
        while count > 0 && self.row < self.rows {
            let some = count.min(steps - self.step);
            let mut from = self.from.wrapping_add(self.row * self.lda + self.step * STEP);
            let to = self.step * STEP_BYTES + self.row / 16 * PIECES * TILE + self.row % 16 * 64;
            let mut to = self.to.wrapping_add(to);
            for step in self.step..self.step + some {
                // SAFETY: masked lanes are not read, the others are A's, and there is room for the pieces of all steps.
                unsafe {
                    let next = from.wrapping_add(STEP / 2);
                    let (x, y) = if (step + 1) * STEP <= self.terms {
                        (_mm512_loadu_ps(from), _mm512_loadu_ps(next))
                    } else {
                        let left = self.terms - step * STEP;
                        let x = _mm512_maskz_loadu_ps(first(left), from);
                        (x, _mm512_maskz_loadu_ps(first(left.saturating_sub(STEP / 2)), next))
                    };
                    split(x, y, to, TILE);
                }
                from = from.wrapping_add(STEP);
                to = to.wrapping_add(STEP_BYTES);
            }
            count -= some;
            self.step += some;
            if self.step == steps {
                (self.row, self.step) = (self.row + 1, 0);
            }
        }
    }
}
