//! The activation functions and their gradients, on whole buffers and (through `Function`) inside other kernels.
//! They are accurate to a few units in the last place over the whole range, and keep NaN.

use crate::isa::Isa;
use crate::pool::Pool;
use crate::simd::math::{clamp, exp, gelu, gelu_and_slope, sigmoid, sigmoid_pair, tanh};
use crate::simd::{Kernel, Simd};

/// An activation function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x`
    #[default]
    None,
    /// `x * (1 + erf(x / sqrt 2)) / 2`
    GeluErf,
    /// The approximation of GELU by tanh.
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `x * sigmoid(x)`
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`
    Sigmoid,
}

/// A scalar function as a type, so that kernels can inline it.
pub(crate) trait Function: Copy {
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V;
    fn slope<S: Simd>(self, s: S, x: S::V) -> S::V;
    #[inline(always)]
    fn value_and_slope<S: Simd>(self, s: S, x: S::V) -> (S::V, S::V) {
        (self.value(s, x), self.slope(s, x))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Identity;
#[derive(Clone, Copy)]
pub(crate) struct GeluErf;
#[derive(Clone, Copy)]
pub(crate) struct GeluTanh;
#[derive(Clone, Copy)]
pub(crate) struct Relu;
#[derive(Clone, Copy)]
pub(crate) struct Silu;
#[derive(Clone, Copy)]
pub(crate) struct Tanh;
#[derive(Clone, Copy)]
pub(crate) struct Sigmoid;

/// Evaluates `$body` with `$f` bound to the type of the activation.
macro_rules! with_function {
    ($activation:expr, $f:ident => $body:expr) => {
        match $activation {
            $crate::activation::Activation::None => {
                let $f = $crate::activation::Identity;
                $body
            }
            $crate::activation::Activation::GeluErf => {
                let $f = $crate::activation::GeluErf;
                $body
            }
            $crate::activation::Activation::GeluTanh => {
                let $f = $crate::activation::GeluTanh;
                $body
            }
            $crate::activation::Activation::Relu => {
                let $f = $crate::activation::Relu;
                $body
            }
            $crate::activation::Activation::Silu => {
                let $f = $crate::activation::Silu;
                $body
            }
            $crate::activation::Activation::Tanh => {
                let $f = $crate::activation::Tanh;
                $body
            }
            $crate::activation::Activation::Sigmoid => {
                let $f = $crate::activation::Sigmoid;
                $body
            }
        }
    };
}
pub(crate) use with_function;

impl Function for Identity {
    #[inline(always)]
    fn value<S: Simd>(self, _: S, x: S::V) -> S::V {
        x
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, _: S::V) -> S::V {
        s.splat(1.0)
    }
}

impl Function for GeluErf {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        gelu(s, x)
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: S::V) -> S::V {
        gelu_and_slope(s, x).1
    }
    #[inline(always)]
    fn value_and_slope<S: Simd>(self, s: S, x: S::V) -> (S::V, S::V) {
        gelu_and_slope(s, x)
    }
}

const TANH_LINEAR: f32 = 0.797_884_6;
const TANH_CUBIC: f32 = 0.044_715;

impl Function for GeluTanh {
    // (1 + tanh u) / 2 is sigmoid(2 u), which keeps the accuracy of the lower tail.
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        let inner = s.mul_add(s.mul(x, x), s.splat(TANH_CUBIC), s.splat(1.0));
        let twice = s.mul(s.mul(x, s.splat(-2.0 * TANH_LINEAR)), inner);
        s.div(x, s.add(s.splat(1.0), exp(s, twice)))
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: S::V) -> S::V {
        let one = s.splat(1.0);
        let x = clamp(s, x, 30.0);
        let square = s.mul(x, x);
        let inner = s.mul_add(square, s.splat(TANH_CUBIC), one);
        let (y, rest) = sigmoid_pair(s, s.mul(s.mul(x, s.splat(2.0 * TANH_LINEAR)), inner));
        let inner_slope = s.mul_add(square, s.splat(3.0 * TANH_CUBIC), one);
        let u = s.mul(s.mul(x, s.splat(2.0 * TANH_LINEAR)), inner_slope);
        s.mul_add(s.mul(u, y), rest, y)
    }
}

impl Function for Relu {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.max(s.splat(0.0), x)
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: S::V) -> S::V {
        let zero = s.splat(0.0);
        // The maximum is 0 here, or NaN.
        s.select(s.lt(zero, x), s.splat(1.0), s.max(zero, x))
    }
}

impl Function for Silu {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        let e = exp(s, s.sub(s.splat(0.0), x));
        s.div(x, s.add(s.splat(1.0), e))
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: S::V) -> S::V {
        let x = clamp(s, x, 200.0);
        let (y, rest) = sigmoid_pair(s, x);
        s.mul_add(s.mul(x, y), rest, y)
    }
}

impl Function for Tanh {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        tanh(s, x)
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: S::V) -> S::V {
        let y = tanh(s, x);
        s.neg_mul_add(y, y, s.splat(1.0))
    }
}

impl Function for Sigmoid {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        sigmoid(s, x)
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: S::V) -> S::V {
        let (y, rest) = sigmoid_pair(s, x);
        s.mul(y, rest)
    }
}

/// Elements that one task handles: enough work to be worth handing out.
const CHUNK: usize = 16 * 1024;

/// `out = kind(x)`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn unary(pool: &Pool, isa: Isa, kind: Activation, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "activation: input and output differ");
    pool.run_chunks(out, CHUNK, &|i, out| {
        let x = &x[i * CHUNK..][..out.len()];
        with_function!(kind, f => isa.dispatch(Apply { f, x, out }));
    });
}

/// `dx = kind'(x) * dy`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn unary_grad(pool: &Pool, isa: Isa, kind: Activation, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "activation gradient: x and dy differ");
    assert_eq!(x.len(), dx.len(), "activation gradient: x and dx differ");
    pool.run_chunks(dx, CHUNK, &|i, dx| {
        let x = &x[i * CHUNK..][..dx.len()];
        let dy = &dy[i * CHUNK..][..dx.len()];
        with_function!(kind, f => isa.dispatch(ApplyGrad { f, x, dy, dx }));
    });
}

