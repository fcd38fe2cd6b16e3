//! Layer normalisation and RMS normalisation over the last axis.

use super::{InputPrecision, Operation, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// `(x - mean) · rstd · gamma + beta` over each row, `rstd = 1 / sqrt(variance + epsilon)`, biased variance.
///
/// Inputs: `x [.., d]`, `gamma [d]`, `beta [d]`. Outputs: the result, and `mean` and `rstd` of each row.
///
/// RMS norm (Zhang and Sennrich, 2019) is the same with a mean of 0, so that the variance is the mean square. It has no
/// `beta`: [`Tensor::rms_norm`](crate::Tensor::rms_norm) gives zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether the mean of the row is subtracted; otherwise it is taken as 0.
    pub centred: bool,
}

/// Mean and `rstd` of a row.
fn statistics(row: &[f64], norm: &LayerNorm) -> (f64, f64) {
    let n = row.len() as f64;
    let mean = if norm.centred { row.iter().sum::<f64>() / n } else { 0.0 };
    let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (variance + f64::from(norm.epsilon)).sqrt())
}

/// An error if there is nothing to normalise.
pub(super) fn expect_elements(x: &Shape) -> Result<(), String> {
    if x.is_empty() || x.last() == 0 { Err(format!("the input {x} has no elements to normalise")) } else { Ok(()) }
}

/// The types of the gradients of a normalisation: from `dy, x, gamma, mean, rstd` to `dx, dgamma, dbeta`.
/// `statistics` is the shape of `mean` and `rstd` for an `x` of this shape.
pub(super) fn grad_types(
    inputs: &[Type],
    statistics: impl Fn(&Shape) -> Result<Vec<usize>, String>,
) -> Result<Vec<Type>, String> {
    arity(inputs, 5)?;
    let x = &inputs[1].shape;
    expect_elements(x)?;
    expect_shape("dy", &inputs[0], x)?;
    expect_shape("gamma", &inputs[2], &[x.last()])?;
    let statistics = statistics(x)?;
    expect_shape("the mean", &inputs[3], &statistics)?;
    expect_shape("the inverse deviation", &inputs[4], &statistics)?;
    Ok(vec![inputs[1].clone(), inputs[2].clone(), inputs[2].clone()])
}

impl LayerNorm {
    /// Layer norm.
    pub fn new(epsilon: f32) -> Self {
        LayerNorm { epsilon, centred: true }
    }

    /// RMS norm.
    pub fn rms(epsilon: f32) -> Self {
        LayerNorm { epsilon, centred: false }
    }

    fn outputs(&self, x: &Type, gamma: &Type, beta: &Type) -> Result<Vec<Type>, String> {
        expect_elements(&x.shape)?;
        let dim = x.shape.last();
        expect_shape("gamma", gamma, &[dim])?;
        expect_shape("beta", beta, &[dim])?;
        let rows = Type::f32(&x.shape[..x.shape.len() - 1]);
        Ok(vec![x.clone(), rows.clone(), rows])
    }

    fn compute(&self, x: &Array, gamma: &[f64], beta: &[f64], outputs: &[Type]) -> Vec<Array> {
        let dim = x.shape().last().copied().unwrap_or(1);
        let stats: Vec<(f64, f64)> = x.data().chunks(dim).map(|r| statistics(r, self)).collect();
        let value = |i: usize| {
            let (mean, rstd) = stats[i / dim];
            (x.data()[i] - mean) * rstd * gamma[i % dim] + beta[i % dim]
        };
        vec![
            Array::from_fn(&outputs[0].shape, value),
            Array::from_fn(&outputs[1].shape, |i| stats[i].0),
            Array::from_fn(&outputs[2].shape, |i| stats[i].1),
        ]
    }
}

impl Operation for LayerNorm {
    fn name(&self) -> &'static str {
        if self.centred { "layer_norm" } else { "rms_norm" }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 3)?;
        self.outputs(&inputs[0], &inputs[1], &inputs[2])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        b.only_first_output("the row statistics")?;
        let inputs = [b.dy()?, b.input(0), b.input(1), b.output(1), b.output(2)];
        let node = b.graph.add(LayerNormGrad { centred: self.centred }, &inputs)?;
        b.set_all(node, 3)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        self.compute(inputs[0], inputs[1].data(), inputs[2].data(), outputs)
    }

    fn row_inputs(&self, inputs: &[Type], _: &Type) -> Option<Vec<bool>> {
        Some((0..inputs.len()).map(|i| i == 0).collect())
    }

    fn always_writes_first_output(&self) -> bool {
        true
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input > 0)
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output == 1 || output == 2
    }
}

