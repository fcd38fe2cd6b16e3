//! Losses.

use super::{Activation, Binary, InputPrecision, Operation, Scale, arity, expect_rank, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// The mean over the batch of `-Σ target · log softmax(logits)`.
///
/// Inputs: `logits [b, c]`, `targets [b, c]`, the weights of the classes for each sample, whose sum need not be 1.
/// Targets have no gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropy;

fn check(logits: &Type, targets: &Type) -> Result<(), String> {
    expect_rank("the logits", logits, 2)?;
    expect_shape("the targets", targets, &logits.shape)?;
    if logits.shape.elements() == 0 { Err(format!("the logits {} have no elements", logits.shape)) } else { Ok(()) }
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        check(&inputs[0], &inputs[1])?;
        Ok(vec![Type::f32(Shape::default())])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        if b.needs_gradient(1) {
            return Err(b.unsupported("targets are given, not learned"));
        }
        let (logits, targets, dy) = (b.input(0), b.input(1), b.dy()?);
        let dx = b.graph.value(CrossEntropyGrad, &[dy, logits, targets])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let (batch, classes) = (inputs[0].shape()[0], inputs[0].shape()[1]);
        let mut loss = 0.0;
        for (logits, targets) in inputs[0].data().chunks(classes).zip(inputs[1].data().chunks(classes)) {
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
            loss += logits.iter().zip(targets).map(|(l, t)| t * (lse - l)).sum::<f64>();
        }
        vec![Array::filled(Shape::default(), loss / batch as f64)]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// The gradient of [`CrossEntropy`]'s logits: `dy · (softmax(logits) · Σ target - target) / b`, from `dy`, logits and
/// targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropyGrad;

impl Operation for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 3)?;
        expect_shape("dy", &inputs[0], &[])?;
        check(&inputs[1], &inputs[2])?;
        Ok(vec![inputs[1].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (batch, classes) = (outputs[0].shape[0], outputs[0].shape[1]);
        let factor = inputs[0].data()[0] / batch as f64;
        let mut dx = Array::filled(outputs[0].shape.clone(), 0.0);
        let rows = inputs[1].data().chunks(classes).zip(inputs[2].data().chunks(classes));
        for (out, (logits, targets)) in dx.data_mut().chunks_mut(classes).zip(rows) {
            out.copy_from_slice(logits);
            super::softmax::softmax_row(out);
            let target_sum: f64 = targets.iter().sum();
            out.iter_mut().zip(targets).for_each(|(p, t)| *p = factor * (*p * target_sum - t));
        }
        vec![dx]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }
}

/// The mean of the squared differences of all elements. Inputs: `x [rows, columns]`, `targets` of the same shape, which
/// have no gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SquaredError;

impl Operation for SquaredError {
    fn name(&self) -> &'static str {
        "squared_error"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        check(&inputs[0], &inputs[1])?;
        Ok(vec![Type::f32(Shape::default())])
    }

    /// `dy · 2 (x - targets) / elements`.
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        if b.needs_gradient(1) {
            return Err(b.unsupported("targets are given, not learned"));
        }
        let (x, targets, dy) = (b.input(0), b.input(1), b.dy()?);
        let elements = b.graph.shape(x).elements();
        let difference = b.graph.value(Binary::Sub, &[x, targets])?;
        let dy = b.graph.value(Scale(2.0 / elements as f32), &[dy])?;
        let dx = b.graph.value(Binary::Mul, &[difference, dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let squares = inputs[0].data().iter().zip(inputs[1].data()).map(|(x, t)| (x - t) * (x - t));
        vec![Array::filled(Shape::default(), squares.sum::<f64>() / inputs[0].data().len() as f64)]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// Binary cross-entropy of independent classes: summed over classes, mean over the batch, as in big_vision's
/// `sigmoid_xent`.
///
/// Inputs: `logits [b, c]`, `targets [b, c]`, the probability of each class. Targets have no gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SigmoidCrossEntropy;

impl Operation for SigmoidCrossEntropy {
    fn name(&self) -> &'static str {
        "sigmoid_cross_entropy"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        check(&inputs[0], &inputs[1])?;
        Ok(vec![Type::f32(Shape::default())])
    }

    /// `dy · (σ(logits) - targets) / b`.
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        if b.needs_gradient(1) {
            return Err(b.unsupported("targets are given, not learned"));
        }
        let (logits, targets, dy) = (b.input(0), b.input(1), b.dy()?);
        let batch = b.graph.shape(logits)[0];
        let probabilities = b.graph.value(Activation::Sigmoid, &[logits])?;
        let difference = b.graph.value(Binary::Sub, &[probabilities, targets])?;
        let dy = b.graph.value(Scale(1.0 / batch as f32), &[dy])?;
        let dx = b.graph.value(Binary::Mul, &[difference, dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        // ln(1 + exp(x)) - t x, without overflow.
        let cross_entropy = |(&x, &t): (&f64, &f64)| x.max(0.0) - t * x + (-x.abs()).exp().ln_1p();
        let sum: f64 = inputs[0].data().iter().zip(inputs[1].data()).map(cross_entropy).sum();
        vec![Array::filled(Shape::default(), sum / inputs[0].shape()[0] as f64)]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// One-hot argmax of each row of `[.., c]`, the first of equal elements: a teacher's hard decision. NaN counts as the
/// largest and stays NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneHotMax;

impl Operation for OneHotMax {
    fn name(&self) -> &'static str {
        "one_hot_max"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        if inputs[0].shape.is_empty() {
            return Err("a scalar has no last axis".into());
        }
        Ok(inputs.to_vec())
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        Err(b.unsupported("an argmax has no derivative"))
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let columns = outputs[0].shape.last().max(1);
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        for (out, row) in y.data_mut().chunks_mut(columns).zip(inputs[0].data().chunks(columns)) {
            let larger = |i: usize, best: usize| row[i] > row[best] || (row[i].is_nan() && !row[best].is_nan());
            let best = (1..row.len()).fold(0, |best, i| if larger(i, best) { i } else { best });
            out[best] = if row[best].is_nan() { row[best] } else { 1.0 };
        }
        vec![y]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }
}
