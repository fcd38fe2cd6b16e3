//! Optimiser updates, as operations of the graph of a training step.
//!
//! All updates take the global `norm` of the gradients, for clipping and as a guard: if it is not finite, nothing
//! changes, so that the step can be diagnosed with the weights it started from, or skipped. Running statistics, which
//! the forward pass updates, are guarded by a [`GuardedUpdate`].

use super::{InputPrecision, Op, Operation, arity, expect_shape};
use crate::reference::Array;
use crate::{Shape, Type};

/// The 2-norm of all inputs as one vector.
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
        vec![Array::filled(Shape::default(), two_norm(inputs.iter().flat_map(|x| x.data()).copied()))]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// The number of elements of a partial sum of squares.
pub const SQUARES: usize = 1 << 13;

/// Partial sums of the squares of a tensor, the same that [`GlobalNorm`] adds on this device. Each is of [`SQUARES`]
/// elements; a device that sums twice as many at a time writes 0 as every second one. A slice that begins at a multiple
/// of `2 * SQUARES` elements has the same sums as in the whole tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SquareSums;

impl SquareSums {
    /// The number of sums.
    pub fn count(elements: usize) -> usize {
        elements.div_ceil(SQUARES)
    }
}

impl Operation for SquareSums {
    fn name(&self) -> &'static str {
        "square_sums"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(vec![Type::f32([SquareSums::count(inputs[0].shape.elements())])])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut sums = inputs[0].data().chunks(SQUARES).map(|chunk| chunk.iter().map(|v| v * v).sum());
        vec![Array::from_fn(&outputs[0].shape, |_| sums.next().unwrap_or(0.0))]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// The [`GlobalNorm`] of tensors, to the bit, from the [`SquareSums`] of each in the same order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormOfSums;

impl Operation for NormOfSums {
    fn name(&self) -> &'static str {
        "norm_of_sums"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        GlobalNorm.infer(inputs)
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let sum: f64 = inputs.iter().flat_map(|sums| sums.data()).sum();
        vec![Array::filled(Shape::default(), sum.sqrt())]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

fn two_norm(elements: impl Iterator<Item = f64>) -> f64 {
    elements.map(|v| v * v).sum::<f64>().sqrt()
}

/// Added to the norm before dividing by it, as in PyTorch's `clip_grad_norm_`.
pub const CLIP_EPSILON: f32 = 1e-6;

/// The clipping factor `min(1, clip / (norm + 1e-6))`; `None` if the norm is not finite.
fn clip_factor(clip: Option<f32>, norm: f64) -> Option<f64> {
    let factor = clip.map_or(1.0, |clip| (f64::from(clip) / (norm + f64::from(CLIP_EPSILON))).min(1.0));
    norm.is_finite().then_some(factor)
}

/// Checks the inputs of an update: the parameter, values of its shape, then scalars.
fn check(inputs: &[Type], same: &[&str], scalars: &[&str]) -> Result<(), String> {
    arity(inputs, 1 + same.len() + scalars.len())?;
    for (what, input) in same.iter().zip(&inputs[1..]) {
        expect_shape(what, input, &inputs[0].shape)?;
    }
    for (what, input) in scalars.iter().zip(&inputs[1 + same.len()..]) {
        expect_shape(what, input, &[])?;
    }
    Ok(())
}

/// The definition of an optimiser: what distinguishes one [`OptimiserUpdate`] from another.
trait UpdateRule {
    fn name(&self) -> &'static str;

    /// Its state tensors, of the parameter's shape, as errors name them.
    fn state(&self) -> &'static [&'static str];

    /// Gradients are scaled by `min(1, clip / (norm + 1e-6))`; `None` for no clipping.
    fn clip(&self) -> Option<f32>;

    /// Whether an input multiplies the weight decay.
    fn scheduled_decay(&self) -> bool {
        false
    }

