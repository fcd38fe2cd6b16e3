//! The layers that architectures share, each a function that names its parameters as timm does.

use vit_graph::ops::Activation;
use vit_graph::{Init, Tensor};

/// How weight matrices start: as in timm and in the JAX code's token embeddings.
const MATRIX: Init = Init::TruncatedNormal { std: 0.02 };

/// Whether a graph is built to be trained: only then is there anything random in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Mode {
    Inference,
    Training,
}

/// `x Wᵀ + b`.
pub fn linear(x: &Tensor, features: usize, bias: bool, name: &str) -> Tensor {
    linear_from(x, features, bias, MATRIX, name)
}

/// A linear layer whose weight starts in a given way.
pub fn linear_from(x: &Tensor, features: usize, bias: bool, init: Init, name: &str) -> Tensor {
    let _scope = x.scope(name);
    let weight = x.parameter("weight", [features, x.shape().last()], init);
    let bias = bias.then(|| x.parameter("bias", [features], Init::Zeros));
    x.linear(&weight, bias.as_ref())
}

/// Layer norm over the last axis.
pub fn layer_norm(x: &Tensor, epsilon: f32, name: &str) -> Tensor {
    let _scope = x.scope(name);
    let dim = x.shape().last();
    let (weight, bias) = (x.parameter("weight", [dim], Init::Ones), x.parameter("bias", [dim], Init::Zeros));
    x.layer_norm(&weight, &bias, epsilon)
}

/// Two linear layers with an activation between them; `drop` is applied after each.
pub fn mlp(x: &Tensor, hidden: usize, act: Activation, drop: impl Fn(Tensor) -> Tensor, name: &str) -> Tensor {
    let _scope = x.scope(name);
    let h = drop(linear(x, hidden, true, "fc1").activation(act));
    drop(linear(&h, x.shape().last(), true, "fc2"))
}

/// Learned factors, one per channel, that start near zero.
pub fn layer_scale(x: &Tensor, initial: f32, name: &str) -> Tensor {
    let _scope = x.scope(name);
    x * &x.parameter("gamma", [x.shape().last()], Init::Constant(initial))
}
