//! Multi-head self-attention (appendix A): projections, norms and rotary positions of queries and keys.

use vit_graph::Tensor;
use vit_graph::ops::{Attention, Rotary, RotaryPairs};

use super::{BlockInputs, Vit, relative};
use crate::layers::{Forward, glorot, linear, linear_from, query_value_bias};

/// The projections to query, key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qkv {
    /// Their biases.
    pub bias: QkvBias,
    /// Each is its own linear layer, instead of one for all three.
    pub separate: bool,
}

impl Qkv {
    /// One linear layer for all three.
    pub const fn packed(bias: QkvBias) -> Self {
        Qkv { bias, separate: false }
    }
}

/// Which of the projections to query, key and value have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkvBias {
    /// None of them.
    None,
    /// All.
    All,
    /// Query and value (BEiT, EVA), each as its own parameter.
    QueryValue,
}

/// Queries, keys and values `[batch, tokens, heads · head_dim]`, packed into one value or apart.
pub(super) enum Projected {
    Packed(Tensor),
    Apart([Tensor; 3]),
}

impl Projected {
    /// Query, key and value; those that are packed have width `dim`.
    fn apart(self, dim: usize) -> [Tensor; 3] {
        match self {
            Projected::Packed(qkv) => [0, 1, 2].map(|part| qkv.slice(2, part * dim, dim)),
            Projected::Apart(parts) => parts,
        }
    }
}

impl Vit {
    /// Heads of keys and values in a block.
    pub(super) fn key_value_heads(&self, depth: usize) -> usize {
        self.key_value_heads.get(depth).copied().unwrap_or(self.heads)
    }
}

impl Forward<'_, Vit> {
    pub(super) fn attention(&self, x: &Tensor, inputs: &BlockInputs, name: &str) -> Tensor {
        let vit = self.net;
        let _scope = x.scope(name);
        let [mut y, weights] = self.attend(self.project(x, inputs.depth), inputs);
        weights.tap("weights");
        if vit.attention_norm {
            y = self.norm(&y, "norm");
        }
        let y = self.drop(linear(&y, vit.dim, vit.projection_bias, "proj"));
        y.tap("");
        y
    }

    fn project(&self, x: &Tensor, depth: usize) -> Projected {
        let vit = self.net;
        // Stacked matrices are initialised as three of `dim x dim`.
        let init = glorot(vit.dim, vit.dim);
        let width = vit.key_value_heads(depth) * (vit.dim / vit.heads);
        match vit.qkv {
            Qkv { bias, separate: true } => {
                let (query_value, key) = (bias != QkvBias::None, bias == QkvBias::All);
                let layers = [(vit.dim, query_value, "q_proj"), (width, key, "k_proj"), (width, query_value, "v_proj")];
                Projected::Apart(layers.map(|(width, bias, name)| linear_from(x, width, bias, init, name)))
            }
            Qkv { bias: QkvBias::QueryValue, .. } => {
                let weight = x.parameter("qkv.weight", [3 * vit.dim, vit.dim], init);
                Projected::Packed(x.linear(&weight, Some(&query_value_bias(x, vit.dim))))
            }
            Qkv { bias, .. } => Projected::Packed(linear_from(x, 3 * vit.dim, bias == QkvBias::All, init, "qkv")),
        }
    }

    /// `softmax(q kᵀ / √d + bias) v` in every head, and the weights.
    pub(super) fn attend(&self, projected: Projected, inputs: &BlockInputs) -> [Tensor; 2] {
        let vit = self.net;
        let projected = if vit.qk_norm { Projected::Apart(self.normed(projected)) } else { projected };
        if vit.differential {
            return self.differential(projected.apart(vit.dim), inputs.depth);
        }
        let (key_value_heads, pairs) = (vit.key_value_heads(inputs.depth), vit.rotary.map(|rotary| rotary.pairs));
        let projected = match (projected, &inputs.rotation, pairs) {
            // Heads of queries, then those of keys.
            (Projected::Packed(qkv), Some(tables), Some(pairs)) => {
                Projected::Packed(qkv.rotary(rotation(2 * vit.heads, pairs), tables))
            }
            (Projected::Apart([q, k, v]), Some(tables), Some(pairs)) => Projected::Apart([
                q.rotary(rotation(vit.heads, pairs), tables),
                k.rotary(rotation(key_value_heads, pairs), tables),
                v,
            ]),
            (projected, ..) => projected,
        };
        let (x, others) = match &projected {
            Projected::Packed(qkv) => (qkv.clone(), Vec::new()),
            Projected::Apart([q, k, v]) => {
                (q.clone(), [k, v].map(|of| repeated(of, key_value_heads, vit.heads)).to_vec())
            }
        };
        let bias = relative::block_bias(vit, self.building, &x, inputs.shared_bias.as_ref());
        let (dropout, seed) = self.building.attention_dropout(&x, vit.attention_dropout);
        let op = Attention {
            heads: vit.heads,
            scale: 1.0 / ((vit.dim / vit.heads) as f32).sqrt(),
            packed: matches!(projected, Projected::Packed(_)),
            bias: bias.is_some(),
            dropout,
        };
        x.attention(op, &others.iter().chain(&bias).chain(seed).collect::<Vec<_>>())
    }

    /// With the norms of queries and keys of each head.
    fn normed(&self, projected: Projected) -> [Tensor; 3] {
        let Vit { dim, heads, differential, .. } = *self.net;
        let head_dim = dim / heads / if differential { 2 } else { 1 };
        let [q, k, v] = projected.apart(dim);
        let normed = |part: Tensor, name| {
            let [batch, tokens, width] = [0, 1, 2].map(|axis| part.extent(axis));
            let heads = part.reshape([batch, tokens, width / head_dim, head_dim]);
            self.norm(&heads, name).reshape([batch, tokens, width])
        };
        [normed(q, "q_norm"), normed(k, "k_norm"), v]
    }
}

fn rotation(heads: usize, pairs: RotaryPairs) -> Rotary {
    Rotary { heads, pairs, inverse: false }
}

/// Keys or values of each head, repeated for the queries that share them.
fn repeated(x: &Tensor, heads: usize, queries: usize) -> Tensor {
    if heads == queries {
        return x.clone();
    }
    let [batch, tokens, width] = [0, 1, 2].map(|axis| x.extent(axis));
    let (head_dim, each) = (width / heads, queries / heads);
    x.reshape([batch, tokens, heads, 1, head_dim]).broadcast([batch, tokens, heads, each, head_dim]).reshape([
        batch,
        tokens,
        queries * head_dim,
    ])
}
