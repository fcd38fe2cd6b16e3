//! Uniformly distributed random values, for augmentation inside a model.

use super::dropout::seed_of;
use super::{InputPrecision, Operation, arity, expect_seed};
use crate::autodiff::Backward;
use crate::random::Seed;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// Values in `low..high`, one for each element of `shape`. Input: `seed i32[4]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Uniform {
    /// The result's shape.
    pub shape: Shape,
    /// The lower bound, included.
    pub low: f32,
    /// The upper bound.
    pub high: f32,
    /// The index of its random stream, unique in the graph.
    pub stream: u32,
}

impl Uniform {
    /// Element `index`: the upper 24 bits of a random word, which are exact in f32.
    pub fn value(&self, seed: Seed, index: u64) -> f32 {
        let fraction = (seed.word(self.stream, index) >> 8) as f32 * 2f32.powi(-24);
        self.low + (self.high - self.low) * fraction
    }
}

impl Operation for Uniform {
    fn name(&self) -> &'static str {
        "uniform"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        expect_seed(&inputs[0])?;
        Ok(vec![Type::f32(self.shape.clone())])
    }

    /// The values depend on nothing that has a gradient.
    fn gradient(&self, _: &mut Backward) -> Result<(), GraphError> {
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let seed = seed_of(inputs[0]);
        vec![Array::from_fn(&outputs[0].shape, |i| f64::from(self.value(seed, i as u64)))]
    }

    fn input_precision(&self, _: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _: usize) -> bool {
        true
    }

    fn random_stream(&mut self) -> Option<&mut u32> {
        Some(&mut self.stream)
    }
}
