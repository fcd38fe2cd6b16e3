//! A graph that is being built: whether it is for training, and the seed of its dropout.

use vit_graph::ops::{BatchNorm, Constant, Dropout, Granularity, GroupNorm};
use vit_graph::{DType, Init, Shape, Tensor};

use super::{Mode, layer_norm};

/// A normalisation and its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Norm {
    /// Over the batch while training, with running statistics afterwards.
    Batch { epsilon: f32, momentum: f32 },
    /// Over pixels and groups of channels.
    Group { groups: usize, epsilon: f32 },
    /// Over the channels of each pixel.
    Layer { epsilon: f32 },
}

impl Norm {
    /// Batch norm as PyTorch has it by default.
    pub const BATCH: Norm = Norm::Batch { epsilon: 1e-5, momentum: 0.1 };
}

/// What layers depend on besides their input.
pub struct Building {
    mode: Mode,
    seed: Option<Tensor>,
}

/// The forward pass of a network: each architecture's layers are methods of `Forward<'_, Itself>`.
pub(crate) struct Forward<'a, N> {
    pub net: &'a N,
    pub building: &'a Building,
}

impl Building {
    /// Starts a graph with its input `image [batch, channels, height, width]`, and `seed` if it is trained with one of these
    /// rates of dropout above zero.
    pub fn start(
        batch: usize,
        channels: usize,
        [height, width]: [usize; 2],
        mode: Mode,
        rates: &[f32],
    ) -> (Tensor, Building) {
        let image = Tensor::input("image", DType::F32, [batch, channels, height, width]);
        let random = mode == Mode::Training && rates.iter().any(|&rate| rate > 0.0);
        let seed = random.then(|| image.another_input("seed", DType::I32, [4]));
        (image, Building { mode, seed })
    }

    /// The seed of a graph for training that draws random numbers.
    pub fn seed(&self) -> Option<&Tensor> {
        self.seed.as_ref()
    }

    /// Normalises a channels-last value.
    pub fn norm(&self, x: &Tensor, norm: Norm, name: &str) -> Tensor {
        let channels = x.shape().last();
        let affine = || (x.parameter("weight", [channels], Init::Ones), x.parameter("bias", [channels], Init::Zeros));
        match norm {
            Norm::Layer { epsilon } => layer_norm(x, epsilon, name),
            Norm::Group { groups, epsilon } => {
                let _scope = x.scope(name);
                let (weight, bias) = affine();
                x.group_norm(GroupNorm { groups, epsilon }, &weight, &bias)
            }
            Norm::Batch { epsilon, momentum } => {
                let _scope = x.scope(name);
                let (weight, bias) = affine();
                let mean = x.statistic("running_mean", [channels], Init::Zeros);
                let variance = x.statistic("running_var", [channels], Init::Ones);
                if self.mode == Mode::Training {
                    let op = BatchNorm { epsilon, momentum };
                    let outputs = x.apply_outputs(op, &[&weight, &bias, &mean, &variance], 5);
                    mean.update(&outputs[3]);
                    variance.update(&outputs[4]);
                    return outputs[0].clone();
                }
                let epsilon = x.constant(Constant::filled(Shape::default(), epsilon));
                let scale = weight * (variance + epsilon).power(-0.5);
                let shift = bias - mean * &scale;
                x * &scale + shift
            }
        }
    }

    /// Dropout of single elements.
    pub fn dropout(&self, x: Tensor, rate: f32) -> Tensor {
        match &self.seed {
            Some(seed) if rate > 0.0 => x.dropout(rate, Granularity::Element, seed),
            _ => x,
        }
    }

    /// Dropout of attention weights, as the attribute and the last input of an attention operation.
    pub fn attention_dropout(&self, x: &Tensor, rate: f32) -> (Option<Dropout>, Option<&Tensor>) {
        match &self.seed {
            Some(seed) if rate > 0.0 => {
                let dropout = Dropout { rate, stream: x.random_stream(), granularity: Granularity::Element };
                (Some(dropout), Some(seed))
            }
            _ => (None, None),
        }
    }

    /// Patch dropout (Liu et al., 2022): a random part of every sample's tokens is left out, but none of the first `prefix`.
    pub fn drop_tokens(&self, x: Tensor, prefix: usize, rate: f32) -> Tensor {
        let Some(seed) = self.seed.as_ref().filter(|_| rate > 0.0) else { return x };
        let count = x.extent(1).saturating_sub(prefix);
        let kept = (count as f64 * (1.0 - f64::from(rate))) as usize;
        let subset = |patches: &Tensor| {
            let order = seed.random_partition(patches.extent(0), count, kept.max(1));
            patches.gather_tokens(&order, 0..kept.max(1))
        };
        if prefix == 0 {
            return subset(&x);
        }
        Tensor::concat(&[&x.slice(1, 0, prefix), &subset(&x.slice(1, prefix, count))], 1)
    }

    /// Stochastic depth: a residual branch is dropped for whole samples.
    pub fn drop_path(&self, x: Tensor, rate: f32) -> Tensor {
        match &self.seed {
            Some(seed) if rate > 0.0 => x.dropout(rate, Granularity::Sample, seed),
            _ => x,
        }
    }
}

/// The rate of stochastic depth of one block: it grows linearly from the first to the last.
pub fn drop_path_rate(rate: f32, block: usize, blocks: usize) -> f32 {
    rate * block as f32 / blocks.saturating_sub(1).max(1) as f32
}
