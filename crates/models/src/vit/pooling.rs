//! How the tokens become one vector (equation 4 and its alternatives), and the classification head.

use vit_graph::ops::{Activation, Attention, Pool2d, PoolMode};
use vit_graph::{Init, Tensor};

use super::{Embedding, FinalNorm, Lineage, Vit};
use crate::layers::{Forward, Gate, Mlp, linear, linear_from, unit_length};

/// How the tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The class token; with a distillation token, both.
    Token,
    /// The mean of the patch tokens.
    Mean,
    /// The maximum of the patch tokens, for each channel.
    Max,
    /// The mean of their mean and their maximum.
    MeanMax,
    /// Attention from one learned query to the patch tokens, then a residual MLP ("multi-head attention pooling").
    Map,
    /// Attention among all tokens without parameters, then the class token, or the mean of all tokens where there is none
    /// ("patch representation refinement").
    Refined,
    /// The class token and the mean of the patch tokens, joined (DINOv2's linear head).
    TokenAndMean,
    /// They do not: every token has its own logits.
    None,
}

impl Forward<'_, Vit> {
    /// Equation 4 and the classification head; returns what that reads.
    pub(super) fn head(&self, x: &Tensor) -> Tensor {
        let vit = self.net;
        if vit.distillation_head {
            return self.two_heads(x);
        }
        let y = self.embedded(self.features(x));
        if vit.classes > 0 {
            linear_from(&y, vit.classes, true, Init::Zeros, "head").output("logits");
        }
        y
    }

    /// The pooled tokens, normalised.
    pub(super) fn features(&self, x: &Tensor) -> Tensor {
        let vit = self.net;
        let mut y = self.pool(x);
        if vit.final_norm == FinalNorm::AfterPooling {
            y = self.norm(&y, "fc_norm");
        }
        if let Some(hidden) = vit.pre_logits {
            let _scope = y.scope("pre_logits");
            y = linear(&y, hidden, true, "fc").tanh();
        }
        self.drop(y)
    }

    /// The head's input; `features` are the same before they are scaled to length 1.
    fn embedded(&self, y: Tensor) -> Tensor {
        let y = match self.net.embedding {
            Some(Embedding::Projected(width)) => {
                let init = Init::Normal { std: (self.net.dim as f32).powf(-0.5) };
                linear_from(&y, width, false, init, "proj")
            }
            Some(Embedding::Pooled) | None => y,
        };
        y.output("features");
        if self.net.embedding.is_none() {
            return y;
        }
        let y = unit_length(&y);
        y.output("image_embeds");
        y
    }

    fn pool(&self, x: &Tensor) -> Tensor {
        let prefix = self.net.unpooled_tokens();
        let patches = || if prefix == 0 { x.clone() } else { x.slice(1, prefix, x.extent(1) - prefix) };
        match self.net.pooling {
            Pooling::Token => token(x, 0),
            Pooling::Mean => patches().mean([1]),
            Pooling::Max => maximum(&patches()),
            Pooling::MeanMax => {
                let patches = patches();
                (maximum(&patches) + patches.mean([1])).scale(0.5)
            }
            Pooling::Map => self.attention_pool(&patches(), "attn_pool"),
            Pooling::Refined => {
                let [y, weights] = x.attention(self.pooling_attention(self.net.heads), &[x, x]);
                weights.tap("attn_pool.weights");
                if self.net.class_token { token(&y, 0) } else { y.mean([1]) }
            }
            Pooling::TokenAndMean => Tensor::concat(&[&token(x, 0), &patches().mean([1])], 1),
            Pooling::None => x.clone(),
        }
    }

    /// A learned query attends to the patches; a residual MLP follows.
    fn attention_pool(&self, x: &Tensor, name: &str) -> Tensor {
        let (vit, batch) = (self.net, x.extent(0));
        let _scope = x.scope(name);
        let latent = x.parameter("latent", [1, 1, vit.dim], Init::TruncatedNormal { std: (vit.dim as f32).powf(-0.5) });
        let q = linear(&latent, vit.dim, true, "q").broadcast([batch, 1, vit.dim]);
        let kv = linear(x, 2 * vit.dim, true, "kv");
        let (k, v) = (kv.slice(2, 0, vit.dim), kv.slice(2, vit.dim, vit.dim));
        let [y, weights] = q.attention(self.pooling_attention(vit.pool_heads.unwrap_or(vit.heads)), &[&k, &v]);
        weights.tap("weights");
        let y = linear(&y, vit.dim, true, "proj");
        let h = self.norm(&y, "norm");
        // timm's `VisionTransformer` has the blocks' ratio here, which counts both halves of a packed gate.
        let doubled = vit.lineage == Lineage::VisionTransformer && vit.gate == Gate::Packed;
        let hidden = vit.pool_mlp_dim.unwrap_or(if doubled { 2 * vit.mlp_dim } else { vit.mlp_dim });
        // In timm's Eva it is GELU, also where the blocks have gates.
        let activation = if vit.lineage == Lineage::Eva { Activation::Gelu } else { vit.activation };
        let h = Mlp::plain(hidden, activation).apply(&h, |h| self.drop(h), "mlp");
        token(&(y + h), 0)
    }

    fn pooling_attention(&self, heads: usize) -> Attention {
        let scale = 1.0 / ((self.net.dim / heads) as f32).sqrt();
        Attention { heads, scale, packed: false, bias: false, dropout: None }
    }

    /// DeiT: class and distillation tokens have a head each, and the logits are the mean of both.
    fn two_heads(&self, x: &Tensor) -> Tensor {
        let (class, distillation) = (token(x, 0), token(x, 1));
        let features = (&class + &distillation).scale(0.5);
        features.output("features");
        if self.net.classes > 0 {
            let head = |token: Tensor, name| linear_from(&self.drop(token), self.net.classes, true, Init::Zeros, name);
            let (class, distillation) = (head(class, "head"), head(distillation, "head_dist"));
            class.output("logits_cls");
            distillation.output("logits_dist");
            (class + distillation).scale(0.5).output("logits");
        }
        features
    }
}

/// One token of every sample.
fn token(x: &Tensor, index: usize) -> Tensor {
    x.slice(1, index, 1).reshape([x.extent(0), x.extent(2)])
}

/// The maximum over the tokens.
fn maximum(x: &Tensor) -> Tensor {
    let [batch, tokens, dim] = [0, 1, 2].map(|axis| x.extent(axis));
    let all = Pool2d { kernel: [tokens, 1], ..Pool2d::tiles(PoolMode::Max, 1) };
    x.reshape([batch, tokens, 1, dim]).pool2d(all).reshape([batch, dim])
}
