//! Optimiser updates, as operations of the same graph as the forward and backward pass.
//!
//! All of them take the gradients' global `norm`: with clipping the gradient is scaled by it, and where it is not
//! finite nothing changes, so that a step that went wrong can be looked into with the weights that it started from, or be
//! skipped. What the forward pass itself updates, running statistics, waits for the norm in a [`GuardedUpdate`].

use super::{Operation, arity, expect_shape};
use crate::reference::Array;
use crate::{Shape, Type};

/// The length of all inputs taken together as one vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GlobalNorm;

impl Operation for GlobalNorm {
    fn name(&self) -> &'static str {
        "global_norm"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        if inputs.is_empty() {
            return Err("at least one tensor is needed".into());
        }
        Ok(vec![Type::f32(Shape::default())])
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![Array::filled(Shape::default(), length(inputs.iter().flat_map(|x| x.data()).copied()))]
    }
}

fn length(elements: impl Iterator<Item = f64>) -> f64 {
    elements.map(|v| v * v).sum::<f64>().sqrt()
}

/// What is added to the norm before dividing by it.
pub const CLIP_EPSILON: f32 = 1e-6;

/// What gradients are scaled by, `min(1, clip / (norm + 1e-6))`; nothing where the norm is not finite.
fn clip_factor(clip: Option<f32>, norm: f64) -> Option<f64> {
    let factor = clip.map_or(1.0, |clip| (f64::from(clip) / (norm + f64::from(CLIP_EPSILON))).min(1.0));
    norm.is_finite().then_some(factor)
}

/// Checks what an update takes: the parameter, values of its shape, then numbers.
fn check(inputs: &[Type], same: &[&str], numbers: &[&str]) -> Result<(), String> {
    arity(inputs, 1 + same.len() + numbers.len())?;
    for (what, input) in same.iter().zip(&inputs[1..]) {
        expect_shape(what, input, &inputs[0].shape)?;
    }
    for (what, input) in numbers.iter().zip(&inputs[1 + same.len()..]) {
        expect_shape(what, input, &[])?;
    }
    Ok(())
}

/// One step of Adam (Kingma and Ba, 2015) and of what grew from it: AdamW, LAMB.
///
/// Inputs: `parameter`, `gradient`, `mean`, `variance` of one shape, then the numbers `rate`, `step` (from 1 on) and
/// the gradients' global `norm`. Outputs: the new parameter, mean and variance.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Adam {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    /// Weight decay is added to the update (AdamW), not to the gradient.
    pub decoupled: bool,
    /// The update is scaled to the parameter's length (LAMB); unless one of the two has none.
    pub trust_ratio: bool,
    /// Gradients are scaled by `min(1, clip / (norm + 1e-6))`.
    pub clip: Option<f32>,
}

