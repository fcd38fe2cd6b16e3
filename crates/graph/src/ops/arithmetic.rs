//! Sums, differences and products of values, with broadcasting; powers.

use super::{Operation, arity};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Type};

/// Two values combined element by element after broadcasting.
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
            if !b.wants(side) {
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
}

/// A value times a number that is known when the graph is built.
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
}

/// Every element raised to a power that is known when the graph is built; a root for a fraction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Power(pub f32);

impl Operation for Power {
    fn name(&self) -> &'static str {
        "power"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(inputs.to_vec())
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (x, dy) = (b.input(0), b.dy()?);
        let derivative = b.graph.value(Power(self.0 - 1.0), &[x])?;
        let derivative = b.graph.value(Scale(self.0), &[derivative])?;
        let dx = b.graph.value(Binary::Mul, &[dy, derivative])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let x = inputs[0].data();
        vec![Array::from_fn(&outputs[0].shape, |i| x[i].powf(f64::from(self.0)))]
    }
}
