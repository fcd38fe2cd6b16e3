//! Pooling and its gradient.

use vit_graph::Type;
use vit_graph::ops::{Pool2d, PoolMode};

use super::Lowered;
use crate::pool2d::{PoolWindow, WindowReduction};

#[derive(Clone, Copy)]
struct PoolGeometry {
    pool: Pool2d,
    /// Height, width and channels of the image.
    image: [usize; 3],
    /// Height and width of the result.
    output: [usize; 2],
}

impl PoolGeometry {
    fn new(pool: &Pool2d, x: &Type, y: &Type) -> Self {
        let (x, y) = (&x.shape, &y.shape);
        PoolGeometry { pool: *pool, image: [x[1], x[2], x[3]], output: [y[1], y[2]] }
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    fn output_len(&self) -> usize {
        self.output[0] * self.output[1] * self.image[2]
    }

    /// The rows and columns of the image that a window covers, without its padding.
    fn window(&self, oy: usize, ox: usize) -> [[usize; 2]; 2] {
        [self.pool.window(0, oy, self.image[0]), self.pool.window(1, ox, self.image[1])]
    }

    /// The factor that turns a sum over this many pixels into the mean.
    fn mean_factor(&self, pixels: usize) -> f32 {
        let [kh, kw] = self.pool.kernel;
        1.0 / if self.pool.count_padding { kh * kw } else { pixels } as f32
    }

    /// Whether the window includes padding that counts as zeros.
    fn includes_zeros(&self, pixels: usize) -> bool {
        self.pool.count_padding && pixels < self.pool.kernel[0] * self.pool.kernel[1]
    }
}

pub(super) fn forward(op: &Pool2d, x: &Type, y: &Type) -> Lowered {
    let geometry = PoolGeometry::new(op, x, y);
    let ([_, width, channels], [height, columns]) = (geometry.image, geometry.output);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], (columns * channels).max(1), &|line, out| {
            let image = &inputs[0][line / height * geometry.image_len()..][..geometry.image_len()];
            for (ox, out) in out.chunks_exact_mut(channels).enumerate() {
                let [[top, bottom], [left, right]] = geometry.window(line % height, ox);
                let pixels = (bottom - top) * (right - left);
                let reduction = match geometry.pool.pooling {
                    PoolMode::Max => WindowReduction::Max(geometry.includes_zeros(pixels).then_some(0.0)),
                    PoolMode::Mean => WindowReduction::Sum(geometry.mean_factor(pixels)),
                };
                let x = &image[(top * width + left) * channels..];
                let (rows, columns, row_stride) = (bottom - top, right - left, width * channels);
                p.isa.dispatch(PoolWindow { x, rows, columns, row_stride, out, reduction });
            }
        });
    })
}

/// One task per image: windows overlap, and the order in which a pixel's gradients are added must not depend on threads.
pub(super) fn backward(op: &Pool2d, dy: &Type, x: &Type) -> Lowered {
    let geometry = PoolGeometry::new(op, x, dy);
    let ([_, width, channels], [_, columns]) = (geometry.image, geometry.output);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], geometry.image_len().max(1), &|b, dx| {
            dx.fill(0.0);
            let dy = &inputs[0][b * geometry.output_len()..][..geometry.output_len()];
            let x = &inputs[1][b * geometry.image_len()..][..geometry.image_len()];
            for (at, dy) in dy.chunks_exact(channels).enumerate() {
                let [[top, bottom], [left, right]] = geometry.window(at / columns, at % columns);
                let pixels = (bottom - top) * (right - left);
                let offsets = || (top..bottom).flat_map(|y| (left..right).map(move |x| (y * width + x) * channels));
                match geometry.pool.pooling {
                    PoolMode::Mean => {
                        let factor = geometry.mean_factor(pixels);
                        for offset in offsets() {
                            dx[offset..][..channels].iter_mut().zip(dy).for_each(|(dx, dy)| *dx += factor * dy);
                        }
                    }
                    PoolMode::Max => {
                        for (c, dy) in dy.iter().enumerate() {
                            let largest = offsets().reduce(|largest, offset| {
                                let x = |offset: usize| x[offset + c];
                                if x(offset) > x(largest) || x(offset).is_nan() { offset } else { largest }
                            });
                            // A zero of the padding takes the gradient of a window whose pixels are all negative.
                            let largest =
                                largest.filter(|&largest| !(geometry.includes_zeros(pixels) && x[largest + c] < 0.0));
                            largest.into_iter().for_each(|largest| dx[largest + c] += dy);
                        }
                    }
                }
            }
        });
    })
}
