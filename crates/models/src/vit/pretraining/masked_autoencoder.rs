//! The masked autoencoder (He et al., 2022): the encoder sees a quarter of the patches, and a small decoder predicts the pixels
//! of the others. Parameters have the names of the published code.

use serde_json::{Map, Value, json};
use vit_graph::{Init, Tensor};

use super::super::{BlockKind, Lineage, PositionsOn, Qkv, QkvBias, Vit, sin_cos_mae};
use super::MaskSource;
use crate::config::Arguments;
use crate::config::timm::{object, short};
use crate::layers::{Forward, Gate, linear};
use crate::weights::Weights;

/// The decoder and the share of patches that it predicts.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedAutoencoder {
    /// Width of the decoder's tokens.
    pub dim: usize,
    /// Its blocks.
    pub depth: usize,
    /// Its attention heads.
    pub heads: usize,
    /// Width of its MLP's hidden layer.
    pub mlp_dim: usize,
    /// The share of patches that the encoder does not see.
    pub mask: f32,
    /// The pixels of each patch are normalised before they are compared.
    pub normalised: bool,
}

impl Default for MaskedAutoencoder {
    /// The decoder of the published models.
    fn default() -> Self {
        MaskedAutoencoder { dim: 512, depth: 8, heads: 16, mlp_dim: 2048, mask: 0.75, normalised: true }
    }
}

impl MaskedAutoencoder {
    /// The published decoder for an encoder, and a smaller one for an encoder that is hardly larger.
    pub fn of(encoder: &Vit) -> Self {
        let usual = MaskedAutoencoder::default();
        let dim = usual.dim.min((2 * encoder.dim / 3).next_multiple_of(32));
        let depth = usual.depth.min((2 * encoder.depth / 3).max(1));
        MaskedAutoencoder { dim, depth, heads: dim / 32, mlp_dim: 4 * dim, ..usual }
    }

    /// Writes the fixed positions of encoder and decoder into the weights of a new model.
    pub fn write_positions(&self, encoder: &Vit, weights: &mut Weights) {
        let grid = encoder.grid();
        let prefix = if encoder.positions_on == PositionsOn::AllTokens { encoder.prefix_tokens() } else { 0 };
        for (name, prefix, dim) in
            [("pos_embed", prefix, encoder.dim), ("decoder_pos_embed", encoder.prefix_tokens(), self.dim)]
        {
            if let Some(tensor) = weights.tensors.get_mut(name) {
                tensor.data = sin_cos_mae(prefix, grid, dim);
            }
        }
    }

    /// How many of these patches the encoder sees.
    pub fn kept(&self, patches: usize) -> usize {
        ((patches as f64 * (1.0 - f64::from(self.mask))) as usize).max(1)
    }

    /// The decoder's blocks as a model of their own kind.
    fn decoder(&self, encoder: &Vit) -> Vit {
        Vit {
            lineage: Lineage::VisionTransformer,
            dim: self.dim,
            depth: self.depth,
            heads: self.heads,
            mlp_dim: self.mlp_dim,
            gate: Gate::None,
            block: BlockKind::PreNorm,
            qkv: Qkv::packed(if encoder.qkv.bias == QkvBias::None { QkvBias::None } else { QkvBias::All }),
            norm: encoder.norm,
            norm_epsilon: encoder.norm_epsilon,
            activation: encoder.activation,
            ..Vit::default()
        }
    }

    pub(super) fn written(&self) -> Map<String, Value> {
        object(json!({
            "decoder_dim": self.dim,
            "decoder_depth": self.depth,
            "decoder_heads": self.heads,
            "decoder_mlp_dim": self.mlp_dim,
            "mask": short(self.mask),
            "normalised": self.normalised,
        }))
    }

    pub(super) fn read(args: &Arguments) -> Result<Self, String> {
        let usual = MaskedAutoencoder::default();
        Ok(MaskedAutoencoder {
            dim: args.count("decoder_dim")?.unwrap_or(usual.dim),
            depth: args.count("decoder_depth")?.unwrap_or(usual.depth),
            heads: args.count("decoder_heads")?.unwrap_or(usual.heads),
            mlp_dim: args.count("decoder_mlp_dim")?.unwrap_or(usual.mlp_dim),
            mask: args.rate("mask")?.unwrap_or(usual.mask),
            normalised: args.flag("normalised")?.unwrap_or(usual.normalised),
        })
    }

    pub(super) fn contradiction(&self, vit: &Vit) -> Option<String> {
        let [rows, columns] = vit.grid();
        let MaskedAutoencoder { dim, heads, depth, mlp_dim, .. } = *self;
        if heads == 0 || dim == 0 || dim > 1 << 16 || !dim.is_multiple_of(heads) {
            return Some(format!("a decoder's width of {dim} cannot be divided among {heads} heads"));
        }
        if !dim.is_multiple_of(4) || !vit.dim.is_multiple_of(4) {
            return Some(format!("the fixed positions of a masked autoencoder need widths that 4 divides, not {dim}"));
        }
        if depth > 1 << 10 || !(1..=1 << 18).contains(&mlp_dim) {
            return Some(format!("a decoder cannot have {depth} blocks with hidden layers of {mlp_dim}"));
        }
        (self.kept(rows * columns) >= rows * columns)
            .then(|| format!("of {} patches none would be left out", rows * columns))
    }
}

impl Forward<'_, Vit> {
    /// The loss is computed on the patches that were left out, the last ones of `order`.
    pub(super) fn masked_autoencoder(&self, image: &Tensor, mae: &MaskedAutoencoder, masks: &MaskSource) {
        let vit = self.net;
        let (batch, [rows, columns]) = (image.extent(0), vit.grid());
        let (patches, prefix) = (rows * columns, vit.prefix_tokens());
        let kept = mae.kept(patches);
        let all = self.embed_all(image);
        let seen = all.slice(1, prefix, patches);
        let order = masks.order(&seen, kept);
        order.output("order");
        let seen = seen.gather_tokens(&order, 0..kept);
        let x = if prefix == 0 { seen } else { Tensor::concat(&[&all.slice(1, 0, prefix), &seen], 1) };
        let x = self.normalised_tokens(image, x);

        // The decoder: mask tokens in place of the patches that were left out, positions added again.
        let x = linear(&x, mae.dim, true, "decoder_embed");
        let token = x.parameter("mask_token", [1, 1, mae.dim], Init::Normal { std: 0.02 });
        let masked = token.broadcast([batch, patches - kept, mae.dim]);
        let x_patches = Tensor::concat(&[&x.slice(1, prefix, kept), &masked], 1).scatter_tokens(&order, 0, patches);
        let x = if prefix == 0 { x_patches } else { Tensor::concat(&[&x.slice(1, 0, prefix), &x_patches], 1) };
        // Fixed, as those of the encoder.
        let positions = x.statistic("decoder_pos_embed", [1, prefix + patches, mae.dim], Init::Normal { std: 0.02 });
        let decoder = mae.decoder(vit);
        let decoder = Forward { net: &decoder, building: self.building };
        let x = decoder.blocks(x + positions, "decoder_blocks", &Default::default());
        let x = if prefix == 0 { x } else { x.slice(1, prefix, patches) };
        let pixels = vit.patch_size[0] * vit.patch_size[1] * vit.channels;
        let predict = |x: &Tensor| linear(&decoder.norm(x, "decoder_norm"), pixels, true, "decoder_pred");
        predict(&x.gather_tokens(&order, kept..patches)).output("prediction");
        predict(&x).output("prediction_all");
    }
}
