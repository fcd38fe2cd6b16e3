//! The bf16x3 microkernel: 2 x 2 tile registers accumulate 32 x 32 sums.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::bf16x3::SPLITS;
use super::tmul::{TILE_ROW_BYTES, TILE_ROWS, Tmul};

/// Rows and columns of the accumulators.
pub(crate) const ACC_SIDE: usize = 32;
/// Terms that a tile register holds of each row or column.
pub(crate) const K_STEP: usize = 32;
/// Bytes of a tile register.
pub(crate) const TILE_BYTES: usize = TILE_ROWS * TILE_ROW_BYTES;
/// Bytes of a k step of an operand, `[2 tiles of 16 rows or columns][SPLITS][TILE_BYTES]`.
pub(crate) const K_STEP_BYTES: usize = 2 * SPLITS * TILE_BYTES;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Vector work that is interleaved with the TMUL instructions, which leave the vector units idle.
pub(crate) trait Interleaved {
    /// Does a small amount of the work; called twice per k step.
    ///
    /// # Safety
    /// The memory of the remaining work must be valid.
    unsafe fn advance(&mut self);
}

/// Computes `k_steps` k steps of 32 x 32 sums, every row of which starts as `initial`, and writes them to `sums`,
/// `[32][32]`. In each k step of A (rows) and of B (columns), position i along k is paired with position 16 + i.
///
/// # Safety
/// The k steps of both operands and `ACC_SIDE` elements of `initial` must be readable, `ACC_SIDE` rows of the sums
/// writable, and the memory of the interleaved work valid.
#[inline(always)]
pub(crate) unsafe fn microkernel_bf16x3<T: Tmul>(
    tmul: &mut T,
    a: *const u8,
    b: *const u8,
    k_steps: usize,
    initial: *const f32,
    sums: *mut f32,
    interleaved: &mut impl Interleaved,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        tmul.load_accumulators(initial.cast());
        for step in 0..k_steps {
            // Prefetched a k step ahead. After the last one, the caller continues with the same rows of A, whose first
            // k step is next, and with the columns of B that follow these in memory.
            let next_a = if step + 1 < k_steps { step + 1 } else { 0 };
            let mut next = [a.wrapping_add(next_a * K_STEP_BYTES), b.wrapping_add((step + 1) * K_STEP_BYTES)];
            let (a, b) = (KStep(a.add(step * K_STEP_BYTES)), KStep(b.add(step * K_STEP_BYTES)));
            // a0 b2, a0 b1, a1 b1, a1 b0, a2 b0, a0 b0: consecutive products share an operand, and the largest is last.
            a.load_rows(tmul, 0);
            b.load_columns(tmul, 2);
            multiply(tmul, &mut next[0]);
            b.load_columns(tmul, 1);
            multiply(tmul, &mut next[0]);
            interleaved.advance();
            a.load_rows(tmul, 1);
            multiply(tmul, &mut next[0]);
            b.load_columns(tmul, 0);
            multiply(tmul, &mut next[1]);
            interleaved.advance();
            a.load_rows(tmul, 2);
            multiply(tmul, &mut next[1]);
            a.load_rows(tmul, 0);
            multiply(tmul, &mut next[1]);
        }
        tmul.store_accumulators(sums.cast());
    }
}

/// A k step of an operand.
#[derive(Clone, Copy)]
struct KStep(*const u8);

impl KStep {
    /// Loads one bf16 part of the rows of A.
    ///
    /// # Safety
    /// The k step must be readable.
    #[inline(always)]
    unsafe fn load_rows<T: Tmul>(self, tmul: &mut T, part: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            tmul.tileloadd::<4>(self.0.add(part * TILE_BYTES), TILE_ROW_BYTES);
            tmul.tileloadd::<5>(self.0.add((SPLITS + part) * TILE_BYTES), TILE_ROW_BYTES);
        }
    }

    /// Loads one bf16 part of the columns of B.
    ///
    /// # Safety
    /// The k step must be readable.
    #[inline(always)]
    unsafe fn load_columns<T: Tmul>(self, tmul: &mut T, part: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            tmul.tileloadd::<6>(self.0.add(part * TILE_BYTES), TILE_ROW_BYTES);
            tmul.tileloadd::<7>(self.0.add((SPLITS + part) * TILE_BYTES), TILE_ROW_BYTES);
        }
    }
}

/// Multiplies the loaded tiles, and prefetches a third of an operand's next k step.
#[inline(always)]
fn multiply<T: Tmul>(tmul: &mut T, next: &mut *const u8) {
    prefetch_twelfth(next);
    tmul.tdpbf16ps::<0, 4, 6>();
    prefetch_twelfth(next);
    tmul.tdpbf16ps::<1, 4, 7>();
    prefetch_twelfth(next);
    tmul.tdpbf16ps::<2, 5, 6>();
    prefetch_twelfth(next);
    tmul.tdpbf16ps::<3, 5, 7>();
}

/// Prefetches a twelfth of a k step; the address need not be valid.
#[inline(always)]
fn prefetch_twelfth(next: &mut *const u8) {
    for _ in 0..K_STEP_BYTES / 12 / LINE {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(next.cast()) };
        *next = next.wrapping_add(LINE);
    }
}
