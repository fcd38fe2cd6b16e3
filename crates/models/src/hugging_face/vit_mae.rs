//! `vit_mae`: masked autoencoders, with their decoder in the class for pre-training. Positions are fixed, and are in the file.

use super::names::Names;
use super::vision_transformer::{AROUND, LAYERS, read};
use super::{ModelType, processor, vit};
use crate::config::Arguments;
use crate::vit::{MaskedAutoencoder, Pretraining};

/// The decoder's names, of published files and of transformers 5's modules.
pub(super) const DECODER: &[(&str, &str)] = &[
    ("decoder.mask_token", "mask_token"),
    ("decoder.decoder_pos_embed", "decoder_pos_embed"),
    ("decoder.decoder_embed", "decoder_embed"),
    ("decoder.decoder_norm", "decoder_norm"),
    ("decoder.decoder_pred", "decoder_pred"),
    ("decoder.decoder_layers.*.layernorm_before", "decoder_blocks.*.norm1"),
    ("decoder.decoder_layers.*.layernorm_after", "decoder_blocks.*.norm2"),
    ("decoder.decoder_layers.*.attention.attention.query", "decoder_blocks.*.attn.qkv#0"),
    ("decoder.decoder_layers.*.attention.attention.key", "decoder_blocks.*.attn.qkv#1"),
    ("decoder.decoder_layers.*.attention.attention.value", "decoder_blocks.*.attn.qkv#2"),
    ("decoder.decoder_layers.*.attention.output.dense", "decoder_blocks.*.attn.proj"),
    ("decoder.decoder_layers.*.intermediate.dense", "decoder_blocks.*.mlp.fc1"),
    ("decoder.decoder_layers.*.output.dense", "decoder_blocks.*.mlp.fc2"),
    ("decoder.decoder_encoder.layer.*.layernorm_before", "decoder_blocks.*.norm1"),
    ("decoder.decoder_encoder.layer.*.layernorm_after", "decoder_blocks.*.norm2"),
    ("decoder.decoder_encoder.layer.*.attention.attention.query", "decoder_blocks.*.attn.qkv#0"),
    ("decoder.decoder_encoder.layer.*.attention.attention.key", "decoder_blocks.*.attn.qkv#1"),
    ("decoder.decoder_encoder.layer.*.attention.attention.value", "decoder_blocks.*.attn.qkv#2"),
    ("decoder.decoder_encoder.layer.*.attention.output.dense", "decoder_blocks.*.attn.proj"),
    ("decoder.decoder_encoder.layer.*.intermediate.dense", "decoder_blocks.*.mlp.fc1"),
    ("decoder.decoder_encoder.layer.*.output.dense", "decoder_blocks.*.mlp.fc2"),
];

pub(super) const TYPE: ModelType = ModelType {
    name: "vit_mae",
    class: "ViTMAE",
    base: "vit.",
    read: |args, task| {
        let mae = autoencoder(args)?;
        let pretraining = (task.class == "ViTMAEForPreTraining").then_some(Pretraining::MaskedAutoencoder(mae));
        Ok(crate::vit::Vit { pretraining, ..read(args, task, 1e-12)? }.into())
    },
    names: |_| Names::new(AROUND).and(LAYERS).and(DECODER),
    unused: vit::UNUSED,
    convert: |weights, model| {
        if model.pretraining().is_none() {
            weights.tensors.retain(|name, _| name != "mask_token" && !name.starts_with("decoder_"));
        }
        Ok(())
    },
    preprocessing: processor::vit,
    any_size: false,
    write: None,
};

fn autoencoder(args: &Arguments) -> Result<MaskedAutoencoder, String> {
    let usual = MaskedAutoencoder::default();
    Ok(MaskedAutoencoder {
        dim: args.count("decoder_hidden_size")?.unwrap_or(usual.dim),
        depth: args.count("decoder_num_hidden_layers")?.unwrap_or(usual.depth),
        heads: args.count("decoder_num_attention_heads")?.unwrap_or(usual.heads),
        mlp_dim: args.count("decoder_intermediate_size")?.unwrap_or(usual.mlp_dim),
        mask: args.rate("mask_ratio")?.unwrap_or(usual.mask),
        normalised: args.flag("norm_pix_loss")?.unwrap_or(false),
    })
}
