//! Random indices of a sample's tokens, with counter-based random numbers, and gathering and scattering of tokens by
//! index: patch dropout, masked autoencoders, masked patch prediction.

use super::dropout::seed_of;
use super::{Operation, arity, expect_rank, expect_seed, expect_shape};
use crate::autodiff::Backward;
use crate::random::Seed;
use crate::reference::Array;
use crate::{DType, GraphError, Type};

/// The most tokens of a sample: GPUs rank them in shared memory.
const MAX_TOKENS: usize = 4096;

/// A random permutation of every sample's tokens: first a random subset, then the others, both ascending.
///
/// Input: `seed i32[4]`. Output: `i32 [samples, tokens]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomPartition {
    /// Samples of the batch.
    pub samples: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// The size of the subset.
    pub chosen: usize,
    /// The index of its random stream, unique in the graph.
    pub stream: u32,
}

impl RandomPartition {
    /// Writes the permutation of one sample to `order`. The subset has the tokens with the smallest random words, the
    /// first of equal ones. `words` is scratch; both slices have one element per token.
    pub fn order(&self, seed: Seed, sample: usize, words: &mut [u32], order: &mut [i32]) {
        for (token, word) in words.iter_mut().enumerate() {
            *word = seed.word(self.stream, (sample * self.tokens + token) as u64);
        }
        let rank = |token: usize| {
            let smaller = |(other, word): (usize, &u32)| (*word, other) < (words[token], token);
            words.iter().enumerate().filter(|&other| smaller(other)).count()
        };
        let (chosen, others) = order.split_at_mut(self.chosen);
        let (mut chosen, mut others) = (chosen.iter_mut(), others.iter_mut());
        for token in 0..self.tokens {
            let place = if rank(token) < self.chosen { chosen.next() } else { others.next() };
            place.into_iter().for_each(|place| *place = token as i32);
        }
    }
}

impl Operation for RandomPartition {
    fn name(&self) -> &'static str {
        "random_partition"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        expect_seed(&inputs[0])?;
        let RandomPartition { samples, tokens, chosen, .. } = *self;
        if !(1..=tokens).contains(&chosen) || tokens > MAX_TOKENS {
            return Err(format!("{chosen} of {tokens} tokens cannot be chosen; at most {MAX_TOKENS} are supported"));
        }
        Ok(vec![Type::new(DType::I32, [samples, tokens])])
    }

    /// The indices depend on nothing that has a gradient.
    fn gradient(&self, _: &mut Backward) -> Result<(), GraphError> {
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let seed = seed_of(inputs[0]);
        let (mut words, mut order) = (vec![0; self.tokens], vec![0; self.tokens]);
        let mut data = Vec::with_capacity(self.samples * self.tokens);
        for sample in 0..self.samples {
            self.order(seed, sample, &mut words, &mut order);
            data.extend(order.iter().map(|&token| f64::from(token)));
        }
        vec![Array::new(outputs[0].shape.clone(), data)]
    }

    fn random_stream(&mut self) -> Option<&mut u32> {
        Some(&mut self.stream)
    }
}

/// The source of every token in masked prediction as in BERT and the ViT paper (appendix B.1.2). Of the corrupted
/// tokens, 80% become a mask token, 10% another token of the sample, and 10% stay as they are.
///
/// Inputs: `order i32 [samples, tokens]`, a permutation that starts with the corrupted tokens; `seed i32[4]`. Output:
/// `i32 [samples, tokens]`, the index of a token of the sample, or the number of tokens for the mask token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCorruption {
    /// How many tokens are corrupted.
    pub corrupted: usize,
    /// The index of its random stream, unique in the graph.
    pub stream: u32,
}

impl TokenCorruption {
    /// 80% and 90% of 2^32. Corrupted tokens whose random word is below the first are masked, those from there to below
    /// the second are replaced.
    pub const THRESHOLDS: [u32; 2] = [3_435_973_836, 3_865_470_566];

