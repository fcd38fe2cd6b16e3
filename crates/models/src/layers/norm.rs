//! Norms over the channels of each token or pixel.

use vit_graph::ops::{Constant, LayerNorm};
use vit_graph::{Init, Tensor};

/// A norm over the last axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Layer norm (Ba et al., 2016).
    Layer,
    /// RMS norm (Zhang and Sennrich, 2019): no mean is subtracted, and there is no bias.
    Rms,
}

impl NormKind {
    /// Normalises.
    pub fn apply(self, x: &Tensor, epsilon: f32, name: &str) -> Tensor {
        self.apply_from(x, epsilon, Init::Ones, name)
    }

    /// A norm with a given initialisation of its weight.
    pub fn apply_from(self, x: &Tensor, epsilon: f32, init: Init, name: &str) -> Tensor {
        let _scope = x.scope(name);
        let dim = x.shape().last();
        let weight = x.parameter("weight", [dim], init);
        match self {
            NormKind::Layer => x.layer_norm(&weight, &x.parameter("bias", [dim], Init::Zeros), epsilon),
            NormKind::Rms => x.rms_norm(&weight, epsilon),
        }
    }
}

/// Layer norm over the last axis.
pub fn layer_norm(x: &Tensor, epsilon: f32, name: &str) -> Tensor {
    NormKind::Layer.apply(x, epsilon, name)
}

/// Every row `[rows, dim]` at length 1: an RMS norm with the constant weight `1 / √dim`.
pub fn unit_length(x: &Tensor) -> Tensor {
    /// Added to the mean square, so that a row of zeros stays one; too small to be seen elsewhere.
    const EPSILON: f32 = 1e-20;
    let dim = x.shape().last();
    let weight = x.constant(Constant::filled([dim], (dim.max(1) as f32).powf(-0.5)));
    let bias = x.constant(Constant::filled([dim], 0.0));
    x.apply(LayerNorm::rms(EPSILON), &[&weight, &bias])
}
