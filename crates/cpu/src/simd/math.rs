//! The transcendental functions of activations and softmax, on vectors.
//! NaN gives NaN. Errors are a few units in the last place, except that GELU of a negative argument and the derivative
//! of GELU have small absolute errors: about 5e-8 and 1.4e-7 at most, rounding included.

use super::Simd;
use super::gelu_tables::{DERIVATIVE_AT_MINUS_T, END, HALVES, PieceTable, T_TIMES_TAIL};

/// `c[0] * x^(n-1) + ... + c[n-1]`.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, coefficients: [f32; N]) -> S::V {
    let mut y = s.splat(coefficients[0]);
    for &c in &coefficients[1..] {
        y = s.mul_add(y, x, s.splat(c));
    }
    y
}

/// `e^x`; underflows to 0 and overflows to infinity. The method and the coefficients are those of Cephes' `expf`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-105.0), s.min(s.splat(89.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 as a sum, whose first term has so few bits that its product with n is exact (Cody and Waite).
    let r = s.neg_mul_add(n, s.splat(0.693_359_4), x);
    let r = s.neg_mul_add(n, s.splat(-2.121_944_4e-4), r);
    let p = polynomial(s, r, [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5]);
    let y = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    s.scale_by_power(y, n)
}

/// `2^x` for x up to 100; underflows to 0. With `LOOKUP`, results below 2^-126 are inaccurate.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(s: S, x: S::V) -> S::V {
    if S::LOOKUP {
        let x = s.max(s.splat(-127.0), x);
        let index = s.add(x, s.splat(SIXTEENTHS));
        let r = s.sub_nearest_sixteenth(x);
        let quotient = polynomial(s, r, [5.550_508_6e-2, 2.402_335_6e-1, 6.931_472e-1]);
        let power = s.add_exponent(s.lookup(&POWERS, index), index);
        // 2^r = 1 + r * quotient
        return s.mul_add(s.mul(quotient, r), power, power);
    }
    let x = s.max(s.splat(-150.0), x);
    let n = s.round(x);
    let y = polynomial(
        s,
        s.sub(x, n),
        [1.534_579e-4, 1.339_993_1e-3, 9.618_489e-3, 5.550_328_8e-2, 2.402_264_7e-1, 6.931_472e-1, 1.0],
    );
    s.scale_by_power(y, n)
}

/// 1.5 * 2^19: adding it rounds to the nearest 1/16, and the lowest bits of the sum count the sixteenths.
const SIXTEENTHS: f32 = 786_432.0;

/// The bits of `2^(i/16)` minus `i << 19`, which [`Simd::add_exponent`] adds.
#[rustfmt::skip]
static POWERS: [f32; 16] = [
    1.0, 0.990_886_87, 0.982_753_9, 0.975_644_3, 0.969_603_54, 0.964_678_9, 0.960_919_8, 0.958_377_8,
    0.957_106_77, 0.957_163_1, 0.958_605_4, 0.961_495_16, 0.965_896_4, 0.971_876_1, 0.979_504_05, 0.988_853_3,
];

/// The upper tail of the normal distribution, `erfc(t / sqrt 2) / 2`, for t from 0 to 16.
///
/// One polynomial approximates its binary logarithm on [0, 6], with an absolute error of 7e-9 in GELU before rounding;
/// beyond, the leading coefficient takes the result to 0.
#[inline(always)]
pub(crate) fn normal_tail<S: Simd>(s: S, t: S::V) -> S::V {
    let log = polynomial(
        s,
        t,
        [
            -2.672_79e-8,
            8.033_005_4e-7,
            -1.033_994_8e-5,
            7.251_947e-5,
            -2.648_081e-4,
            -3.408_678e-5,
            6.993_133_6e-3,
            -5.247_606_5e-2,
            -4.592_079_4e-1,
            -1.151_106,
            -1.0,
        ],
    );
    exp2(s, log)
}

/// The piece of the tables' piecewise polynomials that `t` is in: its index, in the lowest bits of the first vector,
/// and the distance of `t` from its centre.
#[inline(always)]
fn piece<S: Simd>(s: S, t: S::V) -> (S::V, S::V) {
    (s.add(t, s.splat(HALVES)), s.sub_nearest_half(t))
}