    /// Writes the source of each token of one sample to `sources`, which is as long as `order`.
    pub fn sources(&self, seed: Seed, sample: usize, order: &[i32], sources: &mut [i32]) {
        let tokens = order.len();
        for (place, &token) in order.iter().enumerate() {
            let at = 2 * (sample * tokens + place) as u64;
            let (kind, other) = (seed.word(self.stream, at), seed.word(self.stream, at + 1));
            let Some(source) = usize::try_from(token).ok().and_then(|token| sources.get_mut(token)) else { continue };
            let [masked, replaced] = Self::THRESHOLDS;
            *source = if place >= self.corrupted || kind >= replaced || (kind >= masked && tokens == 1) {
                token
            } else if kind < masked {
                tokens as i32
            } else {
                // One of the others: the indices from `token` on move up by one.
                let other = (other % (tokens as u32 - 1)) as i32;
                other + i32::from(other >= token)
            };
        }
    }
}

impl Operation for TokenCorruption {
    fn name(&self) -> &'static str {
        "token_corruption"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_order(&inputs[0])?;
        expect_seed(&inputs[1])?;
        Ok(vec![inputs[0].clone()])
    }

    /// The indices depend on nothing that has a gradient.
    fn gradient(&self, _: &mut Backward) -> Result<(), GraphError> {
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (seed, tokens) = (seed_of(inputs[1]), outputs[0].shape[1]);
        let (mut data, mut sources) = (Vec::new(), vec![0; tokens]);
        for (sample, order) in inputs[0].data().chunks(tokens.max(1)).enumerate() {
            let order: Vec<i32> = order.iter().map(|&token| token as i32).collect();
            self.sources(seed, sample, &order, &mut sources);
            data.extend(sources.iter().map(|&source| f64::from(source)));
        }
        vec![Array::new(outputs[0].shape.clone(), data)]
    }

    fn random_stream(&mut self) -> Option<&mut u32> {
        Some(&mut self.stream)
    }
}

fn expect_order(order: &Type) -> Result<(), String> {
    expect_rank("the indices", order, 2)?;
    if order.dtype == DType::I32 { Ok(()) } else { Err(format!("indices should be i32, not {}", order.dtype)) }
}

/// Tokens of every sample by index. Inputs: `x [samples, tokens, width]`, `order i32 [samples, places]`. Output:
/// `[samples, count, width]`, the tokens at the places from `start` on. An index outside the tokens gives zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatherTokens {
    /// The first place.
    pub start: usize,
    /// How many places.
    pub count: usize,
}

impl Operation for GatherTokens {
    fn name(&self) -> &'static str {
        "gather_tokens"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_rank("the tokens", &inputs[0], 3)?;
        expect_order(&inputs[1])?;
        let [samples, places] = [0, 1].map(|axis| inputs[1].shape[axis]);
        expect_shape("the tokens", &inputs[0], &inputs[0].shape.with(0, samples))?;
        if self.start + self.count > places {
            return Err(format!("places {} to {} are not among {places}", self.start, self.start + self.count));
        }
        Ok(vec![Type::new(inputs[0].dtype, inputs[0].shape.with(1, self.count))])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (dy, order) = (b.dy()?, b.input(1));
        let tokens = b.graph.shape(b.input(0))[1];
        let dx = b.graph.value(ScatterTokens { start: self.start, tokens }, &[dy, order])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, order) = (inputs[0], inputs[1]);
        let [tokens, width, places] = [x.shape()[1], x.shape()[2], order.shape()[1]];
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        for (row, y) in y.data_mut().chunks_mut(width.max(1)).enumerate() {
            let (sample, place) = (row / self.count, row % self.count);
            let token = order.data()[sample * places + self.start + place];
            if token >= 0.0 && (token as usize) < tokens {
                y.copy_from_slice(&x.data()[(sample * tokens + token as usize) * width..][..width]);
            }
        }
        vec![y]
    }
}

/// The transpose of [`GatherTokens`]: every token is the sum of the rows whose place has its index, in the order of the
/// places. Inputs: `x [samples, count, width]`, `order i32 [samples, places]`. Output: `[samples, tokens, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScatterTokens {
    /// The place of the first row.
    pub start: usize,
    /// Tokens of a sample.
    pub tokens: usize,
}

