//! Pooling and its gradient.

use vit_graph::Type;
use vit_graph::ops::{Pool2d, PoolMode};

use super::Lowered;
use crate::pooling::{PoolGeometry, PoolRow};

fn geometry(pool: &Pool2d, x: &Type, y: &Type) -> PoolGeometry {
    let (x, y) = (&x.shape, &y.shape);
    PoolGeometry { pool: *pool, image: [x[1], x[2], x[3]], output: [y[1], y[2]] }
}

/// One task per row of the result.
pub(super) fn forward(op: &Pool2d, x: &Type, y: &Type) -> Lowered {
    let geometry = geometry(op, x, y);
    let ([_, _, channels], [height, columns]) = (geometry.image, geometry.output);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], (columns * channels).max(1), &|row, out| {
            let image = &inputs[0][row / height * geometry.image_len()..][..geometry.image_len()];
            p.isa.dispatch(PoolRow { geometry, image, oy: row % height, out });
        });
    })
}

/// One task per image: windows overlap, and the order in which a pixel's gradients are added must not depend on
/// threads.
pub(super) fn backward(op: &Pool2d, dy: &Type, x: &Type) -> Lowered {
    let geometry = geometry(op, x, dy);
    let ([_, width, channels], [_, columns]) = (geometry.image, geometry.output);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], geometry.image_len().max(1), &|b, dx| {
            dx.fill(0.0);
            let dy = &inputs[0][b * geometry.output_len()..][..geometry.output_len()];
            let x = &inputs[1][b * geometry.image_len()..][..geometry.image_len()];
            for (pixel, dy) in dy.chunks_exact(channels).enumerate() {
                let [[top, bottom], [left, right]] = geometry.window(pixel / columns, pixel % columns);
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
                            // Padding that counts is zeros, not -∞: over a negative maximum a zero wins, and no pixel gets
                            // the gradient.
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