    /// The new parameter and state, in f64.
    fn update(&self, old: UpdateOperands) -> Vec<Array>;
}

/// The operands of an update rule.
struct UpdateOperands<'a> {
    shape: &'a Shape,
    parameter: &'a [f64],
    /// The gradient, clipped.
    gradient: &'a [f64],
    state: Vec<&'a [f64]>,
    /// The learning rate.
    rate: f64,
    /// From 1 on.
    step: f64,
}

macro_rules! optimisers {
    ($($name:ident),* $(,)?) => {
        /// One step of an optimiser for one parameter.
        ///
        /// Inputs: `parameter`, `gradient` and the optimiser's state, of one shape; then the scalars `rate` (the
        /// learning rate), `step` (from 1 on) and the gradients' global `norm`, and for a scheduled weight decay its
        /// `factor`. Outputs: the new parameter and state.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs)]
        pub enum OptimiserUpdate { $($name($name)),* }

        $(impl From<$name> for OptimiserUpdate {
            fn from(rule: $name) -> OptimiserUpdate { OptimiserUpdate::$name(rule) }
        }

        impl From<$name> for Op {
            fn from(rule: $name) -> Op { Op::OptimiserUpdate(rule.into()) }
        })*

        impl OptimiserUpdate {
            fn rule(&self) -> &dyn UpdateRule {
                match self { $(OptimiserUpdate::$name(rule) => rule),* }
            }
        }
    };
}

optimisers!(Adam, Lion, Sgd);

impl OptimiserUpdate {
    /// The number of state tensors.
    pub fn state_len(&self) -> usize {
        self.rule().state().len()
    }

    /// Gradients are scaled by `min(1, clip / (norm + 1e-6))`; `None` for no clipping.
    pub fn clip(&self) -> Option<f32> {
        self.rule().clip()
    }

    /// Whether the last input multiplies the weight decay.
    pub fn scheduled_decay(&self) -> bool {
        self.rule().scheduled_decay()
    }

    /// The same with a weight decay that is multiplied by a factor.
    pub fn with_decay_times(self, factor: f32) -> Self {
        match self {
            OptimiserUpdate::Adam(rule) => Adam { weight_decay: rule.weight_decay * factor, ..rule }.into(),
            OptimiserUpdate::Lion(rule) => Lion { weight_decay: rule.weight_decay * factor, ..rule }.into(),
            OptimiserUpdate::Sgd(rule) => Sgd { weight_decay: rule.weight_decay * factor, ..rule }.into(),
        }
    }
}

impl Operation for OptimiserUpdate {
    fn name(&self) -> &'static str {
        self.rule().name()
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        let same = [&["the gradient"], self.rule().state()].concat();
        let scalars = ["the rate", "the step", "the norm", "the factor of weight decay"];
        check(inputs, &same, &scalars[..3 + usize::from(self.scheduled_decay())])?;
        Ok(vec![inputs[0].clone(); 1 + self.state_len()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let state = &inputs[2..2 + self.state_len()];
        let [rate, step, norm] = [0, 1, 2].map(|i| inputs[2 + state.len() + i].data()[0]);
        let Some(factor) = clip_factor(self.clip(), norm) else {
            return inputs[..1].iter().chain(state).map(|&old| old.clone()).collect();
        };
        let factor_of_decay = if self.scheduled_decay() { inputs[5 + state.len()].data()[0] as f32 } else { 1.0 };
        let gradient: Vec<f64> = inputs[1].data().iter().map(|g| factor * g).collect();
        self.with_decay_times(factor_of_decay).rule().update(UpdateOperands {
            shape: &outputs[0].shape,
            parameter: inputs[0].data(),
            gradient: &gradient,
            state: state.iter().map(|old| old.data()).collect(),
            rate,
            step,
        })
    }

    /// Parameter and state. Input 1 is the gradient, so the state's inputs are one ahead of its outputs.
    fn in_place(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (2, 1), (3, 2)][..1 + self.state_len()]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// Adam (Kingma and Ba, 2015) and its descendants AdamW and LAMB. Its state consists of the paper's
/// moments `m` and `v`: moving averages of the gradients and of their squares.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Adam {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    /// Weight decay is added to the update (AdamW), not to the gradient.
    pub decoupled: bool,
    /// An input multiplies the weight decay.
    pub scheduled_decay: bool,
    /// The update is scaled to the parameter's norm (LAMB), unless one of the two is zero.
    pub trust_ratio: bool,
    /// Gradients are scaled by `min(1, clip / (norm + 1e-6))`.
    pub clip: Option<f32>,
}

impl UpdateRule for Adam {
    fn name(&self) -> &'static str {
        match (self.trust_ratio, self.decoupled) {
            (true, _) => "lamb",
            (false, true) => "adamw",
            (false, false) => "adam",
        }
    }

