//! Pooling over windows of a channels-last image.

use vit_graph::ops::{Pool2d, PoolMode};

use crate::simd::{Kernel, Simd};

#[derive(Clone, Copy)]
pub(crate) struct PoolGeometry {
    pub pool: Pool2d,
    /// Height, width and channels of the image.
    pub image: [usize; 3],
    /// Height and width of the result.
    pub output: [usize; 2],
}

impl PoolGeometry {
    pub fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    pub fn output_len(&self) -> usize {
        self.output[0] * self.output[1] * self.image[2]
    }

    /// The rows and columns `[start, end]` of the image that a window covers, ends excluded, without its padding.
    #[inline(always)]
    pub fn window(&self, oy: usize, ox: usize) -> [[usize; 2]; 2] {
        [self.pool.window(0, oy, self.image[0]), self.pool.window(1, ox, self.image[1])]
    }

    /// The factor that turns the sum over a window with this many pixels inside the image into the mean.
    #[inline(always)]
    pub fn mean_factor(&self, pixels: usize) -> f32 {
        let [kh, kw] = self.pool.kernel;
        1.0 / if self.pool.count_padding { kh * kw } else { pixels } as f32
    }

    /// Whether a window with this many pixels inside the image includes padding that counts as zeros.
    #[inline(always)]
    pub fn includes_zeros(&self, pixels: usize) -> bool {
        self.pool.count_padding && pixels < self.pool.kernel[0] * self.pool.kernel[1]
    }
}

/// One row of the result.
pub(crate) struct PoolRow<'a> {
    pub geometry: PoolGeometry,
    pub image: &'a [f32],
    /// The row of the result.
    pub oy: usize,
    pub out: &'a mut [f32],
}

impl Kernel for PoolRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PoolRow { geometry, image, oy, out } = self;
        let [_, width, channels] = geometry.image;
        assert!(image.len() >= geometry.image_len(), "pooling: an image of the wrong length");
        for (ox, out) in out.chunks_exact_mut(channels).enumerate() {
            let [[top, bottom], [left, right]] = geometry.window(oy, ox);
            assert!(bottom <= geometry.image[0] && right <= width, "pooling: a window outside of the image");
            let pixels = (bottom - top) * (right - left);
            let window = PoolWindow {
                x: &image[(top * width + left) * channels..],
                rows: bottom - top,
                columns: right - left,
                row_stride: width * channels,
            };
            match geometry.pool.pooling {
                PoolMode::Max => window.max(s, geometry.includes_zeros(pixels).then_some(0.0), out),
                PoolMode::Mean => window.sum(s, geometry.mean_factor(pixels), out),
            }
        }
    }
}

/// The pixels of a window; all of them are inside the image.
struct PoolWindow<'a> {
    /// The image from the window's first pixel on.
    x: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl PoolWindow<'_> {
    /// The maximum of each channel, at least `bound` if there is one; NaN if one of the elements is.
    #[inline(always)]
    fn max<S: Simd>(&self, s: S, bound: Option<f32>, out: &mut [f32]) {
        let (x, channels) = (self.x.as_ptr(), out.len());
        let mut c = 0;
        while c < channels {
            let n = channels - c;
            let mut largest = s.splat(f32::NEG_INFINITY);
            // SAFETY: pixels of the window have `channels` elements, and so has `out`.
            unsafe {
                for row in 0..self.rows {
                    for column in 0..self.columns {
                        let v = s.load_up_to(x.add(row * self.row_stride + column * channels + c), n);
                        largest = s.max_or_nan(largest, v);
                    }
                }
                if let Some(bound) = bound {
                    largest = s.max(s.splat(bound), largest);
                }
                s.store_up_to(out.as_mut_ptr().add(c), largest, n);
            }
            c += S::LANES;
        }
    }

    /// The sum of each channel times `factor`.
    #[inline(always)]
    fn sum<S: Simd>(&self, s: S, factor: f32, out: &mut [f32]) {
        let (x, channels) = (self.x.as_ptr(), out.len());
        let mut c = 0;
        while c < channels {
            let n = channels - c;
            let mut sum = s.splat(0.0);
            // SAFETY: pixels of the window have `channels` elements, and so has `out`.
            unsafe {
                for row in 0..self.rows {
                    for column in 0..self.columns {
                        let v = s.load_up_to(x.add(row * self.row_stride + column * channels + c), n);
                        sum = s.add(sum, v);
                    }
                }
                s.store_up_to(out.as_mut_ptr().add(c), s.mul(sum, s.splat(factor)), n);
            }
            c += S::LANES;
        }
    }
}