#[inline(always)]
fn piecewise_polynomial<S: Simd>(s: S, (index, distance): (S::V, S::V), table: &'static PieceTable) -> S::V {
    let mut y = s.lookup(&table[0], index);
    for coefficients in &table[1..] {
        y = s.mul_add(y, distance, s.lookup(coefficients, index));
    }
    y
}

/// GELU, `x (1 + erf(x / sqrt 2)) / 2`, as `max(x, 0) - |x| tail(|x|)`.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let positive = s.max(s.splat(0.0), x);
    if S::LOOKUP {
        let t = s.abs_up_to(s.splat(END), x);
        return s.sub(positive, piecewise_polynomial(s, piece(s, t), &T_TIMES_TAIL));
    }
    let t = s.min(s.splat(16.0), s.abs(x));
    s.neg_mul_add(t, normal_tail(s, t), positive)
}

/// GELU and its derivative, the distribution function plus x times the density.
#[inline(always)]
pub(crate) fn gelu_and_derivative<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let positive = s.max(s.splat(0.0), x);
    let (value, at_minus_t) = if S::LOOKUP {
        // Not `abs_up_to`, which may replace NaN by `END`: the derivative depends on x only through `t`.
        let t = s.min(s.splat(END), s.abs(x));
        let piece = piece(s, t);
        (
            s.sub(positive, piecewise_polynomial(s, piece, &T_TIMES_TAIL)),
            piecewise_polynomial(s, piece, &DERIVATIVE_AT_MINUS_T),
        )
    } else {
        let t = s.min(s.splat(16.0), s.abs(x));
        let tail = normal_tail(s, t);
        (s.neg_mul_add(t, tail, positive), s.mul(tail, derivative_over_tail(s, t)))
    };
    // The derivatives at x and -x add up to 1.
    (value, s.select(s.lt(x, s.splat(0.0)), at_minus_t, s.sub(s.splat(1.0), at_minus_t)))
}

/// The derivative of GELU at -t divided by the tail, `1 - t density(t) / tail(t)`, which is smooth. The absolute error
/// of the derivative, with that of [`normal_tail`], is 3.1e-8 before rounding.
#[inline(always)]
fn derivative_over_tail<S: Simd>(s: S, t: S::V) -> S::V {
    polynomial(
        s,
        t,
        [
            2.579_495_2e-6,
            -4.499_042_6e-5,
            3.218_776_3e-4,
            -1.068_594_7e-3,
            -1.219_813_1e-4,
            1.936_645_2e-2,
            -1.091_033_3e-1,
            -6.366_015_7e-1,
            -7.978_857e-1,
            1.0,
        ],
    )
}

/// x clamped to plus or minus `limit`. For activations whose derivative is constant beyond it: an infinite x would give
/// infinity times 0.
#[inline(always)]
pub(crate) fn clamp<S: Simd>(s: S, x: S::V, limit: f32) -> S::V {
    s.max(s.splat(-limit), s.min(s.splat(limit), x))
}

/// Hyperbolic tangent; the method and the coefficients are those of Cephes' `tanhf`.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let t = s.abs(x);
    let square = s.mul(x, x);
    let near = polynomial(s, square, [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let near = s.mul_add(s.mul(near, square), x, x);
    let e = exp(s, s.add(t, t));
    let one = s.splat(1.0);
    let far = s.sub(one, s.div(s.splat(2.0), s.add(e, one)));
    let far = s.select(s.lt(x, s.splat(0.0)), s.sub(s.splat(0.0), far), far);
    s.select(s.lt(s.splat(0.625), t), far, near)
}

/// The logistic function.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// The logistic function of x and of -x; unlike `1 - sigmoid(x)`, the latter is accurate for large x.
#[inline(always)]
pub(crate) fn sigmoid_pair<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let one = s.splat(1.0);
    // e^88 is finite: `e * y` must not be infinity times 0.
    let e = exp(s, s.min(s.splat(88.0), s.sub(s.splat(0.0), x)));
    let y = s.div(one, s.add(one, e));
    (y, s.mul(e, y))
}
