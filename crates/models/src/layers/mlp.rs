//! The MLP of a block: two linear layers with an activation between them, or a gated linear unit (Shazeer, 2020).

use vit_graph::ops::Activation;
use vit_graph::{Init, Tensor};

use super::{NormKind, glorot, linear};

/// How the hidden layer is gated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Not at all: `activation(fc1 x)`.
    None,
    /// `activation(g) · h`, where `g` and `h` are the halves of `fc1 x`.
    Packed,
    /// `activation(fc1_g x) · fc1_x x`.
    Separate,
}

/// The choices of an MLP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mlp {
    /// Width of the hidden layer, after the gate.
    pub hidden: usize,
    /// Its activation, or that of the gate.
    pub activation: Activation,
    /// How it is gated.
    pub gate: Gate,
    /// Whether the linear layers have biases.
    pub bias: bool,
    /// A norm on the hidden layer, with its epsilon.
    pub norm: Option<(NormKind, f32)>,
}

impl Mlp {
    /// Two linear layers with biases, without a gate or a norm.
    pub fn plain(hidden: usize, activation: Activation) -> Self {
        Mlp { hidden, activation, gate: Gate::None, bias: true, norm: None }
    }

    /// The MLP; `drop` is applied after each layer.
    pub fn apply(&self, x: &Tensor, drop: impl Fn(Tensor) -> Tensor, name: &str) -> Tensor {
        let _scope = x.scope(name);
        let mut h = drop(self.hidden_layer(x));
        if let Some((kind, epsilon)) = self.norm {
            h = kind.apply(&h, epsilon, "norm");
        }
        drop(linear(&h, x.shape().last(), self.bias, "fc2"))
    }

    fn hidden_layer(&self, x: &Tensor) -> Tensor {
        let Mlp { hidden, activation, bias, .. } = *self;
        match self.gate {
            Gate::None => linear(x, hidden, bias, "fc1").activation(activation),
            Gate::Packed => {
                let [gate, value] = linear_parts(x, [hidden, hidden], bias, "fc1");
                gate.activation(activation) * value
            }
            Gate::Separate => {
                linear(x, hidden, bias, "fc1_g").activation(activation) * linear(x, hidden, bias, "fc1_x")
            }
        }
    }
}

/// Two linear layers with an activation between them; `drop` is applied after each.
pub fn mlp(x: &Tensor, hidden: usize, act: Activation, drop: impl Fn(Tensor) -> Tensor, name: &str) -> Tensor {
    Mlp::plain(hidden, act).apply(x, drop, name)
}

/// Linear layers of these widths whose weights are stacked in one parameter. The weights are sliced, not the results: they
/// are smaller, and each layer can have its own epilogue.
pub fn linear_parts<const N: usize>(x: &Tensor, widths: [usize; N], bias: bool, name: &str) -> [Tensor; N] {
    let _scope = x.scope(name);
    let (inputs, total) = (x.shape().last(), widths.iter().sum::<usize>());
    let weight = x.parameter("weight", [total, inputs], glorot(inputs, widths.iter().copied().max().unwrap_or(0)));
    let bias = bias.then(|| x.parameter("bias", [total], Init::Zeros));
    let mut start = 0;
    widths.map(|width| {
        let part = |of: &Tensor| of.slice(0, start, width);
        let y = x.linear(&part(&weight), bias.as_ref().map(part).as_ref());
        start += width;
        y
    })
}
