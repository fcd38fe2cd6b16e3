//! Softmax over the last axis and its gradient.
//! A row with a NaN, a +inf, or nothing but -inf becomes NaN, as in PyTorch.

use crate::isa::Isa;
use crate::simd::{Kernel, Simd, row};
use crate::thread_pool::ThreadPool;

/// Softmax of each of `rows` rows of `dim` elements.
///
/// # Panics
/// If a length does not fit the shape.
pub fn softmax(pool: &ThreadPool, isa: Isa, x: &[f32], rows: usize, dim: usize, out: &mut [f32]) {
    assert_eq!(x.len(), rows * dim, "softmax: input of the wrong length");
    assert_eq!(out.len(), rows * dim, "softmax: output of the wrong length");
    if dim == 0 {
        return;
    }
    let chunk = chunk(dim);
    pool.run_chunks(out, chunk, &|i, out| {
        let x = &x[i * chunk..][..out.len()];
        isa.dispatch(SoftmaxRows { x, dim, out });
    });
}

/// `dx = y * (dy - sum(y * dy))` of each row, from the output `y` of [`softmax`].
///
/// # Panics
/// If a length does not fit the shape.
pub fn softmax_grad(pool: &ThreadPool, isa: Isa, y: &[f32], dy: &[f32], rows: usize, dim: usize, dx: &mut [f32]) {
    assert_eq!(y.len(), rows * dim, "softmax gradient: y of the wrong length");
    assert_eq!(dy.len(), rows * dim, "softmax gradient: dy of the wrong length");
    assert_eq!(dx.len(), rows * dim, "softmax gradient: dx of the wrong length");
    if dim == 0 {
        return;
    }
    let chunk = chunk(dim);
    pool.run_chunks(dx, chunk, &|i, dx| {
        let y = &y[i * chunk..][..dx.len()];
        let dy = &dy[i * chunk..][..dx.len()];
        isa.dispatch(SoftmaxGradRows { y, dy, dim, dx });
    });
}

/// Elements of one task, in whole rows: about 64 KiB, so that a task outweighs its scheduling and the row that one pass
/// has read or written is in the cache for the next.
fn chunk(dim: usize) -> usize {
    const TASK_ELEMENTS: usize = 16 * 1024;
    (TASK_ELEMENTS / dim).max(1) * dim
}

struct SoftmaxRows<'a> {
    x: &'a [f32],
    dim: usize,
    out: &'a mut [f32],
}

impl Kernel for SoftmaxRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.chunks_exact(self.dim).zip(self.out.chunks_exact_mut(self.dim)) {
            let sum = row::exp_sum(s, x, row::max(s, x), out);
            row::scale(s, out, 1.0 / sum);
        }
    }
}

struct SoftmaxGradRows<'a> {
    y: &'a [f32],
    dy: &'a [f32],
    dim: usize,
    dx: &'a mut [f32],
}

impl Kernel for SoftmaxGradRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.dim;
        let rows = self.y.chunks_exact(n).zip(self.dy.chunks_exact(n)).zip(self.dx.chunks_exact_mut(n));
        for ((y, dy), dx) in rows {
            let sum = s.splat(row::dot(s, y, dy));
            let (y, dy, dx) = (y.as_ptr(), dy.as_ptr(), dx.as_mut_ptr());
            let mut i = 0;
            // SAFETY: `y`, `dy` and `dx` are rows of n elements; vectors end at or before n, and the remainder is
            // masked.
            unsafe {
                while i + S::LANES <= n {
                    s.store(dx.add(i), s.mul(s.sub(s.load(dy.add(i)), sum), s.load(y.add(i))));
                    i += S::LANES;
                }
                if i < n {
                    let d = s.sub(s.load_first(dy.add(i), n - i), sum);
                    s.store_first(dx.add(i), s.mul(d, s.load_first(y.add(i), n - i)), n - i);
                }
            }
        }
    }
}
