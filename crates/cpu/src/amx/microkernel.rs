//! A square of sums in the tile registers.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::bf16x3::PIECES;
use super::tmul::Unit;

/// Rows and columns of the square.
pub(crate) const SIDE: usize = 32;
/// Terms of a step along both operands.
pub(crate) const STEP: usize = 32;
/// Bytes of a tile.
pub(crate) const TILE: usize = 1024;
/// Bytes of a step of an operand: two tiles of 16 rows or columns, one after the other, in pieces.
pub(crate) const STEP_BYTES: usize = 2 * PIECES * TILE;

/// Bytes of a cache line.
const LINE: usize = 64;

/// What the vector units do while the matrix unit is busy.
pub(crate) trait Chores {
    /// Does a little; called twice in a step.
    fn some(&mut self);
}

/// Computes `steps` steps of a square of sums, which start as `start` in every row, and writes them to `sums`, rows `SIDE`
/// numbers apart. In a step of A, which are rows, term i is beside term 16 + i; so it is in one of B, which are columns.
///
/// # Safety
/// The steps must be readable, as must be `SIDE` numbers of the start; `SIDE` rows of the sums must be writable.
#[inline(always)]
pub(crate) unsafe fn product<U: Unit>(
    unit: &mut U,
    a: *const u8,
    b: *const u8,
    steps: usize,
    start: *const f32,
    sums: *mut f32,
    chores: &mut impl Chores,
) {
    // SAFETY: the caller vouches for the operands and the sums.
    unsafe {
        unit.begin_sums(start.cast());
        for step in 0..steps {
            // The next step comes to the first-level cache meanwhile: that of A, which starts again for the next square, and
            // that of B, which goes on.
            let next = if step + 1 < steps { step + 1 } else { 0 };
            let mut soon = [a.wrapping_add(next * STEP_BYTES), b.wrapping_add((step + 1) * STEP_BYTES)];
            let (a, b) = (Step(a.add(step * STEP_BYTES)), Step(b.add(step * STEP_BYTES)));
            // From small products to large ones, each time with one operand as before.
            a.load_rows(unit, 0);
            b.load_columns(unit, 2);
            multiply(unit, &mut soon[0]);
            b.load_columns(unit, 1);
            multiply(unit, &mut soon[0]);
            chores.some();
            a.load_rows(unit, 1);
            multiply(unit, &mut soon[0]);
            b.load_columns(unit, 0);
            multiply(unit, &mut soon[1]);
            chores.some();
            a.load_rows(unit, 2);
            multiply(unit, &mut soon[1]);
            a.load_rows(unit, 0);
            multiply(unit, &mut soon[1]);
        }
        unit.end_sums(sums.cast());
    }
}

/// A step of an operand.
#[derive(Clone, Copy)]
struct Step(*const u8);

impl Step {
    /// # Safety
    /// The step must be readable.
    #[inline(always)]
    unsafe fn load_rows<U: Unit>(self, unit: &mut U, piece: usize) {
        // SAFETY: the caller vouches for the step.
        unsafe {
            unit.load::<4>(self.0.add(piece * TILE), 64);
            unit.load::<5>(self.0.add((PIECES + piece) * TILE), 64);
        }
    }

    /// # Safety
    /// The step must be readable.
    #[inline(always)]
    unsafe fn load_columns<U: Unit>(self, unit: &mut U, piece: usize) {
        // SAFETY: the caller vouches for the step.
        unsafe {
            unit.load::<6>(self.0.add(piece * TILE), 64);
            unit.load::<7>(self.0.add((PIECES + piece) * TILE), 64);
        }
    }
}

/// Multiplies what is loaded, and asks for a third of an operand's next step.
#[inline(always)]
fn multiply<U: Unit>(unit: &mut U, soon: &mut *const u8) {
    ask(soon);
    unit.multiply::<0, 4, 6>();
    ask(soon);
    unit.multiply::<1, 4, 7>();
    ask(soon);
    unit.multiply::<2, 5, 6>();
    ask(soon);
    unit.multiply::<3, 5, 7>();
}

/// Asks for a twelfth of a step, which need not be valid.
#[inline(always)]
fn ask(soon: &mut *const u8) {
    for _ in 0..STEP_BYTES / 12 / LINE {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(soon.cast()) };
        *soon = soon.wrapping_add(LINE);
    }
}