struct Apply<'a, F> {
    f: F,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl<F: Function> Kernel for Apply<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.len().min(self.x.len());
        let (x, out) = (self.x.as_ptr(), self.out.as_mut_ptr());
        let mut i = 0;
        // SAFETY: i + LANES <= n, then i + (n - i) = n, and both slices have n elements.
        unsafe {
            while i + S::LANES <= n {
                s.store(out.add(i), self.f.value(s, s.load(x.add(i))));
                i += S::LANES;
            }
            let v = self.f.value(s, s.load_first(x.add(i), n - i));
            s.store_first(out.add(i), v, n - i);
        }
    }
}

struct ApplyGrad<'a, F> {
    f: F,
    x: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl<F: Function> Kernel for ApplyGrad<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.dx.len().min(self.x.len()).min(self.dy.len());
        let (x, dy, dx) = (self.x.as_ptr(), self.dy.as_ptr(), self.dx.as_mut_ptr());
        let mut i = 0;
        // SAFETY: i + LANES <= n, then i + (n - i) = n, and the three slices have n elements.
        unsafe {
            while i + S::LANES <= n {
                let slope = self.f.slope(s, s.load(x.add(i)));
                s.store(dx.add(i), s.mul(slope, s.load(dy.add(i))));
                i += S::LANES;
            }
            let slope = self.f.slope(s, s.load_first(x.add(i), n - i));
            let v = s.mul(slope, s.load_first(dy.add(i), n - i));
            s.store_first(dx.add(i), v, n - i);
        }
    }
}
