//! Pooling over windows of a channels-last image.

use crate::simd::{Kernel, Simd};

/// One pixel of the result: rows of the window's pixels combined channel by channel.
///
/// Making one is a promise: `rows` times `columns` pixels of `channels` numbers are at `x`, `row_stride` and `channels`
/// numbers apart, and `out` has `channels` numbers.
pub(crate) struct PoolWindow {
    pub x: *const f32,
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    pub channels: usize,
    pub out: *mut f32,
    pub how: Combine,
}

/// How the elements of a window are combined.
#[derive(Clone, Copy)]
pub(crate) enum Combine {
    /// Their maximum, not below this where there is such a bound; NaN if one of them is.
    Max(Option<f32>),
    /// Their sum times this.
    Sum(f32),
}

impl Kernel for PoolWindow {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut c = 0;
        while c < self.channels {
            let n = self.channels - c;
            // SAFETY: the promise of whoever made this.
            unsafe {
                let x = self.x.add(c);
                let result = match self.how {
                    Combine::Max(least) => {
                        let mut best = s.splat(f32::NEG_INFINITY);
                        for row in 0..self.rows {
                            for column in 0..self.columns {
                                let v = s.load_up_to(x.add(row * self.row_stride + column * self.channels), n);
                                best = s.max_or_nan(best, v);
                            }
                        }
                        match least {
                            Some(least) => s.max(s.splat(least), best),
                            None => best,
                        }
                    }
                    Combine::Sum(factor) => {
                        let mut sum = s.splat(0.0);
                        for row in 0..self.rows {
                            for column in 0..self.columns {
                                let at = row * self.row_stride + column * self.channels;
                                sum = s.add(sum, s.load_up_to(x.add(at), n));
                            }
                        }
                        s.mul(sum, s.splat(factor))
                    }
                };
                s.store_up_to(self.out.add(c), result, n);
            }
            c += S::LANES;
        }
    }
}
