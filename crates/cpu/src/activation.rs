//! The activation functions and their derivatives, on whole buffers and (through `ActivationFn`) inside other kernels.
//! They propagate NaN. Values are accurate to a few units in the last place, except in the lower tails of GELU and its
//! approximations, where the absolute error is below 5e-8. Derivatives have an absolute error, below 5e-7.
//!
//! An activation of the graph is added here with a type that implements `ActivationFn` and its name in
//! `with_activation`.

pub use vit_graph::ops::Activation;

use crate::isa::Isa;
use crate::simd::math::{clamp, exp, gelu, gelu_and_derivative, sigmoid, sigmoid_pair, tanh};
use crate::simd::{Kernel, Simd};
use crate::thread_pool::ThreadPool;

/// An activation as a type, so that kernels can inline it.
pub(crate) trait ActivationFn: Copy {
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V;
    fn derivative<S: Simd>(self, s: S, x: S::V) -> S::V;
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, s: S, x: S::V) -> (S::V, S::V) {
        (self.value(s, x), self.derivative(s, x))
    }
}

/// Evaluates `$body` for an `Option<Activation>`, with `$f` bound to the [`ActivationFn`] of the same name, or to
/// [`Identity`] for `None`; the body is compiled once for each.
macro_rules! with_activation {
    ($activation:expr, $f:ident => $body:expr) => {
        $crate::activation::with_activation!(@ $activation, $f => $body; Gelu, GeluTanh, QuickGelu, Relu, Silu, Tanh, Sigmoid)
    };
    (@ $activation:expr, $f:ident => $body:expr; $($name:ident),*) => {
        match $activation {
            None => {
                let $f = $crate::activation::Identity;
                $body
            }
            $(Some(vit_graph::ops::Activation::$name) => {
                let $f = $crate::activation::$name;
                $body
            })*
        }
    };
}
pub(crate) use with_activation;

#[derive(Clone, Copy)]
pub(crate) struct Identity;

