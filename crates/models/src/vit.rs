//! The Vision Transformer (Dosovitskiy et al., 2021), with its successors' changes as options.
//!
//! The layers follow the paper's figure from left to right: patches, tokens and positions, encoder blocks, head.
//! Parameters have timm's names.

mod attention;
mod backbone;
mod beit;
mod differential;
mod eva;
mod guess;
mod mimetic;
mod misfit;
mod network;
mod parallel;
mod pooling;
mod positions;
mod pretraining;
pub(crate) mod quick_gelu;
mod relative;
mod relpos;
mod timm;
mod variants;

pub use attention::{Qkv, QkvBias};
pub use backbone::{Backbone, ConvStem};
pub use pooling::Pooling;
pub use positions::{
    CoordinateAugmentation, Positions, PositionsOn, RotaryAngles, RotaryPositions, sin_cos, sin_cos_mae,
};
pub use pretraining::{MaskedAutoencoder, MaskedPatches, Masks, PatchTarget, Pretraining, SelfDistillation};
pub use relative::{BiasSharing, RelativeBias, RelativeBiasKind};
pub use variants::{PAPER_SIZES, VitSize};

use vit_graph::ops::{Activation, Conv2d};
use vit_graph::{Init, Tensor};

use crate::layers::{Forward, Gate, Mlp, NormKind, channels_last, drop_path_rate, layer_scale};

/// How norms and branches are arranged in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// A norm before attention and one before the MLP, as in the paper.
    PreNorm,
    /// A norm after attention and one after the MLP, inside the residual connections.
    PostNorm,
    /// Attention and MLP side by side, from one norm and one projection (ViT-22B).
    Parallel,
    /// So many attentions side by side, then as many MLPs.
    Branches(usize),
}

/// Which norm closes the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalNorm {
    /// On all tokens, before pooling.
    BeforePooling,
    /// On the pooled vector.
    AfterPooling,
    /// None.
    Absent,
}

/// The class of timm that has these options. It decides in which form a model is written, and nothing that it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lineage {
    /// `VisionTransformer`.
    VisionTransformer,
    /// `Eva` (Fang et al., 2022).
    Eva,
    /// `Beit` (Bao et al., 2021).
    Beit,
    /// `VisionTransformerRelPos`.
    RelPos,
}

/// The vector that texts are compared with (CLIP), at length 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embedding {
    /// The pooled vector itself (SigLIP).
    Pooled,
    /// Its projection to this width, without a bias (CLIP).
    Projected(usize),
}

/// One Vision Transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct Vit {
    /// The class of timm whose options these are.
    pub lineage: Lineage,
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Height and width of a patch.
    pub patch_size: [usize; 2],
    /// Convolutional stages whose feature map is cut into patches, instead of the image ("hybrid").
    pub backbone: Option<Box<Backbone>>,
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
    /// How the hidden layer is gated.
    pub gate: Gate,
    /// A norm on the hidden layer.
    pub mlp_norm: bool,
    /// How a block is arranged.
    pub block: BlockKind,
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
    /// Pooling over the patch tokens includes the others.
    pub pool_prefix: bool,
    /// Heads of attention pooling, where they are not as many as in a block.
    pub pool_heads: Option<usize>,
    /// Width of the hidden layer of attention pooling, where it is not that of a block.
    pub pool_mlp_dim: Option<usize>,
    /// Position embeddings.
    pub positions: Positions,
    /// Which tokens learned positions are added to.
    pub positions_on: PositionsOn,
    /// Rotary positions, beside any of the embeddings.
    pub rotary: Option<RotaryPositions>,
    /// A norm on the patch embeddings, before positions are added.
    pub patch_norm: bool,
    /// A norm before the first block (CLIP); the patch embedding has no bias then.
    pub pre_norm: bool,
    /// Which norm closes the encoder.
    pub final_norm: FinalNorm,
    /// Width of the pre-training head's hidden layer with tanh; `None` for the fine-tuning head, one linear layer.
    pub pre_logits: Option<usize>,
    /// The features are an embedding that texts are compared with, and the head reads it at length 1.
    pub embedding: Option<Embedding>,
    /// The projections to query, key and value.
    pub qkv: Qkv,
    /// Heads of keys and values in each block, which several heads of queries share; empty for one for each.
    pub key_value_heads: Vec<usize>,
    /// Biases in the projection of attention and in the MLP.
    pub projection_bias: bool,
    /// A bias on attention scores by relative position.
    pub relative_bias: Option<RelativeBias>,
    /// A norm on queries and keys of each head.
    pub qk_norm: bool,
    /// Attention is the difference of two.
    pub differential: bool,
    /// A norm on the result of attention, before its projection.
    pub attention_norm: bool,
    /// Layer scale and its starting value.
    pub layer_scale: Option<f32>,
    /// Layer scale on attention alone, not on the MLP.
    pub attention_only_layer_scale: bool,
    /// The MLP's activation.
    pub activation: Activation,
    /// The kind of all norms.
    pub norm: NormKind,
    /// The norms' epsilon.
    pub norm_epsilon: f32,
    /// Dropout after positions, projections and MLP layers.
    pub dropout: f32,
    /// Dropout on attention weights.
    pub attention_dropout: f32,
    /// The share of patches that is left out in training.
    pub patch_drop: f32,
    /// Stochastic depth: the rate of the last block; earlier ones grow linearly to it.
    pub drop_path: f32,
    /// The layers that only pre-training without labels has.
    pub pretraining: Option<Pretraining>,
}

