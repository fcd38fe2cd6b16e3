//! `clip` with both towers, and `clip_vision_model`: ViT with a norm before the blocks and none after them but on the pooled
//! class token. The projection of an image tower alone is a head without a bias; a classifier reads the mean of the patches.

use vit_graph::ops::Activation;

use super::names::Names;
use super::vision_transformer::read;
use super::{ModelType, Task, processor, text};
use crate::architecture::Architecture;
use crate::clip::Clip;
use crate::config::Arguments;
use crate::vit::{FinalNorm, Pooling, Vit};
use crate::weights::{Tensor, Weights, WeightsError};

const NAMES: &[(&str, &str)] = &[
    ("embeddings.class_embedding", "cls_token"),
    ("embeddings.patch_embedding", "patch_embed.proj"),
    ("embeddings.position_embedding.weight", "pos_embed"),
    // transformers' spelling.
    ("pre_layrnorm", "norm_pre"),
    ("encoder.layers.*.layer_norm1", "blocks.*.norm1"),
    ("encoder.layers.*.layer_norm2", "blocks.*.norm2"),
    ("encoder.layers.*.self_attn.q_proj", "blocks.*.attn.qkv#0"),
    ("encoder.layers.*.self_attn.k_proj", "blocks.*.attn.qkv#1"),
    ("encoder.layers.*.self_attn.v_proj", "blocks.*.attn.qkv#2"),
    ("encoder.layers.*.self_attn.out_proj", "blocks.*.attn.proj"),
    ("encoder.layers.*.mlp.fc1", "blocks.*.mlp.fc1"),
    ("encoder.layers.*.mlp.fc2", "blocks.*.mlp.fc2"),
    ("post_layernorm", "fc_norm"),
    ("visual_projection", "head"),
    ("classifier", "head"),
];

pub(super) const TYPE: ModelType = ModelType {
    name: "clip_vision_model",
    class: "CLIPVision",
    base: "vision_model.",
    read: |args, task| {
        let projected = args.count("projection_dim")?.unwrap_or(512);
        Ok(tower(args, task, projected)?.into())
    },
    names: |_| Names::new(NAMES),
    unused: &["text_model.", "text_projection.", "logit_scale"],
    convert,
    preprocessing: processor::clip,
    any_size: false,
    write: None,
};

pub(super) const BOTH_TOWERS: ModelType = ModelType {
    name: "clip",
    class: "CLIP",
    read: |args, task| {
        for option in ["text_config_dict", "vision_config_dict", "logit_scale_init_value"] {
            args.get(option);
        }
        let projected = args.count("projection_dim")?.unwrap_or(512);
        let vision = options_of(args, "vision_config")?;
        vision.get("projection_dim");
        let vit = tower(&vision, task, projected)?;
        vision.finish(super::IGNORED)?;
        let classifies = task.class.contains("ForImageClassification");
        let text = match args.object("text_config")?.filter(|_| !classifies) {
            Some(text) => Arguments::new("Hugging Face", text),
            None => return Ok(vit.into()),
        };
        for option in ["projection_dim", "dropout"] {
            text.get(option);
        }
        let clip = text::clip(vit, &text, projected)?;
        text.finish(super::IGNORED)?;
        Ok(clip.into())
    },
    names: |model| match model.downcast_ref::<Clip>() {
        Some(_) => Names::new(text::NAMES).and(text::CLIP).and_prefixed(text::IMAGE, NAMES),
        None => Names::new(NAMES).and_prefixed(text::IMAGE, NAMES),
    },
    base: "",
    unused: &[],
    ..TYPE
};

/// The options of one tower.
pub(super) fn options_of<'a>(args: &Arguments<'a>, name: &str) -> Result<Arguments<'a>, String> {
    let options = args.object(name)?.ok_or_else(|| format!("Hugging Face's option `{name}` is missing"))?;
    Ok(Arguments::new("Hugging Face", options))
}

fn tower(args: &Arguments, task: Task, projected: usize) -> Result<Vit, String> {
    let patch_size = args.pair("patch_size")?.unwrap_or([32, 32]);
    let classifies = task.class.contains("ForImageClassification");
    let projects = task.class.ends_with("WithProjection") || task.class == "CLIPModel";
    let (pooling, final_norm) =
        if classifies { (Pooling::Mean, FinalNorm::Absent) } else { (Pooling::Token, FinalNorm::AfterPooling) };
    args.get("dropout");
    Ok(Vit {
        patch_size,
        classes: if projects { projected } else { task.labels },
        pre_norm: true,
        pooling,
        final_norm,
        activation: args.activation("hidden_act")?.unwrap_or(Activation::QuickGelu),
        attention_dropout: args.rate("attention_dropout")?.unwrap_or_default(),
        ..read(args, task, 1e-5)?
    })
}

fn convert(weights: &mut Weights, model: &Architecture) -> Result<(), WeightsError> {
    let Some(vit) = model.downcast_ref::<Vit>() else { return Ok(()) };
    if vit.final_norm == FinalNorm::Absent {
        weights.tensors.retain(|name, _| !name.starts_with("fc_norm."));
    }
    if vit.classes == 0 {
        weights.tensors.remove("head.weight");
    } else if !weights.tensors.contains_key("head.bias") {
        weights.insert("head.bias", Tensor::new(vec![vit.classes], vec![0.0; vit.classes])?)?;
    }
    Ok(())
}
