//! `siglip` with both towers (SigLIP 2 of a fixed resolution has this type, too), and `siglip_vision_model`: ViT without a class
//! token, pooled by attention. A classifier reads the mean of the patches instead.

use vit_graph::ops::Activation;

use super::clip::options_of;
use super::names::Names;
use super::vision_transformer::read;
use super::{ModelType, Task, processor, text};
use crate::architecture::Architecture;
use crate::clip::Clip;
use crate::config::Arguments;
use crate::vit::{Pooling, Vit};
use crate::weights::{Tensor, Weights, WeightsError};

const NAMES: &[(&str, &str)] = &[
    ("embeddings.patch_embedding", "patch_embed.proj"),
    ("embeddings.position_embedding.weight", "pos_embed"),
    ("encoder.layers.*.layer_norm1", "blocks.*.norm1"),
    ("encoder.layers.*.layer_norm2", "blocks.*.norm2"),
    ("encoder.layers.*.self_attn.q_proj", "blocks.*.attn.qkv#0"),
    ("encoder.layers.*.self_attn.k_proj", "blocks.*.attn.qkv#1"),
    ("encoder.layers.*.self_attn.v_proj", "blocks.*.attn.qkv#2"),
    ("encoder.layers.*.self_attn.out_proj", "blocks.*.attn.proj"),
    ("encoder.layers.*.mlp.fc1", "blocks.*.mlp.fc1"),
    ("encoder.layers.*.mlp.fc2", "blocks.*.mlp.fc2"),
    ("post_layernorm", "norm"),
    ("head.probe", "attn_pool.latent"),
    ("head.attention.in_proj_weight", "attn_pool.qkv.weight"),
    ("head.attention.in_proj_bias", "attn_pool.qkv.bias"),
    ("head.attention.out_proj", "attn_pool.proj"),
    ("head.layernorm", "attn_pool.norm"),
    ("head.mlp.fc1", "attn_pool.mlp.fc1"),
    ("head.mlp.fc2", "attn_pool.mlp.fc2"),
    ("classifier", "head"),
];

pub(super) const TYPE: ModelType = ModelType {
    name: "siglip_vision_model",
    class: "SiglipVision",
    base: "vision_model.",
    read: |args, task| Ok(tower(args, task)?.into()),
    names: |_| Names::new(NAMES),
    unused: &["text_model.", "logit_scale", "logit_bias"],
    convert,
    preprocessing: processor::siglip,
    any_size: false,
    write: None,
};

pub(super) const BOTH_TOWERS: ModelType = ModelType {
    name: "siglip",
    class: "Siglip",
    read: |args, task| {
        let vision = options_of(args, "vision_config")?;
        let vit = tower(&vision, task)?;
        vision.finish(super::IGNORED)?;
        both_towers(args, task, vit)
    },
    names: names_of_both,
    base: "",
    unused: &[],
    ..TYPE
};

/// The model with its text tower, unless it is a classifier.
pub(super) fn both_towers(args: &Arguments, task: Task, vit: Vit) -> Result<Architecture, String> {
    let Some(text) = args.object("text_config")?.filter(|_| task.labels == 0) else { return Ok(vit.into()) };
    let text = Arguments::new("Hugging Face", text);
    let siglip = text::siglip(vit, &text)?;
    text.finish(super::IGNORED)?;
    Ok(siglip.into())
}

pub(super) fn names_of_both(model: &Architecture) -> Names {
    match model.downcast_ref::<Clip>() {
        Some(_) => Names::new(text::NAMES).and(text::SIGLIP).and_prefixed(text::IMAGE, NAMES),
        None => Names::new(NAMES).and_prefixed(text::IMAGE, NAMES),
    }
}

pub(super) fn tower(args: &Arguments, task: Task) -> Result<Vit, String> {
    let pooled = args.flag("vision_use_head")?.unwrap_or(true) && task.labels == 0;
    let vit = read(args, task, 1e-6)?;
    Ok(Vit {
        class_token: false,
        pooling: if pooled { Pooling::Map } else { Pooling::Mean },
        activation: args.activation("hidden_act")?.unwrap_or(Activation::GeluTanh),
        attention_dropout: args.rate("attention_dropout")?.unwrap_or_default(),
        ..vit
    })
}

/// The attention pool's query projection is apart from those of keys and values here.
pub(super) fn convert(weights: &mut Weights, model: &Architecture) -> Result<(), WeightsError> {
    if text::image_tower(model).is_none_or(|vit| vit.pooling != Pooling::Map) {
        weights.tensors.retain(|name, _| !name.starts_with("attn_pool."));
        return Ok(());
    }
    for kind in ["weight", "bias"] {
        let name = format!("attn_pool.qkv.{kind}");
        let stacked = weights.take(&name)?;
        let rows = stacked.shape.first().copied().unwrap_or(0);
        if rows == 0 || !rows.is_multiple_of(3) {
            return Err(WeightsError::shape(&name, &stacked.shape, "[3 × dim, …]"));
        }
        let (q, kv) = stacked.data.split_at(stacked.data.len() / 3);
        let part = |rows: usize| [&[rows], &stacked.shape[1..]].concat();
        weights.insert(format!("attn_pool.q.{kind}"), Tensor::new(part(rows / 3), q.to_vec())?)?;
        weights.insert(format!("attn_pool.kv.{kind}"), Tensor::new(part(rows / 3 * 2), kv.to_vec())?)?;
    }
    Ok(())
}
