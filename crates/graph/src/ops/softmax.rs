//! Softmax over the last axis.

use super::{Operation, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Type};

/// `exp(x - max) / Σ exp(x - max)` over each row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Softmax;

/// The softmax of one row, in place.
pub(super) fn softmax_row(row: &mut [f64]) {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|v| *v = (*v - max).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|v| *v /= sum);
}

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        if inputs[0].shape.is_empty() {
            return Err("a scalar has no last axis".into());
        }
        Ok(inputs.to_vec())
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (y, dy) = (b.output(0), b.dy()?);
        let dx = b.graph.value(SoftmaxGrad, &[y, dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut y = inputs[0].data().to_vec();
        y.chunks_exact_mut(outputs[0].shape.last().max(1)).for_each(softmax_row);
        vec![Array::new(outputs[0].shape.clone(), y)]
    }
}

/// The gradient of softmax: from its output `y` and `dy`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftmaxGrad;

impl Operation for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_shape("dy", &inputs[1], &inputs[0].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let columns = outputs[0].shape.last().max(1);
        let (y, dy) = (inputs[0].data(), inputs[1].data());
        let dots: Vec<f64> = y
            .chunks(columns)
            .zip(dy.chunks(columns))
            .map(|(y, dy)| y.iter().zip(dy).map(|(a, b)| a * b).sum())
            .collect();
        vec![Array::from_fn(&outputs[0].shape, |i| y[i] * (dy[i] - dots[i / columns]))]
    }
}
