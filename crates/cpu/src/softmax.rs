//! Softmax over the last axis and its gradient.
//! A row that holds only minus infinity, or a NaN, becomes NaN, as the definition says.

use crate::isa::Isa;
use crate::pool::Pool;
use crate::simd::math::exp2;
use crate::simd::{Kernel, Simd};

/// Softmax of each of `rows` rows of `dim` numbers.
///
/// # Panics
/// If a length does not fit the shape.
pub fn softmax(pool: &Pool, isa: Isa, x: &[f32], rows: usize, dim: usize, out: &mut [f32]) {
    assert_eq!(x.len(), rows * dim, "softmax: input of the wrong length");
    assert_eq!(out.len(), rows * dim, "softmax: output of the wrong length");
    if dim == 0 {
        return;
    }
    let chunk = chunk(dim);
    pool.run_chunks(out, chunk, &|i, out| {
        let x = &x[i * chunk..][..out.len()];
        isa.dispatch(Forward { x, dim, out });
    });
}

/// `dx = y * (dy - sum(y * dy))` of each row, from the output `y` of [`softmax`].
///
/// # Panics
/// If a length does not fit the shape.
pub fn softmax_grad(pool: &Pool, isa: Isa, y: &[f32], dy: &[f32], rows: usize, dim: usize, dx: &mut [f32]) {
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
        isa.dispatch(Backward { y, dy, dim, dx });
    });
}

fn chunk(dim: usize) -> usize {
    (16 * 1024 / dim).max(1) * dim
}

struct Forward<'a> {
    x: &'a [f32],
    dim: usize,
    out: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, out) in self.x.chunks_exact(self.dim).zip(self.out.chunks_exact_mut(self.dim)) {
            // SAFETY: both rows have `dim` numbers.
            unsafe {
                let largest = row_max(s, x.as_ptr(), self.dim);
                let sum = row_exp(s, x.as_ptr(), self.dim, largest, 1.0, out.as_mut_ptr());
                row_scale(s, out.as_mut_ptr(), self.dim, 1.0 / sum);
            }
        }
    }
}

/// The largest of a row; what it says of a row with NaN is not defined.
///
/// # Safety
/// `n` numbers at `x` must be readable.
#[inline(always)]
pub(crate) unsafe fn row_max<S: Simd>(s: S, x: *const f32, n: usize) -> f32 {
    let lowest = s.splat(f32::NEG_INFINITY);
    let mut largest = [lowest; 2];
    let mut i = 0;
    // SAFETY: reads stay below n.
    unsafe {
        while i + 2 * S::LANES <= n {
            largest[0] = s.max(largest[0], s.load(x.add(i)));
            largest[1] = s.max(largest[1], s.load(x.add(i + S::LANES)));
            i += 2 * S::LANES;
        }
        while i < n {
            let len = (n - i).min(S::LANES);
            let v = s.first_or(s.load_up_to(x.add(i), len), len, lowest);
            largest[0] = s.max(largest[0], v);
            i += S::LANES;
        }
    }
    s.largest(s.max(largest[0], largest[1]))
}

/// Writes `exp((x - shift) * scale)`, which must not be large, and returns the sum.
///
/// # Safety
/// `n` numbers at `x` must be readable and at `out` writable; they may be the same.
#[inline(always)]
unsafe fn row_exp<S: Simd>(s: S, x: *const f32, n: usize, shift: f32, scale: f32, out: *mut f32) -> f32 {
    // SAFETY: the caller vouches for the rows.
    s.sum(unsafe { row_exp_lanes(s, x, n, shift, scale, out) })
}

/// [`row_exp`] with the sum still in parts, one in each lane.
///
/// # Safety
/// As for [`row_exp`].
#[inline(always)]
pub(crate) unsafe fn row_exp_lanes<S: Simd>(
    s: S,
    x: *const f32,
    n: usize,
    shift: f32,
    scale: f32,
    out: *mut f32,
) -> S::V {
    let shift = s.splat(shift);
    let scale = s.splat(scale * std::f32::consts::LOG2_E);
    let mut sum = [s.splat(0.0); 2];
    let mut i = 0;
    // SAFETY: reads and writes stay below n.
    unsafe {
        while i + 2 * S::LANES <= n {
            let a = exp2(s, s.mul(s.sub(s.load(x.add(i)), shift), scale));
            let b = exp2(s, s.mul(s.sub(s.load(x.add(i + S::LANES)), shift), scale));
            s.store(out.add(i), a);
            s.store(out.add(i + S::LANES), b);
            sum[0] = s.add(sum[0], a);
            sum[1] = s.add(sum[1], b);
            i += 2 * S::LANES;
        }
        while i < n {
            let len = (n - i).min(S::LANES);
            let v = exp2(s, s.mul(s.sub(s.load_up_to(x.add(i), len), shift), scale));
            s.store_up_to(out.add(i), v, len);
            sum[0] = s.add(sum[0], s.first_or(v, len, s.splat(0.0)));
            i += S::LANES;
        }
    }
    s.add(sum[0], sum[1])
}

/// Multiplies a row in place.
///
/// # Safety
/// `n` numbers at `x` must be readable and writable.
#[inline(always)]
pub(crate) unsafe fn row_scale<S: Simd>(s: S, x: *mut f32, n: usize, factor: f32) {
    let factor = s.splat(factor);
    let mut i = 0;
    while i < n {
        // SAFETY: reads and writes stay below n.
        unsafe {
            let v = s.mul(s.load_up_to(x.add(i), n - i), factor);
            s.store_up_to(x.add(i), v, n - i);
        }
        i += S::LANES;
    }
}

/// `sum(x * y)`.
///
/// # Safety
/// `n` numbers at `x` and `y` must be readable.
#[inline(always)]
pub(crate) unsafe fn row_dot<S: Simd>(s: S, x: *const f32, y: *const f32, n: usize) -> f32 {
    let mut sum = s.splat(0.0);
    let mut i = 0;
    while i < n {
        // SAFETY: reads stay below n.
        unsafe {
            let x = s.load_up_to(x.add(i), n - i);
            sum = s.mul_add(x, s.load_up_to(y.add(i), n - i), sum);
        }
        i += S::LANES;
    }
    s.sum(sum)
}

struct Backward<'a> {
    y: &'a [f32],
    dy: &'a [f32],
    dim: usize,
    dx: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.dim;
        for (row, dx) in self.dx.chunks_exact_mut(n).enumerate() {
            let y = self.y[row * n..][..n].as_ptr();
            let dy = self.dy[row * n..][..n].as_ptr();
            let dx = dx.as_mut_ptr();
            // SAFETY: the rows have n numbers.
            unsafe {
                let sum = s.splat(row_dot(s, y, dy, n));
                let mut i = 0;
                while i < n {
                    let d = s.sub(s.load_up_to(dy.add(i), n - i), sum);
                    let v = s.mul(d, s.load_up_to(y.add(i), n - i));
                    s.store_up_to(dx.add(i), v, n - i);
                    i += S::LANES;
                }
            }
        }
    }
}
