//! The gradients of depthwise convolution, vectorised along the channels.
//!
//! Images are channels-last: `x` and `dx` are `[batch, height, width, channels]`, `dy` is `[batch, output height,
//! output width, channels]`. A model's filters are `[channels, taps]`; the kernels read and sum them as `[taps,
//! channels]`.
//!
//! [`AddProduct`] is dispatched for every pixel and tap: the checks of the instruction set are well-predicted branches,
//! which cost little beside the products of all channels.

use super::ConvGeometry;
use crate::isa::Isa;
use crate::simd::{Kernel, Simd};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// The gradient `dx` of the image from `dy` and the filters `weight`. The workspace is as long as the filters and
/// receives them transposed. A task is one row of one image.
///
/// # Panics
/// If a slice does not fit the geometry.
pub(crate) fn depthwise_grad_input(
    pool: &ThreadPool,
    isa: Isa,
    g: &ConvGeometry,
    dy: &[f32],
    weight: &[f32],
    dx: &mut [f32],
    workspace: &mut [f32],
) {
    let ([oh, ow], [h, w, c]) = (g.output, g.image);
    let taps = g.kernel[0] * g.kernel[1];
    assert_eq!(dy.len(), g.batch * oh * ow * c, "depthwise: gradient of the wrong length");
    assert_eq!(dx.len(), g.batch * h * w * c, "depthwise: image of the wrong length");
    assert_eq!(weight.len(), taps * c, "depthwise: filters of the wrong length");
    let filters = &mut workspace[..taps * c];
    for (tap, filter) in filters.chunks_exact_mut(c).enumerate() {
        filter.iter_mut().enumerate().for_each(|(channel, to)| *to = weight[channel * taps + tap]);
    }
    let filters = &*filters;
    pool.run_chunks(dx, (w * c).max(1), &|row, dx| {
        dx.fill(0.0);
        let (image, iy) = (row / h, row % h);
        let dy = &dy[image * oh * ow * c..][..oh * ow * c];
        for ky in 0..g.kernel[0] {
            let Some(oy) = g.output_at(0, iy, ky) else { continue };
            for ix in 0..w {
                let out = &mut dx[ix * c..][..c];
                for kx in 0..g.kernel[1] {
                    let Some(ox) = g.output_at(1, ix, kx) else { continue };
                    let dy = &dy[(oy * ow + ox) * c..][..c];
                    isa.dispatch(AddProduct { a: dy, b: &filters[(ky * g.kernel[1] + kx) * c..][..c], out });
                }
            }
        }
    });
}

/// The most chunks: each has a partial gradient in the workspace, and a single thread sums them.
const MAX_CHUNKS: usize = 32;
/// The fewest rows of `dy` that are worth a task and a partial gradient.
const MIN_CHUNK_ROWS: usize = 4;

/// The number of chunks of the rows of `dy`, and the rows of a chunk. The shape alone decides them, and with them the
/// order of summation.
fn chunks(g: &ConvGeometry) -> (usize, usize) {
    let rows = g.batch * g.output[0];
    let per_chunk = rows.div_ceil(MAX_CHUNKS).max(MIN_CHUNK_ROWS);
    (rows.div_ceil(per_chunk), per_chunk)
}

/// Elements of workspace that [`depthwise_grad_weight`] needs: a partial gradient `[taps, channels]` of each chunk.
pub(crate) fn depthwise_grad_weight_workspace(g: &ConvGeometry) -> usize {
    chunks(g).0 * g.kernel[0] * g.kernel[1] * g.image[2]
}

/// The gradient `dw` of the filters, `[channels, taps]`, from `dy` and the image `x`. A task is a chunk of the rows of
/// `dy`.
///
/// # Panics
/// If a slice does not fit the geometry.
pub(crate) fn depthwise_grad_weight(
    pool: &ThreadPool,
    isa: Isa,
    g: &ConvGeometry,
    dy: &[f32],
    x: &[f32],
    dw: &mut [f32],
    workspace: &mut [f32],
) {
    let ([oh, ow], [h, w, c], [kh, kw]) = (g.output, g.image, g.kernel);
    let taps = kh * kw;
    assert_eq!(dy.len(), g.batch * oh * ow * c, "depthwise: gradient of the wrong length");
    assert_eq!(x.len(), g.batch * h * w * c, "depthwise: image of the wrong length");
    assert_eq!(dw.len(), taps * c, "depthwise: filters of the wrong length");
    let (count, per_chunk) = chunks(g);
    let partial = &mut workspace[..count * taps * c];
    let sums = DisjointMut::new(partial);
    pool.run(count, &|chunk| {
        // SAFETY: every chunk has its `taps * c` sums, and one task.
        let sums = unsafe { sums.slice(chunk * taps * c, taps * c) };
        sums.fill(0.0);
        for row in chunk * per_chunk..((chunk + 1) * per_chunk).min(g.batch * oh) {
            let (image, oy) = (row / oh, row % oh);
            for ky in 0..kh {
                let Some(iy) = g.input_at(0, oy, ky) else { continue };
                for kx in 0..kw {
                    let sums = &mut sums[(ky * kw + kx) * c..][..c];
                    for ox in 0..ow {
                        let Some(ix) = g.input_at(1, ox, kx) else { continue };
                        let dy = &dy[(row * ow + ox) * c..][..c];
                        let x = &x[((image * h + iy) * w + ix) * c..][..c];
                        isa.dispatch(AddProduct { a: dy, b: x, out: sums });
                    }
                }
            }
        }
    });
    for (channel, dw) in dw.chunks_exact_mut(taps).enumerate() {
        for (tap, dw) in dw.iter_mut().enumerate() {
            *dw = (0..count).map(|chunk| partial[(chunk * taps + tap) * c + channel]).sum();
        }
    }
}

/// `out += a * b`, element by element.
struct AddProduct<'a> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for AddProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.len().min(self.a.len()).min(self.b.len());
        let (a, b, out) = (self.a.as_ptr(), self.b.as_ptr(), self.out.as_mut_ptr());
        let mut i = 0;
        while i < n {
            // SAFETY: all three slices have at least n elements, and accesses end at n.
            unsafe {
                let (x, y) = (s.load_up_to(a.add(i), n - i), s.load_up_to(b.add(i), n - i));
                s.store_up_to(out.add(i), s.mul_add(x, y, s.load_up_to(out.add(i), n - i)), n - i);
            }
            i += S::LANES;
        }
    }
}
