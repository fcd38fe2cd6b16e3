//! The exponentials of a tile of scores, row by row: softmax needs other units of the processor than the products do, so
//! that while the weighted sums of one tile are computed, the scores of the next become weights, a vector at a time.

use crate::simd::math::exp2;
use crate::simd::{Kernel, Simd};

/// A tile of scores on its way to `exp((score - top) * scale)`, in place, with the sums of the rows.
///
/// Making one is a promise: `rows` rows of whole vectors of scores are valid, those beyond `keys` minus infinity, and as
/// many tops and vectors of sums.
pub(super) struct Exponentials {
    pub scores: *mut f32,
    pub stride: usize,
    /// How many rows are left.
    pub rows: usize,
    pub keys: usize,
    pub scale: f32,
    /// The largest score of each row.
    pub tops: *const f32,
    /// `[rows][LANES]`, which takes the sums in parts, one for each lane.
    pub sums: *mut f32,
}

impl Exponentials {
    /// Vectors of a row.
    #[inline(always)]
    pub fn vectors<S: Simd>(&self) -> usize {
        self.keys.div_ceil(S::LANES)
    }

    /// # Safety
    /// A row must be left.
    #[inline(always)]
    pub unsafe fn begin<S: Simd>(&self, s: S) -> Row<S> {
        // SAFETY: there is a top for each row.
        let top = s.splat(unsafe { *self.tops });
        let scale = s.splat(self.scale * std::f32::consts::LOG2_E);
        Row { next: self.scores, top, scale, sum: s.splat(0.0) }
    }

    /// Goes on to the next row.
    ///
    /// # Safety
    /// `row` must be what [`Self::begin`] gave, with all its vectors done.
    #[inline(always)]
    pub unsafe fn end<S: Simd>(&mut self, s: S, row: Row<S>) {
        // SAFETY: there is a vector of sums for each row.
        unsafe { s.store(self.sums, row.sum) };
        self.rows -= 1;
        self.scores = self.scores.wrapping_add(self.stride);
        self.tops = self.tops.wrapping_add(1);
        self.sums = self.sums.wrapping_add(S::LANES);
    }
}

/// A row that has begun.
pub(super) struct Row<S: Simd> {
    next: *mut f32,
    top: S::V,
    scale: S::V,
    sum: S::V,
}

impl<S: Simd> Row<S> {
    /// One vector.
    ///
    /// # Safety
    /// The row must have one more.
    #[inline(always)]
    pub unsafe fn advance(&mut self, s: S) {
        // SAFETY: the caller vouches for the vector.
        unsafe {
            let x = exp2(s, s.mul(s.sub(s.load(self.next), self.top), self.scale));
            s.store(self.next, x);
            self.sum = s.add(self.sum, x);
        }
        self.next = self.next.wrapping_add(S::LANES);
    }
}

/// All rows that are left.
pub(super) struct Rest<'a>(pub &'a mut Exponentials);

impl Kernel for Rest<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        while self.0.rows > 0 {
            // SAFETY: the promise of whoever made the exponentials.
            unsafe {
                let mut row = self.0.begin(s);
                for _ in 0..self.0.vectors::<S>() {
                    row.advance(s);
                }
                self.0.end(s, row);
            }
        }
    }
}
