//! Elementwise operations of one value, and of two with broadcasting.

use super::{Operation, arity};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Type};

/// A function of two elements, with broadcasting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Binary {
    Add,
    Sub,
    Mul,
}

impl Binary {
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
        }
    }
}

impl Operation for Binary {
    fn name(&self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
        }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        let shape = inputs[0].shape.broadcast(&inputs[1].shape).ok_or("the shapes do not broadcast")?;
        Ok(vec![Type::new(inputs[0].dtype, shape)])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let dy = b.dy()?;
        for side in 0..2 {
            if !b.needs_gradient(side) {
                continue;
            }
            let d = match self {
                Binary::Mul => {
                    let other = b.input(1 - side);
                    b.graph.value(Binary::Mul, &[dy, other])?
                }
                Binary::Sub if side == 1 => b.graph.value(Scale(-1.0), &[dy])?,
                _ => dy,
            };
            let d = b.sum_to_input(d, side)?;
            b.set(side, d)?;
        }
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let shape = &outputs[0].shape;
        let (a, b) = (inputs[0].broadcast_to(shape), inputs[1].broadcast_to(shape));
        vec![Array::from_fn(shape, |i| self.apply(a.data()[i], b.data()[i]))]
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

/// A value times a constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale(pub f32);

impl Operation for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(inputs.to_vec())
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let dy = b.dy()?;
        let dx = b.graph.value(*self, &[dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let x = inputs[0].data();
        vec![Array::from_fn(&outputs[0].shape, |i| f64::from(self.0) * x[i])]
    }

    fn is_elementwise(&self) -> bool {
        true
    }
}

/// A function of every element. Activations, which devices fuse into matrix products, are [`super::Activation`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    /// `x^p` with a constant exponent.
    Power(f32),
    /// `√x`, with the gradient 0 at 0, so that the norm of a vector of zeros has the gradient 0 and not NaN, as
    /// PyTorch's 2-norm.
    Sqrt,
    /// `1 / (2 √x)`, and 0 at 0: the gradient of [`Unary::Sqrt`].
    SqrtDerivative,
    /// `eˣ`.
    Exp,
    /// `min(x, limit)`, with the gradient 1 up to the limit and 0 above, as PyTorch's `clamp`.
    AtMost(f32),
    /// 1 up to the limit, 0 above: the gradient of [`Unary::AtMost`].
    AtMostDerivative(f32),
}

impl Unary {
    /// The constant that the function depends on; 0 where there is none.
    pub fn parameter(self) -> f32 {
        match self {
            Unary::Power(parameter) | Unary::AtMost(parameter) | Unary::AtMostDerivative(parameter) => parameter,
            Unary::Sqrt | Unary::SqrtDerivative | Unary::Exp => 0.0,
        }
    }

    fn apply(self, x: f64) -> f64 {
        match self {
            Unary::Power(exponent) => x.powf(f64::from(exponent)),
            Unary::Sqrt => x.sqrt(),
            Unary::SqrtDerivative if x == 0.0 => 0.0,
            Unary::SqrtDerivative => 0.5 / x.sqrt(),
            Unary::Exp => x.exp(),
            // Comparisons in this order keep a NaN.
            Unary::AtMost(limit) if x > f64::from(limit) => f64::from(limit),
            Unary::AtMostDerivative(limit) if x > f64::from(limit) => 0.0,
            Unary::AtMostDerivative(_) if x.is_nan() => x,
            Unary::AtMostDerivative(_) => 1.0,
            Unary::AtMost(_) => x,
        }
    }
}

impl Operation for Unary {
    fn name(&self) -> &'static str {
        match self {
            Unary::Power(_) => "power",
            Unary::Sqrt => "sqrt",
            Unary::SqrtDerivative => "sqrt_derivative",
            Unary::Exp => "exp",
            Unary::AtMost(_) => "at_most",
            Unary::AtMostDerivative(_) => "at_most_derivative",
        }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(inputs.to_vec())
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (x, dy) = (b.input(0), b.dy()?);
        let derivative = match *self {
            Unary::Power(exponent) => {
                let power = b.graph.value(Unary::Power(exponent - 1.0), &[x])?;
                b.graph.value(Scale(exponent), &[power])?
            }
            Unary::Sqrt => b.graph.value(Unary::SqrtDerivative, &[x])?,
            Unary::SqrtDerivative => return Err(b.unsupported("second derivatives of a root are not supported")),
            Unary::Exp => b.output(0),
            Unary::AtMost(limit) => b.graph.value(Unary::AtMostDerivative(limit), &[x])?,
            Unary::AtMostDerivative(_) => return Err(b.unsupported("it is 0 almost everywhere")),
        };
        let dx = b.graph.value(Binary::Mul, &[dy, derivative])?;
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