impl Operation for Adam {
    fn name(&self) -> &'static str {
        match (self.trust_ratio, self.decoupled) {
            (true, _) => "lamb",
            (false, true) => "adamw",
            (false, false) => "adam",
        }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        check(inputs, &["the gradient", "the mean", "the variance"], &["the rate", "the step", "the norm"])?;
        Ok(vec![inputs[0].clone(), inputs[2].clone(), inputs[3].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [parameter, gradient, mean, variance] = [0, 1, 2, 3].map(|i| inputs[i].data());
        let [rate, step, norm] = [4, 5, 6].map(|i| inputs[i].data()[0]);
        let [beta1, beta2, epsilon, decay] = [self.beta1, self.beta2, self.epsilon, self.weight_decay].map(f64::from);
        let Some(factor) = clip_factor(self.clip, norm) else {
            return [0, 2, 3].map(|i| inputs[i].clone()).to_vec();
        };
        let (coupled, decoupled) = if self.decoupled { (0.0, decay) } else { (decay, 0.0) };
        let gradient = |i: usize| factor * gradient[i] + coupled * parameter[i];
        let shape = &outputs[0].shape;
        let new_mean = Array::from_fn(shape, |i| beta1 * mean[i] + (1.0 - beta1) * gradient(i));
        let new_variance = Array::from_fn(shape, |i| beta2 * variance[i] + (1.0 - beta2) * gradient(i).powi(2));
        let (correct1, correct2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let update = Array::from_fn(shape, |i| {
            let (m, v) = (new_mean.data()[i] / correct1, new_variance.data()[i] / correct2);
            m / (v.sqrt() + epsilon) + decoupled * parameter[i]
        });
        let lengths = (length(parameter.iter().copied()), length(update.data().iter().copied()));
        let ratio = match lengths {
            (parameter, update) if self.trust_ratio && parameter > 0.0 && update > 0.0 => parameter / update,
            _ => 1.0,
        };
        let new_parameter = Array::from_fn(shape, |i| parameter[i] - rate * ratio * update.data()[i]);
        vec![new_parameter, new_mean, new_variance]
    }
}

/// One step of stochastic gradient descent with momentum, as PyTorch defines it: weight decay is added to the gradient,
/// and the first step puts the whole gradient into the buffer.
///
/// Inputs: `parameter`, `gradient`, `buffer` of one shape, then the numbers `rate`, `step` (from 1 on) and the
/// gradients' global `norm`. Outputs: the new parameter and buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Sgd {
    pub momentum: f32,
    pub dampening: f32,
    pub nesterov: bool,
    pub weight_decay: f32,
    /// Gradients are scaled by `min(1, clip / (norm + 1e-6))`.
    pub clip: Option<f32>,
}

impl Sgd {
    /// What buffer and gradient count for in the new buffer, and both in the update.
    pub fn weights(&self, step: f32) -> [f32; 4] {
        let first = step <= 1.0 || self.momentum == 0.0;
        let (keep, add) = if first { (0.0, 1.0) } else { (self.momentum, 1.0 - self.dampening) };
        let (buffer, gradient) = if self.nesterov { (self.momentum, 1.0) } else { (1.0, 0.0) };
        [keep, add, buffer, gradient]
    }
}

impl Operation for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        check(inputs, &["the gradient", "the buffer"], &["the rate", "the step", "the norm"])?;
        Ok(vec![inputs[0].clone(), inputs[2].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [parameter, gradient, buffer] = [0, 1, 2].map(|i| inputs[i].data());
        let [rate, step, norm] = [3, 4, 5].map(|i| inputs[i].data()[0]);
        let Some(factor) = clip_factor(self.clip, norm) else {
            return [0, 2].map(|i| inputs[i].clone()).to_vec();
        };
        let [keep, add, of_buffer, of_gradient] = self.weights(step as f32).map(f64::from);
        let gradient = |i: usize| factor * gradient[i] + f64::from(self.weight_decay) * parameter[i];
        let shape = &outputs[0].shape;
        let new_buffer = Array::from_fn(shape, |i| keep * buffer[i] + add * gradient(i));
        let new_parameter = Array::from_fn(shape, |i| {
            parameter[i] - rate * (of_buffer * new_buffer.data()[i] + of_gradient * gradient(i))
        });
        vec![new_parameter, new_buffer]
    }
}

/// An exponential moving average: `decay · average + (1 - decay) · value`; the old one where the norm is not finite.
///
/// Inputs: `average` and `value` of one shape, and the numbers `decay` and the gradients' global `norm`. Output: the new
/// average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MovingAverage;

impl Operation for MovingAverage {
    fn name(&self) -> &'static str {
        "moving_average"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        check(inputs, &["the value"], &["the decay", "the norm"])?;
        Ok(vec![inputs[0].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (average, value) = (inputs[0].data(), inputs[1].data());
        let [decay, norm] = [2, 3].map(|i| inputs[i].data()[0]);
        if !norm.is_finite() {
            return vec![inputs[0].clone()];
        }
        vec![Array::from_fn(&outputs[0].shape, |i| decay * average[i] + (1.0 - decay) * value[i])]
    }
}

/// The new value of a parameter, if the norm is finite; otherwise the old one.
///
/// Inputs: `old` and `new` of one shape, and the gradients' global `norm`. Output: one of the first two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GuardedUpdate;

impl Operation for GuardedUpdate {
    fn name(&self) -> &'static str {
        "guarded_update"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        check(inputs, &["the new value"], &["the norm"])?;
        Ok(vec![inputs[0].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![inputs[usize::from(inputs[2].data()[0].is_finite())].clone()]
    }
}
