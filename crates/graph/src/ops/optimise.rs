//! Optimiser updates, as operations of the same graph as the forward and backward pass.

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
            return Err("there is nothing to measure".into());
        }
        Ok(vec![Type::f32(Shape::default())])
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let squares: f64 = inputs.iter().flat_map(|x| x.data()).map(|v| v * v).sum();
        vec![Array::filled(Shape::default(), squares.sqrt())]
    }
}

/// One step of AdamW (Loshchilov and Hutter, 2019): decoupled weight decay, bias-corrected moments.
///
/// Inputs: `parameter`, `gradient`, `mean`, `variance` of one shape, then the numbers `rate` and `step` (from 1 on), and
/// with clipping the gradients' global `norm`. Outputs: the new parameter, mean and variance.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct AdamW {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    /// Gradients are scaled by `min(1, clip / (norm + 1e-6))`.
    pub clip: Option<f32>,
}

/// What is added to the norm before dividing by it.
pub const CLIP_EPSILON: f32 = 1e-6;

impl Operation for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 6 + usize::from(self.clip.is_some()))?;
        for (what, input) in ["the gradient", "the mean", "the variance"].iter().zip(&inputs[1..4]) {
            expect_shape(what, input, &inputs[0].shape)?;
        }
        for (what, input) in ["the rate", "the step", "the norm"].iter().zip(&inputs[4..]) {
            expect_shape(what, input, &[])?;
        }
        Ok(vec![inputs[0].clone(), inputs[2].clone(), inputs[3].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [parameter, gradient, mean, variance] = [0, 1, 2, 3].map(|i| inputs[i].data());
        let (rate, step) = (inputs[4].data()[0], inputs[5].data()[0]);
        let [beta1, beta2, epsilon, decay] = [self.beta1, self.beta2, self.epsilon, self.weight_decay].map(f64::from);
        let factor =
            self.clip.map_or(1.0, |clip| (f64::from(clip) / (inputs[6].data()[0] + f64::from(CLIP_EPSILON))).min(1.0));
        let new_mean = Array::from_fn(&outputs[1].shape, |i| beta1 * mean[i] + (1.0 - beta1) * factor * gradient[i]);
        let new_variance =
            Array::from_fn(&outputs[2].shape, |i| beta2 * variance[i] + (1.0 - beta2) * (factor * gradient[i]).powi(2));
        let (correct1, correct2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let new_parameter = Array::from_fn(&outputs[0].shape, |i| {
            let (m, v) = (new_mean.data()[i] / correct1, new_variance.data()[i] / correct2);
            parameter[i] * (1.0 - rate * decay) - rate * m / (v.sqrt() + epsilon)
        });
        vec![new_parameter, new_mean, new_variance]
    }
}
