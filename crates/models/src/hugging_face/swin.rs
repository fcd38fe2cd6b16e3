//! `swin` and `swinv2`: patches are merged at the end of a stage in transformers, at the start of the next one here.

use serde_json::{Map, Value, json};
use vit_graph::ops::Activation;

use super::names::Names;
use super::vision_transformer::activation;
use super::{ModelType, Task, Writer, class_of, processor, unchanged};
use crate::architecture::Architecture;
use crate::config::Arguments;
use crate::config::timm::{object, short, square};
use crate::swin::{Swin, SwinVersion};

const NAMES: &[(&str, &str)] = &[
    ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("embeddings.norm", "patch_embed.norm"),
    ("encoder.layers.*.downsample", "layers.+.downsample"),
    ("encoder.layers.*.blocks.*.layernorm_before", "layers.*.blocks.*.norm1"),
    ("encoder.layers.*.blocks.*.layernorm_after", "layers.*.blocks.*.norm2"),
    ("encoder.layers.*.blocks.*.attention.self.query", "layers.*.blocks.*.attn.qkv#0"),
    ("encoder.layers.*.blocks.*.attention.self.key", "layers.*.blocks.*.attn.qkv#1"),
    ("encoder.layers.*.blocks.*.attention.self.value", "layers.*.blocks.*.attn.qkv#2"),
    (
        "encoder.layers.*.blocks.*.attention.self.relative_position_bias_table",
        "layers.*.blocks.*.attn.relative_position_bias_table",
    ),
    ("encoder.layers.*.blocks.*.attention.output.dense", "layers.*.blocks.*.attn.proj"),
    ("encoder.layers.*.blocks.*.intermediate.dense", "layers.*.blocks.*.mlp.fc1"),
    ("encoder.layers.*.blocks.*.output.dense", "layers.*.blocks.*.mlp.fc2"),
    ("layernorm", "norm"),
    ("classifier", "head.fc"),
    // transformers 5's modules.
    ("encoder.layers.*.blocks.*.attention.q_proj", "layers.*.blocks.*.attn.qkv#0"),
    ("encoder.layers.*.blocks.*.attention.k_proj", "layers.*.blocks.*.attn.qkv#1"),
    ("encoder.layers.*.blocks.*.attention.v_proj", "layers.*.blocks.*.attn.qkv#2"),
    (
        "encoder.layers.*.blocks.*.attention.relative_position_bias.relative_position_bias_table",
        "layers.*.blocks.*.attn.relative_position_bias_table",
    ),
    ("encoder.layers.*.blocks.*.attention.o_proj", "layers.*.blocks.*.attn.proj"),
    ("encoder.layers.*.blocks.*.mlp", "layers.*.blocks.*.mlp"),
];

pub(super) const TYPE: ModelType = ModelType {
    name: "swin",
    class: "Swin",
    base: "swin.",
    read: |args, task| Ok(swin(args, task)?.into()),
    names: |_| Names::new(NAMES),
    unused: &["embeddings.mask_token", "decoder."],
    convert: unchanged,
    preprocessing: processor::vit_imagenet,
    any_size: false,
    write: Some(Writer { config: |model| config(model, "Swin"), convert: |_| Ok(()) }),
};

fn config(model: &Architecture, prefix: &str) -> Result<(String, Map<String, Value>), String> {
    let swin = model.downcast_ref::<Swin>().ok_or_else(String::new)?;
    let (window, stages) = (swin.windows.first().copied().unwrap_or_default(), swin.depths.len());
    // transformers has biases for the whole window, also where the image is smaller.
    if (0..stages).any(|stage| swin.window(stage).size != window) {
        return Err("Hugging Face's Swin has no option for windows that are smaller in some stages".into());
    }
    let mut options = object(json!({
        "image_size": square(swin.image_size),
        "patch_size": square(swin.patch_size),
        "num_channels": swin.channels,
        "embed_dim": swin.widths.first(),
        "depths": swin.depths,
        "num_heads": swin.heads,
        "window_size": window[0],
        "mlp_ratio": swin.mlp_ratios.first(),
        "qkv_bias": swin.qkv_bias,
        "hidden_act": activation(swin.activation),
        "layer_norm_eps": short(swin.norm_epsilon),
        "hidden_dropout_prob": short(swin.projection_dropout),
        "attention_probs_dropout_prob": short(swin.attention_dropout),
        "drop_path_rate": short(swin.drop_path),
    }));
    if let SwinVersion::V2 { pretrained_windows } = &swin.version {
        let sides: Vec<usize> = pretrained_windows.iter().map(|window| window.map_or(0, |[side, _]| side)).collect();
        options.insert("pretrained_window_sizes".into(), json!(sides));
    }
    Ok((class_of(prefix, model), options))
}

