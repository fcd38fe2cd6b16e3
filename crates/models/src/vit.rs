//! The Vision Transformer (Dosovitskiy et al., 2021), with its successors' changes as options.
//!
//! The layers follow the paper's figure from left to right: patches, tokens and positions, encoder blocks, head.
//! Parameters have timm's names.

mod guess;
mod mimetic;
mod network;
mod positions;
mod timm;
mod variants;

pub use positions::{Positions, PositionsOn, sin_cos};
pub use variants::{PAPER_SIZES, VitSize};

use vit_graph::ops::{Activation, Attention, Conv2d};
use vit_graph::{Init, Tensor};

use crate::layers::{
    Forward, channels_last, drop_path_rate, glorot, layer_norm, layer_scale, linear, linear_from, mlp,
};
use crate::resnetv2::ResNetV2;

/// How the tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The class token; with a distillation token, both.
    Token,
    /// The mean of the patch tokens.
    Mean,
    /// Attention from one learned query to the patch tokens, then a residual MLP ("multi-head attention pooling").
    Map,
}

/// Which layer norm closes the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalNorm {
    /// On all tokens, before pooling.
    BeforePooling,
    /// On the pooled vector.
    AfterPooling,
    /// None.
    Absent,
}

/// One Vision Transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct Vit {
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Height and width of a patch.
    pub patch_size: [usize; 2],
    /// Convolutional stages whose feature map is cut into patches, instead of the image ("hybrid").
    pub backbone: Option<Box<ResNetV2>>,
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 for no head.
    pub classes: usize,
    /// Width of a token.
    pub dim: usize,
    /// Encoder blocks.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the MLP's hidden layer.
    pub mlp_dim: usize,
    /// The first token is a class token.
    pub class_token: bool,
    /// The second token is a distillation token (DeiT).
    pub distillation_token: bool,
    /// The distillation token has a head, too, and the logits are the mean of both.
    pub distillation_head: bool,
    /// Register tokens between those and the patches.
    pub registers: usize,
    /// How tokens become one vector.
    pub pooling: Pooling,
    /// Position embeddings.
    pub positions: Positions,
    /// Which tokens learned positions are added to.
    pub positions_on: PositionsOn,
    /// A norm before the first block (CLIP).
    pub pre_norm: bool,
    /// Which norm closes the encoder.
    pub final_norm: FinalNorm,
    /// Width of the pre-training head's hidden layer with tanh; `None` for the fine-tuning head, one linear layer.
    pub pre_logits: Option<usize>,
    /// Biases in the query, key and value projections.
    pub qkv_bias: bool,
    /// Layer norm on queries and keys of each head.
    pub qk_norm: bool,
    /// Layer scale and its starting value.
    pub layer_scale: Option<f32>,
    /// The MLP's activation.
    pub activation: Activation,
    /// The layer norms' epsilon.
    pub norm_epsilon: f32,
    /// Dropout after positions, projections and MLP layers.
    pub dropout: f32,
    /// Dropout on attention weights.
    pub attention_dropout: f32,
    /// Stochastic depth: the rate of the last block; earlier ones grow linearly to it.
    pub drop_path: f32,
}

