//! A random subset of a sample's tokens ("patch dropout"), with counter-based random numbers.

use super::dropout::seed_of;
use super::{Operation, arity, expect_rank, expect_seed, expect_shape};
use crate::autodiff::Backward;
use crate::random::Seed;
use crate::reference::Array;
use crate::{GraphError, Type};

/// The most tokens of a sample: GPUs rank them in shared memory.
const MAX_TOKENS: usize = 4096;

/// Keeps some tokens of every sample, in their order. Inputs: `x [batch, tokens, width]`, `seed i32[4]`. Output: `[batch,
/// keep, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenSubset {
    /// How many tokens are kept.
    pub keep: usize,
    /// The index of its random stream, unique in the graph.
    pub stream: u32,
}

impl TokenSubset {
    /// The kept tokens of a sample, ascending: those with the smallest random words, the first of equal ones. `words` is
    /// scratch with one element per token.
    pub fn kept<'a>(&self, seed: Seed, sample: usize, words: &'a mut [u32]) -> impl Iterator<Item = usize> + 'a {
        let (keep, tokens) = (self.keep, words.len());
        for (token, word) in words.iter_mut().enumerate() {
            *word = seed.word(self.stream, (sample * tokens + token) as u64);
        }
        let words = &*words;
        let rank = move |token: usize| {
            let smaller = |(other, word): (usize, &u32)| (*word, other) < (words[token], token);
            words.iter().enumerate().filter(|&other| smaller(other)).count()
        };
        (0..tokens).filter(move |&token| rank(token) < keep)
    }

    fn check(&self, tokens: usize) -> Result<(), String> {
        if !(1..=tokens).contains(&self.keep) || tokens > MAX_TOKENS {
            return Err(format!("{} of {tokens} tokens cannot be kept; at most {MAX_TOKENS} are supported", self.keep));
        }
        Ok(())
    }
}

impl Operation for TokenSubset {
    fn name(&self) -> &'static str {
        "token_subset"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_rank("the tokens", &inputs[0], 3)?;
        expect_seed(&inputs[1])?;
        self.check(inputs[0].shape[1])?;
        Ok(vec![Type::new(inputs[0].dtype, inputs[0].shape.with(1, self.keep))])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (dy, seed) = (b.dy()?, b.input(1));
        let tokens = b.graph.shape(b.input(0))[1];
        let dx = b.graph.value(TokenSubsetGrad { subset: *self, tokens }, &[dy, seed])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, seed) = (inputs[0], seed_of(inputs[1]));
        let [batch, tokens, width] = [0, 1, 2].map(|axis| x.shape()[axis]);
        let (mut data, mut words) = (Vec::new(), vec![0; tokens]);
        for sample in 0..batch {
            for token in self.kept(seed, sample, &mut words) {
                data.extend_from_slice(&x.data()[(sample * tokens + token) * width..][..width]);
            }
        }
        vec![Array::new(outputs[0].shape.clone(), data)]
    }

    fn random_stream(&mut self) -> Option<&mut u32> {
        Some(&mut self.stream)
    }
}

/// The gradient of [`TokenSubset`]: from `dy` and `seed`; zeros for tokens that were not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenSubsetGrad {
    /// The operation.
    pub subset: TokenSubset,
    /// The tokens of which it keeps some.
    pub tokens: usize,
}

impl Operation for TokenSubsetGrad {
    fn name(&self) -> &'static str {
        "token_subset_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_rank("dy", &inputs[0], 3)?;
        expect_seed(&inputs[1])?;
        self.subset.check(self.tokens)?;
        expect_shape("dy", &inputs[0], &inputs[0].shape.with(1, self.subset.keep))?;
        Ok(vec![Type::new(inputs[0].dtype, inputs[0].shape.with(1, self.tokens))])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, seed, width) = (inputs[0].data(), seed_of(inputs[1]), outputs[0].shape[2]);
        let mut dx = Array::from_fn(&outputs[0].shape, |_| 0.0);
        let (tokens, keep) = (self.tokens, self.subset.keep);
        let mut words = vec![0; tokens];
        for sample in 0..outputs[0].shape[0] {
            for (place, token) in self.subset.kept(seed, sample, &mut words).enumerate() {
                let from = &dy[(sample * keep + place) * width..][..width];
                dx.data_mut()[(sample * tokens + token) * width..][..width].copy_from_slice(from);
            }
        }
        vec![dx]
    }

    fn random_stream(&mut self) -> Option<&mut u32> {
        Some(&mut self.subset.stream)
    }
}
