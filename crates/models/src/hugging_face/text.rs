//! The text towers of `clip` and `siglip`: options and names.

use vit_graph::ops::Activation;

use crate::architecture::Architecture;
use crate::clip::{Clip, Pairing, TextPooling, TextTower};
use crate::config::Arguments;
use crate::vit::{Embedding, Vit};

/// The names of both types' text towers, and of what the towers share.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("text_model.embeddings.token_embedding", "text.token_embedding"),
    ("text_model.embeddings.position_embedding.weight", "text.pos_embed"),
    ("text_model.encoder.layers.*.layer_norm1", "text.blocks.*.norm1"),
    ("text_model.encoder.layers.*.layer_norm2", "text.blocks.*.norm2"),
    ("text_model.encoder.layers.*.self_attn.q_proj", "text.blocks.*.attn.qkv#0"),
    ("text_model.encoder.layers.*.self_attn.k_proj", "text.blocks.*.attn.qkv#1"),
    ("text_model.encoder.layers.*.self_attn.v_proj", "text.blocks.*.attn.qkv#2"),
    ("text_model.encoder.layers.*.self_attn.out_proj", "text.blocks.*.attn.proj"),
    ("text_model.encoder.layers.*.mlp.fc1", "text.blocks.*.mlp.fc1"),
    ("text_model.encoder.layers.*.mlp.fc2", "text.blocks.*.mlp.fc2"),
    ("text_model.final_layer_norm", "text.norm"),
    ("logit_scale", "logit_scale"),
    ("logit_bias", "logit_bias"),
];

/// The projections of CLIP.
pub(super) const CLIP: &[(&str, &str)] = &[("text_projection", "text.proj"), ("visual_projection", "proj")];

/// The projection of SigLIP.
pub(super) const SIGLIP: &[(&str, &str)] = &[("text_model.head", "text.proj")];

/// The prefix of an image tower's names where there is a text tower, too.
pub(super) const IMAGE: &str = "vision_model.";

/// The image tower of a model of either kind.
pub(super) fn image_tower(model: &Architecture) -> Option<&Vit> {
    model.downcast_ref::<Clip>().map(|clip| &clip.image).or_else(|| model.downcast_ref())
}

/// CLIP of both towers' options.
pub(super) fn clip(image: Vit, args: &Arguments, embed_dim: usize) -> Result<Clip, String> {
    let context = args.count("max_position_embeddings")?.unwrap_or(77);
    let text = TextTower {
        vocabulary: args.count("vocab_size")?.unwrap_or(49408),
        dim: args.count("hidden_size")?.unwrap_or(512),
        mlp_dim: args.count("intermediate_size")?.unwrap_or(2048),
        heads: args.count("num_attention_heads")?.unwrap_or(8),
        activation: args.activation("hidden_act")?.unwrap_or(Activation::QuickGelu),
        norm_epsilon: args.number("layer_norm_eps")?.map_or(1e-5, |epsilon| epsilon as f32),
        causal: true,
        // Configurations before transformers 4.31 have 2, whatever the vocabulary.
        pooling: match args.count("eos_token_id")?.unwrap_or(49407) {
            2 => TextPooling::HighestId,
            id => TextPooling::Id(i32::try_from(id).map_err(|_| format!("`eos_token_id` {id} is too large"))?),
        },
        embed_dim,
        projection_bias: false,
        ..text(args, context)?
    };
    let image = Vit { classes: 0, embedding: Some(Embedding::Projected(embed_dim)), ..image };
    Ok(Clip { image, text, pairing: Pairing::Softmax })
}

/// SigLIP of both towers' options.
pub(super) fn siglip(image: Vit, args: &Arguments) -> Result<Clip, String> {
    let text = text(args, args.count("max_position_embeddings")?.unwrap_or(64))?;
    let text = TextTower { embed_dim: args.count("projection_size")?.unwrap_or(text.dim), ..text };
    let image = Vit { classes: 0, embedding: Some(Embedding::Pooled), ..image };
    Ok(Clip { image, text, pairing: Pairing::Sigmoid })
}

/// The options that both have, with SigLIP's usual values.
fn text(args: &Arguments, context: usize) -> Result<TextTower, String> {
    args.rate("attention_dropout")?;
    Ok(TextTower {
        vocabulary: args.count("vocab_size")?.unwrap_or(32000),
        context,
        dim: args.count("hidden_size")?.unwrap_or(768),
        depth: args.count("num_hidden_layers")?.unwrap_or(12),
        heads: args.count("num_attention_heads")?.unwrap_or(12),
        mlp_dim: args.count("intermediate_size")?.unwrap_or(3072),
        activation: args.activation("hidden_act")?.unwrap_or(Activation::GeluTanh),
        norm_epsilon: args.number("layer_norm_eps")?.map_or(1e-6, |epsilon| epsilon as f32),
        layer_scale: None,
        causal: false,
        pooling: TextPooling::Last,
        embed_dim: 0,
        projection_bias: true,
    })
}
