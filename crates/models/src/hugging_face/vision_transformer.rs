//! What the configurations of transformers' Vision Transformers have in common.

use serde_json::{Map, Value, json};
use vit_graph::ops::Activation;

use super::Task;
use crate::config::Arguments;
use crate::config::timm::{object, short, square};
use crate::vit::{Qkv, QkvBias, Vit};

/// The names inside an encoder layer, of published files and of transformers 5's modules, which `torch.save` of a state dict
/// writes.
pub(super) const LAYERS: &[(&str, &str)] = &[
    ("encoder.layer.*.layernorm_before", "blocks.*.norm1"),
    ("encoder.layer.*.layernorm_after", "blocks.*.norm2"),
    ("encoder.layer.*.attention.attention.query", "blocks.*.attn.qkv#0"),
    ("encoder.layer.*.attention.attention.key", "blocks.*.attn.qkv#1"),
    ("encoder.layer.*.attention.attention.value", "blocks.*.attn.qkv#2"),
    ("encoder.layer.*.attention.output.dense", "blocks.*.attn.proj"),
    ("encoder.layer.*.intermediate.dense", "blocks.*.mlp.fc1"),
    ("encoder.layer.*.output.dense", "blocks.*.mlp.fc2"),
    ("layers.*.layernorm_before", "blocks.*.norm1"),
    ("layers.*.layernorm_after", "blocks.*.norm2"),
    ("layers.*.attention.q_proj", "blocks.*.attn.qkv#0"),
    ("layers.*.attention.k_proj", "blocks.*.attn.qkv#1"),
    ("layers.*.attention.v_proj", "blocks.*.attn.qkv#2"),
    ("layers.*.attention.o_proj", "blocks.*.attn.proj"),
    ("layers.*.mlp.fc1", "blocks.*.mlp.fc1"),
    ("layers.*.mlp.fc2", "blocks.*.mlp.fc2"),
];

/// The names around the layers.
pub(super) const AROUND: &[(&str, &str)] = &[
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("layernorm", "norm"),
    ("classifier", "head"),
];

/// The options that ViT and its descendants share, with the type's usual epsilon.
pub(super) fn read(args: &Arguments, task: Task, epsilon: f32) -> Result<Vit, String> {
    let rate = |name| args.rate(name).map(Option::unwrap_or_default);
    Ok(Vit {
        image_size: args.pair("image_size")?.unwrap_or([224, 224]),
        patch_size: args.pair("patch_size")?.unwrap_or([16, 16]),
        channels: args.count("num_channels")?.unwrap_or(3),
        classes: task.labels,
        dim: args.count("hidden_size")?.unwrap_or(768),
        depth: args.count("num_hidden_layers")?.unwrap_or(12),
        heads: args.count("num_attention_heads")?.unwrap_or(12),
        mlp_dim: args.count("intermediate_size")?.unwrap_or(3072),
        qkv: Qkv {
            bias: if args.flag("qkv_bias")?.unwrap_or(true) { QkvBias::All } else { QkvBias::None },
            separate: false,
        },
        activation: args.activation("hidden_act")?.unwrap_or(Activation::Gelu),
        norm_epsilon: args.number("layer_norm_eps")?.map_or(epsilon, |e| e as f32),
        dropout: rate("hidden_dropout_prob")?,
        attention_dropout: rate("attention_probs_dropout_prob")?,
        ..Vit::default()
    })
}

/// The same options of a model.
pub(super) fn written(vit: &Vit) -> Map<String, Value> {
    object(json!({
        "hidden_size": vit.dim,
        "num_hidden_layers": vit.depth,
        "num_attention_heads": vit.heads,
        "intermediate_size": vit.mlp_dim,
        "image_size": square(vit.image_size),
        "patch_size": square(vit.patch_size),
        "num_channels": vit.channels,
        "hidden_act": activation(vit.activation),
        "layer_norm_eps": short(vit.norm_epsilon),
        "qkv_bias": vit.qkv.bias != QkvBias::None,
        "hidden_dropout_prob": short(vit.dropout),
        "attention_probs_dropout_prob": short(vit.attention_dropout),
    }))
}

/// transformers' name of an activation.
pub(super) fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Relu => "relu",
        Activation::Silu => "silu",
        Activation::Tanh => "tanh",
        Activation::Sigmoid => "sigmoid",
        Activation::QuickGelu => "quick_gelu",
    }
}