impl Operation for ScatterTokens {
    fn name(&self) -> &'static str {
        "scatter_tokens"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_rank("the tokens", &inputs[0], 3)?;
        expect_order(&inputs[1])?;
        let [samples, places] = [0, 1].map(|axis| inputs[1].shape[axis]);
        expect_shape("the tokens", &inputs[0], &inputs[0].shape.with(0, samples))?;
        let end = self.start + inputs[0].shape[1];
        if end > places {
            return Err(format!("places {} to {end} are not among {places}", self.start));
        }
        Ok(vec![Type::new(inputs[0].dtype, inputs[0].shape.with(1, self.tokens))])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (dy, order) = (b.dy()?, b.input(1));
        let count = b.graph.shape(b.input(0))[1];
        let dx = b.graph.value(GatherTokens { start: self.start, count }, &[dy, order])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, order) = (inputs[0], inputs[1]);
        let [count, width, places] = [x.shape()[1], x.shape()[2], order.shape()[1]];
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        for (row, x) in x.data().chunks(width.max(1)).enumerate() {
            let (sample, place) = (row / count, row % count);
            let token = order.data()[sample * places + self.start + place];
            if token >= 0.0 && (token as usize) < self.tokens {
                let y = &mut y.data_mut()[(sample * self.tokens + token as usize) * width..][..width];
                y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
            }
        }
        vec![y]
    }
}

/// The class of the mean colour of every cell of an image: each channel, from 0 to 1, is quantised to 8 levels, and the
/// levels are the octal digits of the class.
///
/// Input: `[samples, channels, height, width]`, normalised. Output: `i32 [samples, rows, columns]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ColourClass {
    /// Height and width of a cell.
    pub cell: [usize; 2],
    /// The mean of each channel that was subtracted.
    pub mean: Vec<f32>,
    /// The deviation of each channel that was divided by.
    pub std: Vec<f32>,
}

impl ColourClass {
    /// Levels of a channel.
    pub const LEVELS: usize = 8;

    /// The class of a cell, from the sum of each channel's pixels. All of it in f64 and in this order, so that devices
    /// agree.
    pub fn class(&self, sums: impl Iterator<Item = f64>) -> i32 {
        let pixels = (self.cell[0] * self.cell[1]) as f64;
        let channels = self.mean.iter().zip(&self.std);
        sums.zip(channels).fold(0, |class, (sum, (&mean, &std))| {
            let colour = sum / pixels * f64::from(std) + f64::from(mean);
            let level = (colour * Self::LEVELS as f64).floor().clamp(0.0, Self::LEVELS as f64 - 1.0);
            class * Self::LEVELS as i32 + level as i32
        })
    }
}

impl Operation for ColourClass {
    fn name(&self) -> &'static str {
        "colour_class"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        expect_rank("the image", &inputs[0], 4)?;
        let [samples, channels, height, width] = [0, 1, 2, 3].map(|axis| inputs[0].shape[axis]);
        let [high, wide] = self.cell;
        if !(1..=8).contains(&channels) || self.mean.len() != channels || self.std.len() != channels {
            return Err(format!("a colour has from 1 to 8 channels with mean and deviation, not {channels}"));
        }
        if high == 0 || wide == 0 || !height.is_multiple_of(high) || !width.is_multiple_of(wide) {
            return Err(format!("{height}x{width} pixels cannot be divided into cells of {high}x{wide}"));
        }
        Ok(vec![Type::new(DType::I32, [samples, height / high, width / wide])])
    }

    /// Classes have no gradient.
    fn gradient(&self, _: &mut Backward) -> Result<(), GraphError> {
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [channels, height, width] = [1, 2, 3].map(|axis| inputs[0].shape()[axis]);
        let [rows, columns] = [1, 2].map(|axis| outputs[0].shape[axis]);
        let [high, wide] = self.cell;
        let class = |cell: usize| {
            let (sample, row, column) = (cell / (rows * columns), cell / columns % rows, cell % columns);
            let sum = |channel: usize| {
                let plane = &inputs[0].data()[(sample * channels + channel) * height * width..];
                let line = |y: usize| &plane[(row * high + y) * width + column * wide..][..wide];
                (0..high).flat_map(line).sum::<f64>()
            };
            f64::from(self.class((0..channels).map(sum)))
        };
        vec![Array::from_fn(&outputs[0].shape, class)]
    }

    fn input_precision(&self, _: usize) -> super::InputPrecision {
        super::InputPrecision::F32
    }
}