    fn state(&self) -> &'static [&'static str] {
        &["the first moment", "the second moment"]
    }

    fn clip(&self) -> Option<f32> {
        self.clip
    }

    fn scheduled_decay(&self) -> bool {
        self.scheduled_decay
    }

    fn update(&self, UpdateOperands { shape, parameter, gradient, state, rate, step }: UpdateOperands) -> Vec<Array> {
        let [beta1, beta2, epsilon, decay] = [self.beta1, self.beta2, self.epsilon, self.weight_decay].map(f64::from);
        let (coupled, decoupled) = if self.decoupled { (0.0, decay) } else { (decay, 0.0) };
        let gradient = |i: usize| gradient[i] + coupled * parameter[i];
        let first = Array::from_fn(shape, |i| beta1 * state[0][i] + (1.0 - beta1) * gradient(i));
        let second = Array::from_fn(shape, |i| beta2 * state[1][i] + (1.0 - beta2) * gradient(i).powi(2));
        let (correct1, correct2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let update = Array::from_fn(shape, |i| {
            let (m, v) = (first.data()[i] / correct1, second.data()[i] / correct2);
            m / (v.sqrt() + epsilon) + decoupled * parameter[i]
        });
        let norms = (two_norm(parameter.iter().copied()), two_norm(update.data().iter().copied()));
        let ratio = match norms {
            (parameter, update) if self.trust_ratio && parameter > 0.0 && update > 0.0 => parameter / update,
            _ => 1.0,
        };
        let parameter = Array::from_fn(shape, |i| parameter[i] - rate * ratio * update.data()[i]);
        vec![parameter, first, second]
    }
}

/// Lion (Chen et al., 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2): the sign of an interpolation
/// between momentum and gradient, with decoupled weight decay. Its state is the momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Lion {
    /// The weight of the momentum in the update; 0.9 in the paper.
    pub beta1: f32,
    /// The decay of the momentum; 0.99 in the paper.
    pub beta2: f32,
    pub weight_decay: f32,
    /// An input multiplies the weight decay.
    pub scheduled_decay: bool,
    /// Gradients are scaled by `min(1, clip / (norm + 1e-6))`.
    pub clip: Option<f32>,
}

impl UpdateRule for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn state(&self) -> &'static [&'static str] {
        &["the momentum"]
    }

    fn clip(&self) -> Option<f32> {
        self.clip
    }

    fn scheduled_decay(&self) -> bool {
        self.scheduled_decay
    }

    fn update(&self, UpdateOperands { shape, parameter, gradient, state, rate, .. }: UpdateOperands) -> Vec<Array> {
        let [beta1, beta2, decay] = [self.beta1, self.beta2, self.weight_decay].map(f64::from);
        let interpolation = |beta: f64, i: usize| beta * state[0][i] + (1.0 - beta) * gradient[i];
        // The sign of 0 is 0, that of NaN is NaN.
        let sign = |v: f64| if v == 0.0 { 0.0 } else { v.signum() };
        let update = |i: usize| sign(interpolation(beta1, i)) + decay * parameter[i];
        vec![
            Array::from_fn(shape, |i| parameter[i] - rate * update(i)),
            Array::from_fn(shape, |i| interpolation(beta2, i)),
        ]
    }
}

