//! The layers that architectures share; parameters have timm's names.

mod building;
mod continuous_bias;
mod conv;
mod cosine;
mod mlp;
mod norm;
mod patches;
mod relative;
mod residual;

pub(crate) use building::Forward;
pub use building::{Building, Norm, drop_path_rate};
pub use continuous_bias::{CONTINUOUS_BIAS_DROPOUT, ContinuousBias, ContinuousForm};
pub use conv::{Conv, Padding, Standardise, average_down, channels_last, max_pool, pointwise};
pub use cosine::cosine_qkv;
pub use mlp::{Gate, Mlp, linear_parts, mlp};
pub use norm::{NormKind, layer_norm, unit_length};
pub use patches::refuses_patches;
pub use relative::{PrefixBias, TABLE, offsets, relative_bias, relative_index, window_bias};
pub use residual::{NetworkStrides, ResidualBlock, Stem, residual_stages, stages_contradiction};

use vit_graph::ops::{Activation, Constant};
use vit_graph::{Init, Tensor};

/// The uniform initialisation of Glorot and Bengio (2010), as in the paper's code.
pub fn glorot(inputs: usize, outputs: usize) -> Init {
    Init::Uniform { bound: (6.0 / (inputs + outputs).max(1) as f32).sqrt() }
}

/// The purpose of a graph: dropout and batch statistics are part of training only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Mode {
    Inference,
    Training,
}

/// `x Wᵀ + b`.
pub fn linear(x: &Tensor, features: usize, bias: bool, name: &str) -> Tensor {
    linear_from(x, features, bias, glorot(x.shape().last(), features), name)
}

/// A linear layer with a given initialisation of its weight.
pub fn linear_from(x: &Tensor, features: usize, bias: bool, init: Init, name: &str) -> Tensor {
    let _scope = x.scope(name);
    let weight = x.parameter("weight", [features, x.shape().last()], init);
    let bias = bias.then(|| x.parameter("bias", [features], Init::Zeros));
    x.linear(&weight, bias.as_ref())
}

/// The bias of stacked projections to query, key and value, `[3·width]`, of models whose keys have none (BEiT, Swin V2).
pub fn query_value_bias(x: &Tensor, width: usize) -> Tensor {
    let zeros = x.constant(Constant::filled([width], 0.0));
    let part = |name| x.parameter(name, [width], Init::Zeros);
    Tensor::concat(&[&part("q_bias"), &zeros, &part("v_bias")], 0)
}

/// Layer scale (Touvron et al., 2021): one learned factor per channel.
pub fn layer_scale(x: &Tensor, initial: f32, name: &str) -> Tensor {
    let _scope = x.scope(name);
    x * &x.parameter("gamma", [x.shape().last()], Init::Constant(initial))
}

/// Squeeze-excitation (Hu et al., 2018): channels are scaled by gates that an MLP computes from their means. Its two layers
/// are stored as 1x1 filters under these names.
pub fn squeeze_excite(x: &Tensor, hidden: usize, act: Activation, [reduce, expand]: [&str; 2], name: &str) -> Tensor {
    let _scope = x.scope(name);
    let (batch, channels) = (x.extent(0), x.extent(3));
    let init = |fan_out: usize| Init::Normal { std: (2.0 / fan_out.max(1) as f32).sqrt() };
    let h = pointwise(&x.mean([1, 2]), hidden, init(hidden), reduce).activation(act);
    let gate = pointwise(&h, channels, init(channels), expand).activation(Activation::Sigmoid);
    x * &gate.reshape([batch, 1, 1, channels])
}

/// A classification head after global average pooling: `features` and, if there are classes, `logits`.
pub fn head(features: &Tensor, classes: usize, name: &str) {
    features.output("features");
    if classes > 0 {
        linear_from(features, classes, true, Init::Zeros, name).output("logits");
    }
}

/// A width rounded to a multiple of 8, at most a tenth smaller (MobileNet's rule).
pub fn round_width(width: f64) -> usize {
    let rounded = (((width + 4.0) as usize) / 8 * 8).max(8);
    if (rounded as f64) < 0.9 * width { rounded.saturating_add(8) } else { rounded }
}