impl ActivationFn for Identity {
    #[inline(always)]
    fn value<S: Simd>(self, _: S, x: S::V) -> S::V {
        x
    }
    #[inline(always)]
    fn derivative<S: Simd>(self, s: S, _: S::V) -> S::V {
        s.splat(1.0)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Gelu;

impl ActivationFn for Gelu {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        gelu(s, x)
    }
    #[inline(always)]
    fn derivative<S: Simd>(self, s: S, x: S::V) -> S::V {
        gelu_and_derivative(s, x).1
    }
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, s: S, x: S::V) -> (S::V, S::V) {
        gelu_and_derivative(s, x)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct GeluTanh;

// GELU's approximation by tanh u, u = sqrt(2 / π) (x + 0.044715 x³) (Hendrycks and Gimpel, 2016).
const TANH_LINEAR: f32 = 0.797_884_6;
const TANH_CUBIC: f32 = 0.044_715;

impl ActivationFn for GeluTanh {
    // (1 + tanh u) / 2 is sigmoid(2 u), which keeps the accuracy of the lower tail.
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        let inner = s.mul_add(s.mul(x, x), s.splat(TANH_CUBIC), s.splat(1.0));
        let minus_2u = s.mul(s.mul(x, s.splat(-2.0 * TANH_LINEAR)), inner);
        s.div(x, s.add(s.splat(1.0), exp(s, minus_2u)))
    }
    #[inline(always)]
    fn derivative<S: Simd>(self, s: S, x: S::V) -> S::V {
        let one = s.splat(1.0);
        let x = clamp(s, x, 30.0);
        let square = s.mul(x, x);
        let inner = s.mul_add(square, s.splat(TANH_CUBIC), one);
        let (y, complement) = sigmoid_pair(s, s.mul(s.mul(x, s.splat(2.0 * TANH_LINEAR)), inner));
        // x times the derivative of 2 u.
        let d_inner = s.mul_add(square, s.splat(3.0 * TANH_CUBIC), one);
        let x_d2u = s.mul(s.mul(x, s.splat(2.0 * TANH_LINEAR)), d_inner);
        s.mul_add(s.mul(x_d2u, y), complement, y)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct QuickGelu;

// GELU's approximation by x sigmoid(1.702 x) (Hendrycks and Gimpel, 2016).
const QUICK_SCALE: f32 = 1.702;

impl ActivationFn for QuickGelu {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        let e = exp(s, s.mul(x, s.splat(-QUICK_SCALE)));
        s.div(x, s.add(s.splat(1.0), e))
    }
    #[inline(always)]
    fn derivative<S: Simd>(self, s: S, x: S::V) -> S::V {
        let scaled = s.mul(clamp(s, x, 100.0), s.splat(QUICK_SCALE));
        let (y, complement) = sigmoid_pair(s, scaled);
        s.mul_add(s.mul(scaled, y), complement, y)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Relu;

impl ActivationFn for Relu {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.max(s.splat(0.0), x)
    }
    #[inline(always)]
    fn derivative<S: Simd>(self, s: S, x: S::V) -> S::V {
        let zero = s.splat(0.0);
        // Where the comparison is false, the maximum is 0, or NaN for a NaN.
        s.select(s.lt(zero, x), s.splat(1.0), s.max(zero, x))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Silu;

impl ActivationFn for Silu {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        let e = exp(s, s.sub(s.splat(0.0), x));
        s.div(x, s.add(s.splat(1.0), e))
    }
    #[inline(always)]
    fn derivative<S: Simd>(self, s: S, x: S::V) -> S::V {
        let x = clamp(s, x, 200.0);
        let (y, complement) = sigmoid_pair(s, x);
        s.mul_add(s.mul(x, y), complement, y)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Tanh;

impl ActivationFn for Tanh {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        tanh(s, x)
    }
    #[inline(always)]
    fn derivative<S: Simd>(self, s: S, x: S::V) -> S::V {
        let y = tanh(s, x);
        s.neg_mul_add(y, y, s.splat(1.0))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Sigmoid;

impl ActivationFn for Sigmoid {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: S::V) -> S::V {
        sigmoid(s, x)
    }
    #[inline(always)]
    fn derivative<S: Simd>(self, s: S, x: S::V) -> S::V {
        let (y, complement) = sigmoid_pair(s, x);
        s.mul(y, complement)
    }
}

/// Elements of one task: enough work to outweigh the cost of scheduling it.
const CHUNK: usize = 16 * 1024;

/// `out = f(x)`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn apply(pool: &ThreadPool, isa: Isa, f: Activation, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "activation: input and output differ");
    pool.run_chunks(out, CHUNK, &|i, out| {
        let x = &x[i * CHUNK..][..out.len()];
        with_activation!(Some(f), f => isa.dispatch(ApplyActivation { f, x, out }));
    });
}

/// `dx = f'(x) * dy`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn apply_grad(pool: &ThreadPool, isa: Isa, f: Activation, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "activation gradient: x and dy differ");
    assert_eq!(x.len(), dx.len(), "activation gradient: x and dx differ");
    pool.run_chunks(dx, CHUNK, &|i, dx| {
        let x = &x[i * CHUNK..][..dx.len()];
        let dy = &dy[i * CHUNK..][..dx.len()];
        with_activation!(Some(f), f => isa.dispatch(ApplyActivationGrad { f, x, dy, dx }));
    });
}

struct ApplyActivation<'a, F> {
    f: F,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl<F: ActivationFn> Kernel for ApplyActivation<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.len().min(self.x.len());
        let (x, out) = (self.x.as_ptr(), self.out.as_mut_ptr());
        let mut i = 0;
        // SAFETY: both slices have n elements; vectors end at or before n, and the last access is cut to n - i lanes.
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

struct ApplyActivationGrad<'a, F> {
    f: F,
    x: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl<F: ActivationFn> Kernel for ApplyActivationGrad<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.dx.len().min(self.x.len()).min(self.dy.len());
        let (x, dy, dx) = (self.x.as_ptr(), self.dy.as_ptr(), self.dx.as_mut_ptr());
        let mut i = 0;
        // SAFETY: the slices have n elements; vectors end at or before n, and the last access is cut to n - i lanes.
        unsafe {
            while i + S::LANES <= n {
                let derivative = self.f.derivative(s, s.load(x.add(i)));
                s.store(dx.add(i), s.mul(derivative, s.load(dy.add(i))));
                i += S::LANES;
            }
            let derivative = self.f.derivative(s, s.load_first(x.add(i), n - i));
            let v = s.mul(derivative, s.load_first(dy.add(i), n - i));
            s.store_first(dx.add(i), v, n - i);
        }
    }
}
