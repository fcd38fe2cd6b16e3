//! Norms over the channels of each token or pixel.

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
