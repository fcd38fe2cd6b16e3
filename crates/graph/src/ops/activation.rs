//! Activations.

use super::{Operation, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Type};

/// A function applied to every element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x Φ(x)` with the exact error function.
    Gelu,
    /// The tanh approximation of GELU, as flax uses it.
    GeluTanh,
    /// `x σ(1.702 x)`, an approximation of GELU, as OpenAI's CLIP uses it.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `x σ(x)`.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// Logistic function.
    Sigmoid,
}

const TANH_SCALE: f64 = 0.797_884_560_802_865_4; // sqrt(2 / π)
const TANH_CUBIC: f64 = 0.044715;
const QUICK_SCALE: f64 = 1.702;

impl Activation {
    /// The function.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)),
            Activation::GeluTanh => 0.5 * x * (1.0 + (TANH_SCALE * (x + TANH_CUBIC * x * x * x)).tanh()),
            Activation::QuickGelu => x / (1.0 + (-QUICK_SCALE * x).exp()),
            // `max` would drop a NaN.
            Activation::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        }
    }

    /// The derivative.
    pub fn derivative(self, x: f64) -> f64 {
        match self {
            Activation::Gelu => {
                let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
                0.5 * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)) + x * density
            }
            Activation::GeluTanh => {
                let t = (TANH_SCALE * (x + TANH_CUBIC * x * x * x)).tanh();
                0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * TANH_SCALE * (1.0 + 3.0 * TANH_CUBIC * x * x)
            }
            Activation::QuickGelu => {
                let s = Activation::Sigmoid.apply(QUICK_SCALE * x);
                s * (1.0 + QUICK_SCALE * x * (1.0 - s))
            }
            Activation::Relu if x.is_nan() => x,
            Activation::Relu => f64::from(x > 0.0),
            Activation::Silu => {
                let s = Activation::Sigmoid.apply(x);
                s * (1.0 + x * (1.0 - s))
            }
            Activation::Tanh => 1.0 - x.tanh().powi(2),
            Activation::Sigmoid => {
                let s = self.apply(x);
                s * (1.0 - s)
            }
        }
    }
}

impl Operation for Activation {
    fn name(&self) -> &'static str {
        match self {
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::QuickGelu => "quick_gelu",
            Activation::Relu => "relu",
            Activation::Silu => "silu",
            Activation::Tanh => "tanh",
            Activation::Sigmoid => "sigmoid",
        }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(inputs.to_vec())
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (x, dy) = (b.input(0), b.dy()?);
        let dx = b.graph.value(ActivationGrad(*self), &[x, dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let x = inputs[0].data();
        vec![Array::from_fn(&outputs[0].shape, |i| self.apply(x[i]))]
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

/// The gradient of an activation: from its input `x` and `dy`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivationGrad(pub Activation);

impl Operation for ActivationGrad {
    fn name(&self) -> &'static str {
        "activation_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_shape("dy", &inputs[1], &inputs[0].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, dy) = (inputs[0].data(), inputs[1].data());
        vec![Array::from_fn(&outputs[0].shape, |i| dy[i] * self.0.derivative(x[i]))]
    }
}
