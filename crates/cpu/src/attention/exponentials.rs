//! The exponentials of a block of scores, a vector at a time, so that they can be interleaved with the weighted sums of
//! values (P V) of the previous block: dependency chains of the exponentials overlap with multiply-adds of the sums.

use std::marker::PhantomData;

use crate::simd::math::exp2;
use crate::simd::{Kernel, MAX_LANES, Simd};

/// Replaces scores by `exp((score - maximum of the row) * scale)` in place and sums each row by lane.
pub(super) struct Exponentials<'a> {
    /// The next row; `maxima` and `sums` advance with it.
    scores: *mut f32,
    stride: usize,
    /// Rows left.
    rows: usize,
    keys: usize,
    /// Multiplied by log2(e), since `exp(x) = exp2(x log2(e))`.
    scale: f32,
    maxima: *const f32,
    sums: *mut f32,
    _slices: PhantomData<&'a mut [f32]>,
}

impl<'a> Exponentials<'a> {
    /// Rows of `keys` scores that are `stride` apart and padded to whole vectors with minus infinity; `sums` receives a
    /// sum for each row and lane, `[rows][S::LANES]`, and has room for `MAX_LANES` per row.
    ///
    /// # Panics
    /// If a slice or the stride is too short.
    #[inline(always)]
    pub fn new(
        [rows, keys]: [usize; 2],
        scale: f32,
        (scores, stride): (&'a mut [f32], usize),
        maxima: &'a [f32],
        sums: &'a mut [f32],
    ) -> Self {
        assert!(
            stride >= keys.next_multiple_of(MAX_LANES) && scores.len() >= rows * stride,
            "attention: too few scores"
        );
        assert!(maxima.len() >= rows && sums.len() >= rows * MAX_LANES, "attention: too few sums");
        Exponentials {
            scores: scores.as_mut_ptr(),
            stride,
            rows,
            keys,
            scale: scale * std::f32::consts::LOG2_E,
            maxima: maxima.as_ptr(),
            sums: sums.as_mut_ptr(),
            _slices: PhantomData,
        }
    }

    #[inline(always)]
    pub fn rows_left(&self) -> usize {
        self.rows
    }

    #[inline(always)]
    pub fn vectors_per_row<S: Simd>(&self) -> usize {
        self.keys.div_ceil(S::LANES)
    }

    /// # Safety
    /// A row must be left.
    #[inline(always)]
    pub unsafe fn begin_row<S: Simd>(&self, s: S) -> ExponentialRow<S> {
        // SAFETY: there is a maximum for each row.
        let maximum = s.splat(unsafe { *self.maxima });
        ExponentialRow { next: self.scores, maximum, scale: s.splat(self.scale), sum: s.splat(0.0) }
    }

    /// Stores the sum of a row and moves on to the next.
    ///
    /// # Safety
    /// `row` must come from [`Self::begin_row`], after as many [`ExponentialRow::advance`] as it has vectors.
    #[inline(always)]
    pub unsafe fn end_row<S: Simd>(&mut self, s: S, row: ExponentialRow<S>) {
        // SAFETY: there is a vector of sums for each row.
        unsafe { s.store(self.sums, row.sum) };
        self.rows -= 1;
        self.scores = self.scores.wrapping_add(self.stride);
        self.maxima = self.maxima.wrapping_add(1);
        self.sums = self.sums.wrapping_add(S::LANES);
    }
}

/// A row of which some vectors are done.
pub(super) struct ExponentialRow<S: Simd> {
    next: *mut f32,
    maximum: S::V,
    scale: S::V,
    sum: S::V,
}

impl<S: Simd> ExponentialRow<S> {
    /// Computes one vector.
    ///
    /// # Safety
    /// The row must have one more.
    #[inline(always)]
    pub unsafe fn advance(&mut self, s: S) {
        // SAFETY: rows are whole vectors, and the caller has one left.
        unsafe {
            let x = exp2(s, s.mul(s.sub(s.load(self.next), self.maximum), self.scale));
            s.store(self.next, x);
            self.sum = s.add(self.sum, x);
        }
        self.next = self.next.wrapping_add(S::LANES);
    }
}

/// Computes all rows that are left.
pub(super) struct FinishExponentials<'a, 'b>(pub &'a mut Exponentials<'b>);

impl Kernel for FinishExponentials<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        while self.0.rows > 0 {
            // SAFETY: a row is left, and all its vectors are computed.
            unsafe {
                let mut row = self.0.begin_row(s);
                for _ in 0..self.0.vectors_per_row::<S>() {
                    row.advance(s);
                }
                self.0.end_row(s, row);
            }
        }
    }
}