/// V2's parts that V1 does not have, and its partial biases.
const V2_NAMES: &[(&str, &str)] = &[
    ("encoder.layers.*.blocks.*.attention.self.query.weight", "layers.*.blocks.*.attn.qkv.weight#0"),
    ("encoder.layers.*.blocks.*.attention.self.key.weight", "layers.*.blocks.*.attn.qkv.weight#1"),
    ("encoder.layers.*.blocks.*.attention.self.value.weight", "layers.*.blocks.*.attn.qkv.weight#2"),
    ("encoder.layers.*.blocks.*.attention.self.query.bias", "layers.*.blocks.*.attn.q_bias"),
    ("encoder.layers.*.blocks.*.attention.self.value.bias", "layers.*.blocks.*.attn.v_bias"),
    ("encoder.layers.*.blocks.*.attention.self.logit_scale", "layers.*.blocks.*.attn.logit_scale"),
    ("encoder.layers.*.blocks.*.attention.self.continuous_position_bias_mlp", "layers.*.blocks.*.attn.cpb_mlp"),
];

pub(super) const V2: ModelType = ModelType {
    name: "swinv2",
    class: "Swinv2",
    base: "swinv2.",
    read: |args, task| {
        let windows = args.counts("pretrained_window_sizes")?;
        let swin = swin(args, task)?;
        let stages = swin.depths.len();
        // The usual list is for four stages.
        let windows = windows.unwrap_or_default().into_iter().chain(std::iter::repeat(0)).take(stages);
        let pretrained_windows = windows.map(|side| (side > 0).then_some([side; 2])).collect();
        Ok(Swin { version: SwinVersion::V2 { pretrained_windows }, ..swin }.into())
    },
    names: |_| Names::new(V2_NAMES).and(NAMES),
    write: Some(Writer { config: |model| config(model, "Swinv2"), convert: |_| Ok(()) }),
    ..TYPE
};

fn swin(args: &Arguments, task: Task) -> Result<Swin, String> {
    for option in ["num_layers", "hidden_size"] {
        args.get(option);
    }
    let base = Swin::default();
    let depths = args.counts("depths")?.unwrap_or(base.depths);
    let stages = depths.len();
    let width = args.count("embed_dim")?.unwrap_or(96);
    if stages == 0 || stages > 16 || width > 1 << 16 {
        return Err(format!("Hugging Face's options `depths` and `embed_dim` give {stages} stages of width {width}"));
    }
    if args.flag("use_absolute_embeddings")? == Some(true) {
        return Err("Hugging Face's option `use_absolute_embeddings` cannot be used here yet".into());
    }
    // The norms of the patch embedding and of merging have the usual epsilon whatever the option says.
    let epsilon = args.number("layer_norm_eps")?.unwrap_or(1e-5);
    if epsilon != 1e-5 {
        return Err(format!("Hugging Face's option `layer_norm_eps` should be 1e-5 for Swin, not {epsilon}"));
    }
    let rate = |name| args.rate(name).map(Option::unwrap_or_default);
    let dropout = rate("hidden_dropout_prob")?;
    Ok(Swin {
        image_size: args.pair("image_size")?.unwrap_or(base.image_size),
        patch_size: args.pair("patch_size")?.unwrap_or(base.patch_size),
        channels: args.count("num_channels")?.unwrap_or(3),
        classes: task.labels,
        widths: (0..stages).map(|stage| width << stage).collect(),
        heads: args.counts("num_heads")?.unwrap_or(base.heads),
        head_dims: vec![None; stages],
        windows: vec![args.pair("window_size")?.unwrap_or([7, 7]); stages],
        mlp_ratios: vec![args.number("mlp_ratio")?.unwrap_or(4.0); stages],
        depths,
        qkv_bias: args.flag("qkv_bias")?.unwrap_or(true),
        activation: args.activation("hidden_act")?.unwrap_or(Activation::Gelu),
        projection_dropout: dropout,
        attention_dropout: rate("attention_probs_dropout_prob")?,
        drop_path: args.rate("drop_path_rate")?.unwrap_or(0.1),
        ..Swin::default()
    })
}