/// Stochastic gradient descent with momentum, as PyTorch defines it: weight decay is added to the gradient, and the
/// first step puts the whole gradient into the buffer. Its state is the momentum buffer.
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
    /// The weights of old buffer and gradient in the new buffer, and of new buffer and gradient in the update.
    pub fn weights(&self, step: f32) -> [f32; 4] {
        // Without momentum PyTorch has no buffer, and no dampening.
        let replace = step <= 1.0 || self.momentum == 0.0;
        let (keep, add) = if replace { (0.0, 1.0) } else { (self.momentum, 1.0 - self.dampening) };
        let (buffer, gradient) = if self.nesterov { (self.momentum, 1.0) } else { (1.0, 0.0) };
        [keep, add, buffer, gradient]
    }
}

impl UpdateRule for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn state(&self) -> &'static [&'static str] {
        &["the buffer"]
    }

    fn clip(&self) -> Option<f32> {
        self.clip
    }

    fn update(&self, UpdateOperands { shape, parameter, gradient, state, rate, step }: UpdateOperands) -> Vec<Array> {
        let [keep, add, of_buffer, of_gradient] = self.weights(step as f32).map(f64::from);
        let gradient = |i: usize| gradient[i] + f64::from(self.weight_decay) * parameter[i];
        let buffer = Array::from_fn(shape, |i| keep * state[0][i] + add * gradient(i));
        let parameter =
            Array::from_fn(shape, |i| parameter[i] - rate * (of_buffer * buffer.data()[i] + of_gradient * gradient(i)));
        vec![parameter, buffer]
    }
}

/// An exponential moving average: `decay · average + (1 - decay) · value`; the old average if the norm is not finite.
///
/// Inputs: `average` and `value` of one shape, the scalars `decay` and global `norm`. Output: the new average.
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

    fn in_place(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// The new value of a parameter if the norm is finite, otherwise the old one.
///
/// Inputs: `old` and `new` of one shape, the scalar global `norm`. Output: one of the first two.
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

    fn in_place(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Algorithm 2 of the paper by hand: `c = 0.9 m + 0.1 g`, `θ -= 0.1 (sign(c) + 0.5 θ)`, `m = 0.99 m + 0.01 g`.
    #[test]
    fn lion_is_that_of_the_paper() {
        let lion = |clip| {
            OptimiserUpdate::from(Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.5, scheduled_decay: false, clip })
        };
        let update = |clip, gradient: [f64; 5], momentum: [f64; 5], norm: f64| {
            let vector = |values: [f64; 5]| Array::new([5], values.to_vec());
            let scalar = |value: f64| Array::filled(Shape::default(), value);
            let parameter = [1.0, -2.0, 0.5, 3.0, 4.0];
            let inputs =
                [vector(parameter), vector(gradient), vector(momentum), scalar(0.1), scalar(1.0), scalar(norm)];
            lion(clip).evaluate(&inputs.each_ref(), &[Type::f32([5]), Type::f32([5])])
        };
        let close = |found: &Array, expected: [f64; 5]| {
            let same = |(f, e): (&f64, f64)| (f - e).abs() < 1e-7 || (f.is_nan() && e.is_nan());
            assert!(found.data().iter().zip(expected).all(same), "{found:?} and {expected:?}");
        };
        // The momentum decides the second sign; zeros give 0, NaN stays NaN.
        let (gradient, momentum) = ([2.0, 1.0, 0.0, -0.3, 1.0], [0.0, -1.0, 0.0, 0.03, f64::NAN]);
        let found = update(None, gradient, momentum, 1.0);
        close(&found[0], [0.85, -1.8, 0.475, 2.95, f64::NAN]);
        close(&found[1], [0.02, -0.98, 0.0, 0.0267, f64::NAN]);
        // Clipping halves the gradient; a norm that is not finite changes nothing.
        close(&update(Some(1.0), gradient, momentum, 2.0 - 1e-6)[1], [0.01, -0.985, 0.0, 0.0282, f64::NAN]);
        close(&update(None, gradient, momentum, f64::INFINITY)[0], [1.0, -2.0, 0.5, 3.0, 4.0]);
    }
}