/// The gradient of [`LayerNorm`]: from `dy, x, gamma, mean, rstd` to `dx, dgamma, dbeta`. With `n = (x - mean) · rstd`,
/// `g = dy · gamma` and `E` the mean over the row, `dx = rstd · (g - E[g] - n · E[g · n])`; without `E[g]` if the mean
/// was not subtracted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNormGrad {
    /// As in [`LayerNorm`].
    pub centred: bool,
}

impl Operation for LayerNormGrad {
    fn name(&self) -> &'static str {
        if self.centred { "layer_norm_grad" } else { "rms_norm_grad" }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        grad_types(inputs, |x| Ok(x[..x.len() - 1].to_vec()))
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [dy, x, gamma, mean, rstd] = [0, 1, 2, 3, 4].map(|i| inputs[i].data());
        let dim = gamma.len();
        let mut dx = vec![0.0; x.len()];
        let (mut dgamma, mut dbeta) = (vec![0.0; dim], vec![0.0; dim]);
        for row in 0..x.len() / dim {
            let at = |j: usize| row * dim + j;
            let normed = |j: usize| (x[at(j)] - mean[row]) * rstd[row];
            let (mut sum, mut dot) = (0.0, 0.0);
            for j in 0..dim {
                let g = dy[at(j)] * gamma[j];
                sum += if self.centred { g } else { 0.0 };
                dot += g * normed(j);
                dgamma[j] += dy[at(j)] * normed(j);
                dbeta[j] += dy[at(j)];
            }
            for j in 0..dim {
                dx[at(j)] = rstd[row] * (dy[at(j)] * gamma[j] - (sum + normed(j) * dot) / dim as f64);
            }
        }
        vec![
            Array::new(outputs[0].shape.clone(), dx),
            Array::new(outputs[1].shape.clone(), dgamma),
            Array::new(outputs[2].shape.clone(), dbeta),
        ]
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input > 1)
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output > 0
    }
}

/// A residual sum and its layer norm, in one pass over memory.
///
/// Inputs: `x` and `y [.., d]`, `gamma [d]`, `beta [d]`. Outputs: the norm of `x + y`, `mean`, `rstd`, and the sum
/// itself. Made by [`crate::rewrite::fuse_add_norm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddLayerNorm(pub LayerNorm);

impl Operation for AddLayerNorm {
    fn name(&self) -> &'static str {
        if self.0.centred { "add_layer_norm" } else { "add_rms_norm" }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 4)?;
        expect_shape("the second term", &inputs[1], &inputs[0].shape)?;
        let mut outputs = self.0.outputs(&inputs[0], &inputs[2], &inputs[3])?;
        outputs.push(inputs[0].clone());
        Ok(outputs)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, y) = (inputs[0].data(), inputs[1].data());
        let sum = Array::from_fn(&outputs[3].shape, |i| x[i] + y[i]);
        let mut results = self.0.compute(&sum, inputs[2].data(), inputs[3].data(), outputs);
        results.push(sum);
        results
    }

    fn always_writes_first_output(&self) -> bool {
        true
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input > 1)
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output == 1 || output == 2
    }
}

/// The gradient of [`LayerNorm`] plus that of the residual connection around it, in one pass over memory.
///
/// Inputs: those of [`LayerNormGrad`], then `residual_grad` of the shape of `dx`. Outputs: `dx + residual_grad, dgamma,
/// dbeta`. Made by [`crate::rewrite::fuse_norm_grad_add`], which only devices that store everything in f32 use: unlike
/// [`LayerNormGrad`], it states no precisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNormGradAdd(pub LayerNormGrad);

impl Operation for LayerNormGradAdd {
    fn name(&self) -> &'static str {
        if self.0.centred { "layer_norm_grad_add" } else { "rms_norm_grad_add" }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 6)?;
        expect_shape("the residual's gradient", &inputs[5], &inputs[1].shape)?;
        self.0.infer(&inputs[..5])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut results = self.0.evaluate(inputs, outputs);
        results[0].data_mut().iter_mut().zip(inputs[5].data()).for_each(|(dx, residual_grad)| *dx += residual_grad);
        results
    }
}
