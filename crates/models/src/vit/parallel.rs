//! Blocks whose branches are computed side by side.

use vit_graph::{Init, Tensor};

use super::attention::Projected;
use super::{BlockInputs, QkvBias, Vit};
use crate::layers::{Forward, linear, linear_parts};

impl Forward<'_, Vit> {
    /// The block of "Scaling Vision Transformers to 22 Billion Parameters": one norm and one projection for the MLP's hidden
    /// layer, the queries, the keys and the values; attention and MLP share the residual connection.
    pub(super) fn parallel_block(&self, x: Tensor, inputs: &BlockInputs) -> Tensor {
        let vit = self.net;
        let biased = vit.qkv.bias == QkvBias::All;
        let h = self.norm(&x, "in_norm");
        let [mut hidden, qkv] = linear_parts(&h, [vit.mlp_dim, 3 * vit.dim], biased, "in_proj");
        if !biased {
            hidden = hidden + x.parameter("mlp_bias", [vit.mlp_dim], Init::Zeros);
        }
        let [y, weights] = self.attend(Projected::Packed(qkv), inputs);
        weights.tap("attn.weights");
        let hidden = self.drop(hidden.activation(vit.activation));
        // With differential attention, timm has one projection for both.
        let y = if vit.differential {
            y.tap("attn");
            linear(&Tensor::concat(&[&y, &hidden], 2), vit.dim, vit.projection_bias, "out_proj")
        } else {
            let y = linear(&y, vit.dim, vit.projection_bias, "attn_out_proj");
            y.tap("attn");
            y + linear(&hidden, vit.dim, vit.projection_bias, "mlp_out_proj")
        };
        x + self.branch(y, inputs.depth, "ls")
    }

    /// The block of "Three things everyone should know about Vision Transformers": the sum of several attentions, then the
    /// sum of as many MLPs.
    pub(super) fn branches_block(&self, x: Tensor, inputs: &BlockInputs, branches: usize) -> Tensor {
        let attention = |x: &Tensor, i: usize| {
            let _scope = x.scope(&format!("attns.{i}"));
            self.branch(self.attention(&self.norm(x, "norm"), inputs, "attn"), inputs.depth, "ls")
        };
        let mlp = |x: &Tensor, i: usize| {
            let _scope = x.scope(&format!("ffns.{i}"));
            self.branch(self.mlp(&self.norm(x, "norm"), "mlp"), inputs.depth, "ls")
        };
        let x = (1..branches).fold(attention(&x, 0), |sum, i| sum + attention(&x, i)) + x;
        (1..branches).fold(mlp(&x, 0), |sum, i| sum + mlp(&x, i)) + x
    }
}
