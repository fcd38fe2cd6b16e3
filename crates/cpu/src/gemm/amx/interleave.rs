//! What the vector units do while the matrix unit is at a square: the next rows of A go to pieces, the last square to C.

use super::split::Rows;
use crate::activation::ActivationFn;
use crate::amx::{Chores, SIDE};
use crate::simd::{Avx512, Simd};

/// Rows of a square that are brought to C at a time.
const FINISHED: usize = 4;

/// A square of sums on its way to C through a function, and nothing else but sums.
pub(super) struct Square {
    pub sums: *const f32,
    pub rows: usize,
    /// Whether C holds the sum so far.
    pub add: bool,
    pub c: *mut f32,
    pub ldc: usize,
    /// What is added last, if it is not null, and the distance of its rows.
    pub plus: *const f32,
    pub plus_stride: usize,
}

impl Square {
    pub fn none() -> Square {
        let (sums, c, plus) = (std::ptr::null(), std::ptr::null_mut(), std::ptr::null());
        Square { sums, rows: 0, add: false, c, ldc: 0, plus, plus_stride: 0 }
    }

    /// Brings the next so many rows to C, or those that are left.
    ///
    /// # Safety
    /// The rows must be readable, and those of C writable.
    #[inline(always)]
    pub unsafe fn finish<F: ActivationFn>(&mut self, s: Avx512, f: F, rows: usize) {
        let rows = rows.min(self.rows);
        for _ in 0..rows {
            for j in [0, Avx512::LANES] {
                // SAFETY: the caller vouches for the memory.
                unsafe {
                    let c = self.c.add(j);
                    let mut x = s.load(self.sums.add(j));
                    if self.add {
                        x = s.add(x, s.load(c));
                    }
                    x = f.value(s, x);
                    if !self.plus.is_null() {
                        x = s.add(x, s.load(self.plus.add(j)));
                    }
                    s.store(c, x);
                }
            }
            self.sums = self.sums.wrapping_add(SIDE);
            self.c = self.c.wrapping_add(self.ldc);
            self.plus = self.plus.wrapping_add(self.plus_stride);
        }
        self.rows -= rows;
    }
}

/// The next rows of A, and the last square of C.
pub(super) struct Both<F> {
    pub s: Avx512,
    pub f: F,
    pub rows: Rows,
    /// Steps of rows at a time.
    pub each: usize,
    pub square: Square,
}

impl<F: ActivationFn> Chores for Both<F> {
    #[inline(always)]
    fn some(&mut self) {
        // SAFETY: `s` proves that the instructions are available; the square is one of the block's.
        unsafe {
            self.rows.split(self.each);
            self.square.finish(self.s, self.f, FINISHED);
        }
    }
}
