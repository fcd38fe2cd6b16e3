//! Dropout and stochastic depth, with counter-based random numbers.

use super::{Operation, arity, expect_seed};
use crate::autodiff::Backward;
use crate::random::Seed;
use crate::reference::Array;
use crate::{GraphError, Type};

/// The elements that share one random decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// One element: dropout.
    Element,
    /// One entry of the first axis: stochastic depth, which drops a whole residual branch of a sample.
    Sample,
}

/// Zeroes a fraction `rate` of the input and scales the rest by `1 / (1 - rate)`. Inputs: `x`, `seed i32[4]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// The probability of zero, below 1.
    pub rate: f32,
    /// The index of its random stream, unique in the graph.
    pub stream: u32,
    /// Elements or whole samples.
    pub granularity: Granularity,
}

impl Dropout {
    /// The number of elements that share one decision.
    pub fn elements_per_decision(&self, ty: &Type) -> usize {
        match self.granularity {
            Granularity::Element => 1,
            Granularity::Sample => ty.shape.elements() / ty.shape.first().copied().unwrap_or(1).max(1),
        }
    }
}

/// The seed in an array.
pub(super) fn seed_of(array: &Array) -> Seed {
    let word = |i: usize| array.data()[i] as i32;
    Seed([word(0), word(1), word(2), word(3)])
}

/// Checks that a rate is in `0..1`.
pub(super) fn check_rate(rate: f32) -> Result<(), String> {
    if (0.0..1.0).contains(&rate) { Ok(()) } else { Err(format!("the rate {rate} is not in 0..1")) }
}

impl Operation for Dropout {
    fn name(&self) -> &'static str {
        match self.granularity {
            Granularity::Element => "dropout",
            Granularity::Sample => "drop_path",
        }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        check_rate(self.rate)?;
        expect_seed(&inputs[1])?;
        Ok(vec![inputs[0].clone()])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (dy, seed) = (b.dy()?, b.input(1));
        let dx = b.graph.value(*self, &[dy, seed])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, seed) = (inputs[0].data(), seed_of(inputs[1]));
        let per_decision = self.elements_per_decision(&outputs[0]);
        let value = |i: usize| {
            let kept = seed.keeps(self.stream, (i / per_decision) as u64, self.rate);
            // `0.0 * x` keeps a NaN.
            if kept { x[i] / (1.0 - f64::from(self.rate)) } else { 0.0 * x[i] }
        };
        vec![Array::from_fn(&outputs[0].shape, value)]
    }

    /// Masks of single elements depend on their positions.
    fn row_inputs(&self, inputs: &[Type], _: &Type) -> Option<Vec<bool>> {
        (self.granularity == Granularity::Sample).then(|| (0..inputs.len()).map(|i| i == 0).collect())
    }

    fn random_stream(&mut self) -> Option<&mut u32> {
        Some(&mut self.stream)
    }
}
