//! Operations on one row of elements that softmax, attention and norms have in common.

use super::Simd;
use super::math::exp2;

/// The maximum; unspecified for a row with NaN.
#[inline(always)]
pub(crate) fn max<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (x, n) = (x.as_ptr(), x.len());
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

/// Writes `exp(x - shift)` and returns the sum; `x - shift` must be at most 69, the range of [`exp2`].
#[inline(always)]
pub(crate) fn exp_sum<S: Simd>(s: S, x: &[f32], shift: f32, out: &mut [f32]) -> f32 {
    let n = x.len().min(out.len());
    let (x, out) = (x.as_ptr(), out.as_mut_ptr());
    let shift = s.splat(shift);
    let scale = s.splat(std::f32::consts::LOG2_E);
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
    s.sum(s.add(sum[0], sum[1]))
}

/// `x *= factor`
#[inline(always)]
pub(crate) fn scale<S: Simd>(s: S, x: &mut [f32], factor: f32) {
    let (x, n) = (x.as_mut_ptr(), x.len());
    let factor = s.splat(factor);
    let mut i = 0;
    // SAFETY: reads and writes stay below n.
    unsafe {
        while i + S::LANES <= n {
            s.store(x.add(i), s.mul(s.load(x.add(i)), factor));
            i += S::LANES;
        }
        if i < n {
            s.store_first(x.add(i), s.mul(s.load_first(x.add(i), n - i), factor), n - i);
        }
    }
}

/// `x += y`
#[inline(always)]
pub(crate) fn add<S: Simd>(s: S, x: &mut [f32], y: &[f32]) {
    let n = x.len().min(y.len());
    let (x, y) = (x.as_mut_ptr(), y.as_ptr());
    let mut i = 0;
    // SAFETY: reads and writes stay below n.
    unsafe {
        while i + S::LANES <= n {
            s.store(x.add(i), s.add(s.load(x.add(i)), s.load(y.add(i))));
            i += S::LANES;
        }
        if i < n {
            s.store_first(x.add(i), s.add(s.load_first(x.add(i), n - i), s.load_first(y.add(i), n - i)), n - i);
        }
    }
}

/// `x *= y`
#[inline(always)]
pub(crate) fn mul<S: Simd>(s: S, x: &mut [f32], y: &[f32]) {
    let n = x.len().min(y.len());
    let (x, y) = (x.as_mut_ptr(), y.as_ptr());
    let mut i = 0;
    // SAFETY: reads and writes stay below n.
    unsafe {
        while i + S::LANES <= n {
            s.store(x.add(i), s.mul(s.load(x.add(i)), s.load(y.add(i))));
            i += S::LANES;
        }
        if i < n {
            s.store_first(x.add(i), s.mul(s.load_first(x.add(i), n - i), s.load_first(y.add(i), n - i)), n - i);
        }
    }
}

/// `sum(x * y)`
#[inline(always)]
pub(crate) fn dot<S: Simd>(s: S, x: &[f32], y: &[f32]) -> f32 {
    let n = x.len().min(y.len());
    let (x, y) = (x.as_ptr(), y.as_ptr());
    let mut sum = s.splat(0.0);
    let mut i = 0;
    // SAFETY: reads stay below n.
    unsafe {
        while i + S::LANES <= n {
            sum = s.mul_add(s.load(x.add(i)), s.load(y.add(i)), sum);
            i += S::LANES;
        }
        if i < n {
            sum = s.mul_add(s.load_first(x.add(i), n - i), s.load_first(y.add(i), n - i), sum);
        }
    }
    s.sum(sum)
}

/// `out = x + y`
#[inline(always)]
pub(crate) fn add_into<S: Simd>(s: S, x: &[f32], y: &[f32], out: &mut [f32]) {
    let n = x.len().min(y.len()).min(out.len());
    let (x, y, out) = (x.as_ptr(), y.as_ptr(), out.as_mut_ptr());
    let mut i = 0;
    // SAFETY: reads and writes stay below n.
    unsafe {
        while i + S::LANES <= n {
            s.store(out.add(i), s.add(s.load(x.add(i)), s.load(y.add(i))));
            i += S::LANES;
        }
        if i < n {
            s.store_first(out.add(i), s.add(s.load_first(x.add(i), n - i), s.load_first(y.add(i), n - i)), n - i);
        }
    }
}

/// The mean of a row that is not empty. Four partial sums hide the latency of the additions.
#[inline(always)]
pub(crate) fn mean<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (x, n) = (x.as_ptr(), x.len());
    let mut sums = [s.splat(0.0); 4];
    let mut i = 0;
    // SAFETY: reads stay below n.
    unsafe {
        while i + 4 * S::LANES <= n {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = s.add(*sum, s.load(x.add(i + j * S::LANES)));
            }
            i += 4 * S::LANES;
        }
        while i < n {
            sums[0] = s.add(sums[0], s.load_up_to(x.add(i), n - i));
            i += S::LANES;
        }
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) / n as f32
}

/// The biased variance of a row that is not empty, given its mean.
#[inline(always)]
pub(crate) fn variance<S: Simd>(s: S, x: &[f32], mean: f32) -> f32 {
    let (x, n) = (x.as_ptr(), x.len());
    let mean = s.splat(mean);
    let mut sums = [s.splat(0.0); 4];
    let mut i = 0;
    // SAFETY: reads stay below n.
    unsafe {
        while i + 4 * S::LANES <= n {
            for (j, sum) in sums.iter_mut().enumerate() {
                let d = s.sub(s.load(x.add(i + j * S::LANES)), mean);
                *sum = s.mul_add(d, d, *sum);
            }
            i += 4 * S::LANES;
        }
        while i < n {
            let len = (n - i).min(S::LANES);
            let d = s.sub(s.load_up_to(x.add(i), len), mean);
            let d = s.first_or(d, len, s.splat(0.0));
            sums[0] = s.mul_add(d, d, sums[0]);
            i += S::LANES;
        }
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) / n as f32
}