impl Default for Vit {
    /// ViT-B/16 at 224 pixels for ImageNet-1k.
    fn default() -> Self {
        Vit {
            lineage: Lineage::VisionTransformer,
            image_size: [224, 224],
            patch_size: [16, 16],
            backbone: None,
            channels: 3,
            classes: 1000,
            dim: 768,
            depth: 12,
            heads: 12,
            mlp_dim: 3072,
            gate: Gate::None,
            mlp_norm: false,
            block: BlockKind::PreNorm,
            class_token: true,
            distillation_token: false,
            distillation_head: false,
            registers: 0,
            pooling: Pooling::Token,
            pool_prefix: false,
            pool_heads: None,
            pool_mlp_dim: None,
            positions: Positions::Learned,
            positions_on: PositionsOn::AllTokens,
            rotary: None,
            patch_norm: false,
            pre_norm: false,
            final_norm: FinalNorm::BeforePooling,
            pre_logits: None,
            embedding: None,
            qkv: Qkv::packed(QkvBias::All),
            key_value_heads: Vec::new(),
            projection_bias: true,
            relative_bias: None,
            qk_norm: false,
            differential: false,
            attention_norm: false,
            layer_scale: None,
            attention_only_layer_scale: false,
            activation: Activation::Gelu,
            norm: NormKind::Layer,
            norm_epsilon: 1e-6,
            dropout: 0.0,
            attention_dropout: 0.0,
            patch_drop: 0.0,
            drop_path: 0.0,
            pretraining: None,
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

    /// The first tokens, which pooling over the others leaves out.
    pub fn unpooled_tokens(&self) -> usize {
        if self.pool_prefix { 0 } else { self.prefix_tokens() }
    }
}

/// What the blocks of an encoder share.
#[derive(Default)]
struct EncoderInputs {
    /// The bias on attention scores that all blocks share.
    shared_bias: Option<Tensor>,
    /// Rotary positions.
    rotations: Option<positions::BlockRotations>,
}

/// The inputs of a block other than its tokens.
pub(crate) struct BlockInputs {
    /// Its index.
    pub depth: usize,
    /// The bias on attention scores that all blocks share.
    pub shared_bias: Option<Tensor>,
    /// Cosines and sines of rotary positions.
    pub rotation: Option<[Tensor; 2]>,
}

impl Forward<'_, Vit> {
    /// Outputs: `tokens` after the encoder, `features` before the head, and `logits` if there are classes; with a
    /// distillation head `logits_cls` and `logits_dist` too; with an embedding `image_embeds`, which is of length 1. Taps:
    /// `patch_embed`, `blocks.N`, `blocks.N.attn`, `blocks.N.attn.weights`. Returns what the head reads.
    pub(crate) fn run(&self, image: &Tensor) -> Tensor {
        let x = self.encode(image, self.embed(image));
        x.output("tokens");
        self.head(&x)
    }

    /// Equation 1: patches projected linearly, the class token before them, positions added.
    fn embed(&self, image: &Tensor) -> Tensor {
        let x = self.embed_all(image);
        self.building.drop_tokens(x, self.net.prefix_tokens(), self.net.patch_drop)
    }

    /// The same, of all patches.
    fn embed_all(&self, image: &Tensor) -> Tensor {
        let patches = self.patches(image);
        patches.tap("patch_embed");
        self.with_positions(patches)
    }

    /// The class token before the patches, positions added.
    fn with_positions(&self, patches: Tensor) -> Tensor {
        let tokens = self.prefix(&patches);
        let x = match self.net.positions_on {
            PositionsOn::Patches => prepend(&tokens, positions::add(self.net, &patches)),
            PositionsOn::AllTokens => positions::add(self.net, &prepend(&tokens, patches)),
        };
        self.drop(x)
    }

    /// The encoder's blocks and norms, from the tokens of an image.
    fn encode(&self, image: &Tensor, x: Tensor) -> Tensor {
        let x = if self.net.pre_norm { self.norm(&x, "norm_pre") } else { x };
        let shared_bias = relative::shared_bias(self.net, self.building, &x);
        let x = self.blocks(x, "blocks", &EncoderInputs { shared_bias, rotations: self.rotations(image) });
        match self.net.final_norm {
            FinalNorm::BeforePooling => self.norm(&x, "norm"),
            FinalNorm::AfterPooling | FinalNorm::Absent => x,
        }
    }

    fn blocks(&self, mut x: Tensor, stack: &str, encoder: &EncoderInputs) -> Tensor {
        for depth in 0..self.net.depth {
            let rotation = encoder.rotations.as_ref().map(|rotations| rotations.of_block(depth));
            let inputs = BlockInputs { depth, shared_bias: encoder.shared_bias.clone(), rotation };
            x = self.block_of(x, stack, &inputs);
        }
        x
    }

    fn patches(&self, image: &Tensor) -> Tensor {
        let vit = self.net;
        let map = self.feature_map(image);
        let _scope = image.scope("patch_embed");
        let projected = vit.backbone.as_ref().is_none_or(|backbone| backbone.is_projected());
        let map = if projected { self.projection(&map) } else { map };
        let [rows, columns] = vit.grid();
        let patches = map.reshape([image.extent(0), rows * columns, vit.dim]);
        if vit.patch_norm { self.norm(&patches, "norm") } else { patches }
    }

    /// The linear projection of patches, as a convolution.
    fn projection(&self, map: &Tensor) -> Tensor {
        let (vit, [ph, pw]) = (self.net, self.net.patch_size);
        let _scope = map.scope("proj");
        let inputs = map.extent(3) * ph * pw;
        let init = Init::TruncatedNormal { std: (inputs.max(1) as f32).powf(-0.5) };
        let weight = map.parameter("weight", [vit.dim, map.extent(3), ph, pw], init);
        // CLIP's patch embedding has no bias.
        let bias = (!vit.pre_norm).then(|| map.parameter("bias", [vit.dim], Init::Zeros));
        map.conv2d(Conv2d::patches([ph, pw], true), &weight, bias.as_ref())
    }

    /// The image, or the feature map of the convolutional stages.
    fn feature_map(&self, image: &Tensor) -> Tensor {
        let image = channels_last(image);
        let Some(backbone) = &self.net.backbone else { return image };
        let _scope = image.scope("patch_embed.backbone");
        backbone.feature_map(&image, self.building)
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

    /// A block of the encoder.
    pub(crate) fn block(&self, x: Tensor, inputs: &BlockInputs) -> Tensor {
        self.block_of(x, "blocks", inputs)
    }

    /// A block of the stack of this name.
    fn block_of(&self, x: Tensor, stack: &str, inputs: &BlockInputs) -> Tensor {
        let _scope = x.scope(&format!("{stack}.{}", inputs.depth));
        let x = match self.net.block {
            BlockKind::PreNorm => self.pre_norm_block(x, inputs),
            BlockKind::PostNorm => self.post_norm_block(x, inputs),
            BlockKind::Parallel => self.parallel_block(x, inputs),
            BlockKind::Branches(branches) => self.branches_block(x, inputs, branches),
        };
        x.tap("");
        x
    }

    /// Equations 2 and 3: attention and MLP, each after a norm, each with a residual.
    fn pre_norm_block(&self, x: Tensor, inputs: &BlockInputs) -> Tensor {
        let (vit, depth) = (self.net, inputs.depth);
        let h = self.norm(&x, "norm1");
        let x = x + self.branch(self.attention(&h, inputs, "attn"), depth, "ls1");
        let y = self.mlp(&self.norm(&x, "norm2"), "mlp");
        x + if vit.attention_only_layer_scale { self.drop_path(y, depth) } else { self.branch(y, depth, "ls2") }
    }

    /// The same with the norms at the end of the branches, in place of layer scale, whose starting value their weights have.
    fn post_norm_block(&self, x: Tensor, inputs: &BlockInputs) -> Tensor {
        let Vit { norm, norm_epsilon, layer_scale, .. } = *self.net;
        let init = layer_scale.map_or(Init::Ones, Init::Constant);
        let branch = |y: Tensor, name| self.drop_path(norm.apply_from(&y, norm_epsilon, init, name), inputs.depth);
        let x = &x + &branch(self.attention(&x, inputs, "attn"), "norm1");
        &x + &branch(self.mlp(&x, "mlp"), "norm2")
    }

    fn mlp(&self, x: &Tensor, name: &str) -> Tensor {
        let vit = self.net;
        let mlp = Mlp {
            hidden: vit.mlp_dim,
            activation: vit.activation,
            gate: vit.gate,
            bias: vit.projection_bias,
            norm: vit.mlp_norm.then_some((vit.norm, vit.norm_epsilon)),
        };
        mlp.apply(x, |h| self.drop(h), name)
    }

    /// Layer scale and stochastic depth of a residual branch.
    fn branch(&self, x: Tensor, depth: usize, name: &str) -> Tensor {
        let vit = self.net;
        let x = vit.layer_scale.map_or(x.clone(), |initial| layer_scale(&x, initial, name));
        self.drop_path(x, depth)
    }

    fn drop_path(&self, x: Tensor, depth: usize) -> Tensor {
        self.building.drop_path(x, drop_path_rate(self.net.drop_path, depth, self.net.depth))
    }

    pub(crate) fn norm(&self, x: &Tensor, name: &str) -> Tensor {
        self.net.norm.apply(x, self.net.norm_epsilon, name)
    }

    fn drop(&self, x: Tensor) -> Tensor {
        self.building.dropout(x, self.net.dropout)
    }
}

/// Prepends tokens.
fn prepend(tokens: &[Tensor], x: Tensor) -> Tensor {
    Tensor::concat(&tokens.iter().chain([&x]).collect::<Vec<_>>(), 1)
}
