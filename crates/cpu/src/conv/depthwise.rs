//! Depthwise convolution: every channel has a filter of its own, so channels are what vectors run along, and nothing is
//! multiplied with the border.

use super::{Epilogue, Geometry};
use crate::activation::{ActivationFn, with_activation};
use crate::isa::Isa;
use crate::pool::Pool;
use crate::simd::{Kernel, Simd};
use vit_graph::ops::ResidualAt;

/// Neighbouring results that are computed together, so that a filter is loaded once for all of them.
const TOGETHER: usize = 8;

/// One row of the result.
///
/// Making one is a promise: image and filters are as long as the geometry says, `out`, bias and residual have a row.
struct Depthwise<'a> {
    geometry: &'a Geometry,
    image: *const f32,
    /// `[taps, channels]`.
    weight: *const f32,
    /// Which row.
    row: usize,
    bias: Option<*const f32>,
    residual: Option<(ResidualAt, *const f32)>,
    out: *mut f32,
}

/// Convolves on the threads of the pool; a task is a row of the result.
///
/// # Panics
/// If a slice does not fit the geometry.
pub(crate) fn depthwise(
    pool: &Pool,
    isa: Isa,
    g: &Geometry,
    x: &[f32],
    weight: &[f32],
    epilogue: Epilogue<'_>,
    y: &mut [f32],
) {
    let ([oh, ow], [h, w, c]) = (g.output, g.image);
    assert_eq!(x.len(), g.batch * h * w * c, "depthwise: image of the wrong length");
    assert_eq!(weight.len(), g.kernel[0] * g.kernel[1] * c, "depthwise: filters of the wrong length");
    assert_eq!(y.len(), g.batch * oh * ow * c, "depthwise: result of the wrong length");
    assert!(epilogue.bias.is_none_or(|b| b.len() == c), "depthwise: bias of the wrong length");
    assert!(epilogue.residual.is_none_or(|(_, r)| r.len() == y.len()), "depthwise: residual of the wrong length");
    pool.run_chunks(y, (ow * c).max(1), &|line, out| {
        let row = Depthwise {
            geometry: g,
            image: x[line / oh * h * w * c..].as_ptr(),
            weight: weight.as_ptr(),
            row: line % oh,
            bias: epilogue.bias.map(<[f32]>::as_ptr),
            residual: epilogue.residual.map(|(at, r)| (at, r[line * ow * c..].as_ptr())),
            out: out.as_mut_ptr(),
        };
        with_activation!(epilogue.activation, f => isa.dispatch(Row { row, f }));
    });
}

struct Row<'a, F> {
    row: Depthwise<'a>,
    f: F,
}

impl<F: ActivationFn> Kernel for Row<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let g = self.row.geometry;
        let ow = g.output[1];
        let (stride, [left, _]) = (g.stride[1], g.padding[1]);
        let reach = (g.kernel[1] - 1) * g.dilation[1];
        let mut x = 0;
        while x < ow {
            // Neighbours whose filters all stay inside go together.
            let inside = x * stride >= left && (x + TOGETHER - 1) * stride + reach < left + g.image[1];
            if inside && x + TOGETHER <= ow {
                self.results::<S, TOGETHER>(s, x);
                x += TOGETHER;
            } else {
                self.results::<S, 1>(s, x);
                x += 1;
            }
        }
    }
}

impl<F: ActivationFn> Row<'_, F> {
    /// `N` results from column `x` on.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn results<S: Simd, const N: usize>(&self, s: S, x: usize) {
        let Depthwise { geometry: g, image, weight, row, bias, residual, out } = &self.row;
        let ([h, w, channels], [kh, kw]) = (g.image, g.kernel);
        let [vertical, horizontal] = [(row * g.stride[0], 0, h), (x * g.stride[1], 1, w)].map(|(at, axis, extent)| {
            // Taps that are inside the image: the first, and the one after the last.
            let (dilation, before) = (g.dilation[axis], g.padding[axis][0]);
            let first = before.saturating_sub(at).div_ceil(dilation);
            let end = (extent + before).saturating_sub(at).div_ceil(dilation);
            (first, end)
        });
        let (top, bottom) = (vertical.0.min(kh), vertical.1.min(kh));
        let (left, right) = if N > 1 { (0, kw) } else { (horizontal.0.min(kw), horizontal.1.min(kw)) };
        let step = g.stride[1] * channels;
        let mut c = 0;
        while c < channels {
            let n = channels - c;
            // SAFETY: taps were limited to the image; rows of channels have n more numbers from c on.
            unsafe {
                let bias = match bias {
                    Some(bias) => s.load_up_to(bias.add(c), n),
                    None => s.splat(0.0),
                };
                let mut sums = [bias; N];
                for ky in top..bottom {
                    let y = row * g.stride[0] + ky * g.dilation[0] - g.padding[0][0];
                    for kx in left..right {
                        let filter = s.load_up_to(weight.add((ky * kw + kx) * channels + c), n);
                        let first = x * g.stride[1] + kx * g.dilation[1] - g.padding[1][0];
                        let from = image.add((y * w + first) * channels + c);
                        for i in 0..N {
                            sums[i] = s.mul_add(s.load_up_to(from.add(i * step), n), filter, sums[i]);
                        }
                    }
                }
                for i in 0..N {
                    let at = (x + i) * channels + c;
                    let v = match residual {
                        Some((ResidualAt::BeforeActivation, r)) => {
                            self.f.value(s, s.add(sums[i], s.load_up_to(r.add(at), n)))
                        }
                        Some((ResidualAt::AfterActivation, r)) => {
                            s.add(self.f.value(s, sums[i]), s.load_up_to(r.add(at), n))
                        }
                        None => self.f.value(s, sums[i]),
                    };
                    s.store_up_to(out.add(at), v, n);
                }
            }
            c += S::LANES;
        }
    }
}
