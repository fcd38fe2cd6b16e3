//! Pooling over windows of a channels-last image.

use crate::simd::{Kernel, Simd};

/// One pixel of the result: the pixels of a window, reduced channel by channel.
pub(crate) struct PoolWindow<'a> {
    /// The image from the window's first pixel on.
    pub x: &'a [f32],
    pub rows: usize,
    pub columns: usize,
    /// Elements from one row of the image to the next; a column has `out.len()` channels.
    pub row_stride: usize,
    pub out: &'a mut [f32],
    pub reduction: WindowReduction,
}

#[derive(Clone, Copy)]
pub(crate) enum WindowReduction {
    /// The maximum, at least this bound if there is one; NaN if one of the elements is.
    Max(Option<f32>),
    /// The sum times this factor.
    Sum(f32),
}

impl Kernel for PoolWindow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let channels = self.out.len();
        if self.rows > 0 && self.columns > 0 {
            let end = (self.rows - 1) * self.row_stride + self.columns * channels;
            assert!(end <= self.x.len(), "pooling: a window ends outside the image");
        }
        let mut c = 0;
        while c < channels {
            let n = channels - c;
            // SAFETY: the last row and column of the window end inside the image, and `out` has `channels` elements.
            unsafe {
                let x = self.x.as_ptr().add(c);
                let result = match self.reduction {
                    WindowReduction::Max(least) => {
                        let mut largest = s.splat(f32::NEG_INFINITY);
                        for row in 0..self.rows {
                            for column in 0..self.columns {
                                let v = s.load_up_to(x.add(row * self.row_stride + column * channels), n);
                                largest = s.max_or_nan(largest, v);
                            }
                        }
                        match least {
                            Some(least) => s.max(s.splat(least), largest),
                            None => largest,
                        }
                    }
                    WindowReduction::Sum(factor) => {
                        let mut sum = s.splat(0.0);
                        for row in 0..self.rows {
                            for column in 0..self.columns {
                                let v = s.load_up_to(x.add(row * self.row_stride + column * channels), n);
                                sum = s.add(sum, v);
                            }
                        }
                        s.mul(sum, s.splat(factor))
                    }
                };
                s.store_up_to(self.out.as_mut_ptr().add(c), result, n);
            }
            c += S::LANES;
        }
    }
}
