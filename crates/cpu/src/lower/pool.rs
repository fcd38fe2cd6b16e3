//! Pooling and its gradient.

use vit_graph::Type;
use vit_graph::ops::{Pool2d, PoolMode};

use super::Lowered;
use crate::pool2d::{Combine, PoolWindow};

/// Everything about one pooling that its shapes tell.
#[derive(Clone, Copy)]
struct Plan {
    pool: Pool2d,
    /// Height, width and channels of the image.
    image: [usize; 3],
    /// Height and width of the result.
    output: [usize; 2],
}

impl Plan {
    fn new(pool: &Pool2d, x: &Type, y: &Type) -> Self {
        let (x, y) = (&x.shape, &y.shape);
        Plan { pool: *pool, image: [x[1], x[2], x[3]], output: [y[1], y[2]] }
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    fn output_len(&self) -> usize {
        self.output[0] * self.output[1] * self.image[2]
    }

    /// The pixels of a window that are in the image: rows and columns.
    fn window(&self, oy: usize, ox: usize) -> [[usize; 2]; 2] {
        [self.pool.window(0, oy, self.image[0]), self.pool.window(1, ox, self.image[1])]
    }

    /// What a sum over this many pixels is multiplied with to be the mean.
    fn share(&self, pixels: usize) -> f32 {
        let [kh, kw] = self.pool.kernel;
        1.0 / if self.pool.count_padding { kh * kw } else { pixels } as f32
    }

    /// Whether the window reaches into padding that counts.
    fn sees_zeros(&self, pixels: usize) -> bool {
        self.pool.count_padding && pixels < self.pool.kernel[0] * self.pool.kernel[1]
    }
}

pub(super) fn forward(op: &Pool2d, x: &Type, y: &Type) -> Lowered {
    let plan = Plan::new(op, x, y);
    let ([_, width, channels], [height, columns]) = (plan.image, plan.output);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], (columns * channels).max(1), &|line, out| {
            let image = &inputs[0][line / height * plan.image_len()..][..plan.image_len()];
            for (ox, out) in out.chunks_exact_mut(channels).enumerate() {
                let [[top, bottom], [left, right]] = plan.window(line % height, ox);
                let pixels = (bottom - top) * (right - left);
                let how = match plan.pool.pooling {
                    PoolMode::Max => Combine::Max(plan.sees_zeros(pixels).then_some(0.0)),
                    PoolMode::Mean => Combine::Sum(plan.share(pixels)),
                };
                let x = image[(top * width + left) * channels..].as_ptr();
                let (rows, columns, row_stride) = (bottom - top, right - left, width * channels);
                p.isa.dispatch(PoolWindow { x, rows, columns, row_stride, channels, out: out.as_mut_ptr(), how });
            }
        });
    })
}

/// Images are tasks: windows overlap, and a pixel's sum must not depend on which thread comes first.
pub(super) fn backward(op: &Pool2d, dy: &Type, x: &Type) -> Lowered {
    let plan = Plan::new(op, x, dy);
    let ([_, width, channels], [_, columns]) = (plan.image, plan.output);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], plan.image_len().max(1), &|b, dx| {
            dx.fill(0.0);
            let dy = &inputs[0][b * plan.output_len()..][..plan.output_len()];
            let x = &inputs[1][b * plan.image_len()..][..plan.image_len()];
            for (at, dy) in dy.chunks_exact(channels).enumerate() {
                let [[top, bottom], [left, right]] = plan.window(at / columns, at % columns);
                let pixels = (bottom - top) * (right - left);
                let places = || (top..bottom).flat_map(|y| (left..right).map(move |x| (y * width + x) * channels));
                match plan.pool.pooling {
                    PoolMode::Mean => {
                        let share = plan.share(pixels);
                        for place in places() {
                            dx[place..][..channels].iter_mut().zip(dy).for_each(|(dx, dy)| *dx += share * dy);
                        }
                    }
                    PoolMode::Max => {
                        for (c, dy) in dy.iter().enumerate() {
                            let best = places().reduce(|best, place| {
                                if x[place + c] > x[best + c] || x[place + c].is_nan() { place } else { best }
                            });
                            let best = best.filter(|&best| !(plan.sees_zeros(pixels) && x[best + c] < 0.0));
                            best.into_iter().for_each(|best| dx[best + c] += dy);
                        }
                    }
                }
            }
        });
    })
}
