//! Depthwise convolution, vectorised along the channels. Taps on the padding are skipped.

use super::{ConvEpilogue, ConvGeometry};
use crate::activation::{ActivationFn, with_activation};
use crate::isa::Isa;
use crate::simd::{Kernel, Simd};
use crate::thread_pool::ThreadPool;
use vit_graph::ops::ResidualAt;

/// Pixels of a register tile, which share the loads of the filters.
const TILE_PIXELS: usize = 8;

/// Convolves on the threads of the pool; a task is a row of the result. `weight` is `[taps, channels]`.
///
/// # Panics
/// If a slice does not fit the geometry.
pub(crate) fn depthwise(
    pool: &ThreadPool,
    isa: Isa,
    g: &ConvGeometry,
    x: &[f32],
    weight: &[f32],
    epilogue: ConvEpilogue<'_>,
    y: &mut [f32],
) {
    let ([oh, ow], [h, w, c]) = (g.output, g.image);
    assert_eq!(x.len(), g.batch * h * w * c, "depthwise: image of the wrong length");
    assert_eq!(weight.len(), g.kernel[0] * g.kernel[1] * c, "depthwise: filters of the wrong length");
    assert_eq!(y.len(), g.batch * oh * ow * c, "depthwise: result of the wrong length");
    assert!(epilogue.bias.is_none_or(|b| b.len() == c), "depthwise: bias of the wrong length");
    assert!(epilogue.residual.is_none_or(|(_, r)| r.len() == y.len()), "depthwise: residual of the wrong length");
    pool.run_chunks(y, (ow * c).max(1), &|row, out| {
        let (image, oy) = (&x[row / oh * h * w * c..][..h * w * c], row % oh);
        let residual = epilogue.residual.map(|(at, r)| (at, &r[row * ow * c..][..ow * c]));
        let bias = epilogue.bias;
        with_activation!(epilogue.activation, f => {
            isa.dispatch(DepthwiseRow { geometry: g, image, weight, oy, bias, residual, out, f });
        });
    });
}

/// Row `oy` of the result of one image. `depthwise` has checked the lengths of the slices.
struct DepthwiseRow<'a, F> {
    geometry: &'a ConvGeometry,
    image: &'a [f32],
    /// `[taps, channels]`.
    weight: &'a [f32],
    oy: usize,
    bias: Option<&'a [f32]>,
    residual: Option<(ResidualAt, &'a [f32])>,
    out: &'a mut [f32],
    f: F,
}

impl<F: ActivationFn> Kernel for DepthwiseRow<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let g = self.geometry;
        let ow = g.output[1];
        let (stride, [left, _]) = (g.stride[1], g.padding[1]);
        let kernel_span = (g.kernel[1] - 1) * g.dilation[1];
        let mut x = 0;
        while x < ow {
            // A full tile must not read padding on the left or on the right.
            let inside = x * stride >= left && (x + TILE_PIXELS - 1) * stride + kernel_span < left + g.image[1];
            if inside && x + TILE_PIXELS <= ow {
                self.tile::<S, TILE_PIXELS>(s, x);
                x += TILE_PIXELS;
            } else {
                self.tile::<S, 1>(s, x);
                x += 1;
            }
        }
    }
}

impl<F: ActivationFn> DepthwiseRow<'_, F> {
    /// Computes `N` pixels from column `x` on.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn tile<S: Simd, const N: usize>(&mut self, s: S, x: usize) {
        let Self { geometry: g, oy, bias, residual, .. } = *self;
        let (image, weight, out) = (self.image.as_ptr(), self.weight.as_ptr(), self.out.as_mut_ptr());
        let ([h, w, channels], [kh, kw]) = (g.image, g.kernel);
        let [vertical, horizontal] =
            [(oy * g.stride[0], 0, h), (x * g.stride[1], 1, w)].map(|(start, axis, extent)| {
                // The range of taps inside the image.
                let (dilation, before) = (g.dilation[axis], g.padding[axis][0]);
                let first = before.saturating_sub(start).div_ceil(dilation);
                let end = (extent + before).saturating_sub(start).div_ceil(dilation);
                (first, end)
            });
        let (top, bottom) = (vertical.0.min(kh), vertical.1.min(kh));
        // `run` computes several pixels at once only where all taps of a row are inside.
        let (left, right) = if N > 1 { (0, kw) } else { (horizontal.0.min(kw), horizontal.1.min(kw)) };
        let step = g.stride[1] * channels;
        let mut c = 0;
        while c < channels {
            let n = channels - c;
            // SAFETY: taps are limited to the image, pixels to the row, and every pixel has n more channels from c on.
            unsafe {
                let bias = match bias {
                    Some(bias) => s.load_up_to(bias.as_ptr().add(c), n),
                    None => s.splat(0.0),
                };
                let mut sums = [bias; N];
                for ky in top..bottom {
                    let iy = oy * g.stride[0] + ky * g.dilation[0] - g.padding[0][0];
                    for kx in left..right {
                        let filter = s.load_up_to(weight.add((ky * kw + kx) * channels + c), n);
                        let ix = x * g.stride[1] + kx * g.dilation[1] - g.padding[1][0];
                        let from = image.add((iy * w + ix) * channels + c);
                        for i in 0..N {
                            sums[i] = s.mul_add(s.load_up_to(from.add(i * step), n), filter, sums[i]);
                        }
                    }
                }
                for i in 0..N {
                    let offset = (x + i) * channels + c;
                    let v = match residual {
                        Some((ResidualAt::BeforeActivation, r)) => {
                            self.f.value(s, s.add(sums[i], s.load_up_to(r.as_ptr().add(offset), n)))
                        }
                        Some((ResidualAt::AfterActivation, r)) => {
                            s.add(self.f.value(s, sums[i]), s.load_up_to(r.as_ptr().add(offset), n))
                        }
                        None => self.f.value(s, sums[i]),
                    };
                    s.store_up_to(out.add(offset), v, n);
                }
            }
            c += S::LANES;
        }
    }
}