impl Default for Vit {
    /// ViT-B/16 at 224 pixels for ImageNet-1k.
    fn default() -> Self {
        Vit {
            image_size: [224, 224],
            patch_size: [16, 16],
            backbone: None,
            channels: 3,
            classes: 1000,
            dim: 768,
            depth: 12,
            heads: 12,
            mlp_dim: 3072,
            class_token: true,
            distillation_token: false,
            distillation_head: false,
            registers: 0,
            pooling: Pooling::Token,
            positions: Positions::Learned,
            positions_on: PositionsOn::AllTokens,
            pre_norm: false,
            final_norm: FinalNorm::BeforePooling,
            pre_logits: None,
            qkv_bias: true,
            qk_norm: false,
            layer_scale: None,
            activation: Activation::Gelu,
            norm_epsilon: 1e-6,
            dropout: 0.0,
            attention_dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

impl Vit {
    /// Rows and columns of patches.
    pub fn grid(&self) -> [usize; 2] {
        let backbone = self.backbone.as_deref();
        let image = backbone.map_or(self.image_size, |b| b.feature_grid(self.image_size));
        [0, 1].map(|axis| image[axis].checked_div(self.patch_size[axis]).unwrap_or(0))
    }

    /// Tokens that are not patches.
    pub fn prefix_tokens(&self) -> usize {
        usize::from(self.class_token) + usize::from(self.distillation_token) + self.registers
    }
}

impl Forward<'_, Vit> {
    /// Outputs: `tokens` after the encoder, `features` before the head, and `logits` if there are classes; with a
    /// distillation head `logits_cls` and `logits_dist` too. Taps: `patch_embed`, `blocks.N`, `blocks.N.attn`,
    /// `blocks.N.attn.weights`.
    fn run(&self, image: &Tensor) {
        let mut x = self.embed(image);
        for depth in 0..self.net.depth {
            x = self.block(x, depth);
        }
        if self.net.final_norm == FinalNorm::BeforePooling {
            x = layer_norm(&x, self.net.norm_epsilon, "norm");
        }
        x.output("tokens");
        self.head(&x);
    }

    /// Equation 1: patches projected linearly, the class token before them, positions added.
    fn embed(&self, image: &Tensor) -> Tensor {
        let patches = self.patches(image);
        patches.tap("patch_embed");
        let tokens = self.prefix(&patches);
        let x = match self.net.positions_on {
            PositionsOn::Patches => prepend(&tokens, positions::add(self.net, &patches)),
            PositionsOn::AllTokens => positions::add(self.net, &prepend(&tokens, patches)),
        };
        let x = self.drop(x);
        if self.net.pre_norm { layer_norm(&x, self.net.norm_epsilon, "norm_pre") } else { x }
    }

    fn patches(&self, image: &Tensor) -> Tensor {
        let vit = self.net;
        let [ph, pw] = vit.patch_size;
        let map = self.feature_map(image);
        let _scope = image.scope("patch_embed.proj");
        let inputs = map.extent(3) * ph * pw;
        let init = Init::TruncatedNormal { std: (inputs.max(1) as f32).powf(-0.5) };
        let weight = image.parameter("weight", [vit.dim, map.extent(3), ph, pw], init);
        // CLIP's patch embedding has no bias.
        let bias = (!vit.pre_norm).then(|| image.parameter("bias", [vit.dim], Init::Zeros));
        let grid = map.conv2d(Conv2d::patches([ph, pw], true), &weight, bias.as_ref());
        let [rows, columns] = vit.grid();
        grid.reshape([image.extent(0), rows * columns, vit.dim])
    }

    /// The image, or the feature map of the convolutional stages.
    fn feature_map(&self, image: &Tensor) -> Tensor {
        let image = channels_last(image);
        let Some(backbone) = &self.net.backbone else { return image };
        let _scope = image.scope("patch_embed.backbone");
        Forward { net: &**backbone, building: self.building }.stages(&image)
    }

    /// Class, distillation and register tokens, in this order.
    fn prefix(&self, patches: &Tensor) -> Vec<Tensor> {
        let (vit, batch) = (self.net, patches.extent(0));
        [
            ("cls_token", usize::from(vit.class_token)),
            ("dist_token", usize::from(vit.distillation_token)),
            ("reg_token", vit.registers),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| {
            let init = Init::Normal { std: 1e-6 };
            patches.parameter(name, [1, count, vit.dim], init).broadcast([batch, count, vit.dim])
        })
        .collect()
    }

    /// Equations 2 and 3: attention and MLP, each after a norm, each with a residual.
    fn block(&self, x: Tensor, depth: usize) -> Tensor {
        let _scope = x.scope(&format!("blocks.{depth}"));
        let h = layer_norm(&x, self.net.norm_epsilon, "norm1");
        let x = x + self.branch(self.attention(&h, "attn"), depth, "ls1");
        let h = layer_norm(&x, self.net.norm_epsilon, "norm2");
        let x = x + self.branch(self.mlp(&h, "mlp"), depth, "ls2");
        x.tap("");
        x
    }

    /// Multi-head self-attention (appendix A).
    fn attention(&self, x: &Tensor, name: &str) -> Tensor {
        let (vit, [batch, tokens]) = (self.net, [x.extent(0), x.extent(1)]);
        let _scope = x.scope(name);
        let head_dim = vit.dim / vit.heads;
        // Three stacked matrices, each initialised as a `dim x dim` one.
        let qkv = linear_from(x, 3 * vit.dim, vit.qkv_bias, glorot(vit.dim, vit.dim), "qkv");
        let bias = positions::relative_bias(vit, x);
        let (dropout, seed) = self.building.attention_dropout(x, vit.attention_dropout);
        let op = Attention {
            heads: vit.heads,
            scale: 1.0 / (head_dim as f32).sqrt(),
            packed: !vit.qk_norm,
            bias: bias.is_some(),
            dropout,
        };
        let others: Vec<&Tensor> = bias.iter().chain(seed).collect();
        let [y, weights] = if vit.qk_norm {
            let part = |i: usize| qkv.slice(2, i * vit.dim, vit.dim);
            let normed = |part: Tensor, name| {
                let heads = part.reshape([batch, tokens, vit.heads, head_dim]);
                layer_norm(&heads, vit.norm_epsilon, name).reshape([batch, tokens, vit.dim])
            };
            let (q, k, v) = (normed(part(0), "q_norm"), normed(part(1), "k_norm"), part(2));
            q.attention(op, &[vec![&k, &v], others].concat())
        } else {
            qkv.attention(op, &others)
        };
        weights.tap("weights");
        let y = self.drop(linear(&y, vit.dim, true, "proj"));
        y.tap("");
        y
    }

    fn mlp(&self, x: &Tensor, name: &str) -> Tensor {
        mlp(x, self.net.mlp_dim, self.net.activation, |h| self.drop(h), name)
    }

    /// Layer scale and stochastic depth of a residual branch.
    fn branch(&self, x: Tensor, depth: usize, name: &str) -> Tensor {
        let vit = self.net;
        let x = vit.layer_scale.map_or(x.clone(), |initial| layer_scale(&x, initial, name));
        self.building.drop_path(x, drop_path_rate(vit.drop_path, depth, vit.depth))
    }

    /// Equation 4 and the classification head.
    fn head(&self, x: &Tensor) {
        let vit = self.net;
        if vit.distillation_head {
            return self.two_heads(x);
        }
        let mut y = self.pool(x);
        if vit.final_norm == FinalNorm::AfterPooling {
            y = layer_norm(&y, vit.norm_epsilon, "fc_norm");
        }
        if let Some(hidden) = vit.pre_logits {
            let _scope = y.scope("pre_logits");
            y = linear(&y, hidden, true, "fc").tanh();
        }
        let y = self.drop(y);
        y.output("features");
        if vit.classes > 0 {
            linear_from(&y, vit.classes, true, Init::Zeros, "head").output("logits");
        }
    }

    fn pool(&self, x: &Tensor) -> Tensor {
        let prefix = self.net.prefix_tokens();
        let patches = || if prefix == 0 { x.clone() } else { x.slice(1, prefix, x.extent(1) - prefix) };
        match self.net.pooling {
            Pooling::Token => token(x, 0),
            Pooling::Mean => patches().mean([1]),
            Pooling::Map => self.attention_pool(&patches(), "attn_pool"),
        }
    }

    /// A learned query attends to the patches; a residual MLP follows.
    fn attention_pool(&self, x: &Tensor, name: &str) -> Tensor {
        let (vit, batch) = (self.net, x.extent(0));
        let _scope = x.scope(name);
        let latent = x.parameter("latent", [1, 1, vit.dim], Init::TruncatedNormal { std: (vit.dim as f32).powf(-0.5) });
        let q = linear(&latent, vit.dim, true, "q").broadcast([batch, 1, vit.dim]);
        let kv = linear(x, 2 * vit.dim, true, "kv");
        let op = Attention {
            heads: vit.heads,
            scale: 1.0 / ((vit.dim / vit.heads) as f32).sqrt(),
            packed: false,
            bias: false,
            dropout: None,
        };
        let [y, weights] = q.attention(op, &[&kv.slice(2, 0, vit.dim), &kv.slice(2, vit.dim, vit.dim)]);
        weights.tap("weights");
        let y = linear(&y, vit.dim, true, "proj");
        let h = layer_norm(&y, vit.norm_epsilon, "norm");
        token(&(y + self.mlp(&h, "mlp")), 0)
    }

    /// DeiT: class and distillation tokens have a head each, and the logits are the mean of both.
    fn two_heads(&self, x: &Tensor) {
        let (class, distillation) = (token(x, 0), token(x, 1));
        (&class + &distillation).scale(0.5).output("features");
        if self.net.classes > 0 {
            let head = |token: Tensor, name| linear_from(&self.drop(token), self.net.classes, true, Init::Zeros, name);
            let (class, distillation) = (head(class, "head"), head(distillation, "head_dist"));
            class.output("logits_cls");
            distillation.output("logits_dist");
            (class + distillation).scale(0.5).output("logits");
        }
    }

    fn drop(&self, x: Tensor) -> Tensor {
        self.building.dropout(x, self.net.dropout)
    }
}

/// Prepends tokens.
fn prepend(tokens: &[Tensor], x: Tensor) -> Tensor {
    Tensor::concat(&tokens.iter().chain([&x]).collect::<Vec<_>>(), 1)
}

/// One token of every sample.
fn token(x: &Tensor, index: usize) -> Tensor {
    x.slice(1, index, 1).reshape([x.extent(0), x.extent(2)])
}
