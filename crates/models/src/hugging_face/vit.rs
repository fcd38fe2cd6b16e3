//! `vit`: the Vision Transformer. Its pooler, which no classifier uses, is left out.

use serde_json::{Map, Value};

use super::names::Names;
use super::vision_transformer::{AROUND, LAYERS, read, written};
use super::{ModelType, Writer, processor, unchanged};
use crate::architecture::Architecture;
use crate::layers::{Gate, NormKind};
use crate::vit::{BlockKind, FinalNorm, Pooling, Positions, PositionsOn, QkvBias, Vit};
use crate::weights::{Weights, WeightsError};

pub(super) const UNUSED: &[&str] = &["pooler.", "embeddings.mask_token"];

pub(super) const TYPE: ModelType = ModelType {
    name: "vit",
    class: "ViT",
    base: "vit.",
    read: |args, task| Ok(read(args, task, 1e-12)?.into()),
    names: |_| Names::new(AROUND).and(LAYERS),
    unused: UNUSED,
    convert: unchanged,
    preprocessing: processor::vit,
    any_size: false,
    write: Some(Writer { config, convert: needs_class_token }),
};

fn config(model: &Architecture) -> Result<(String, Map<String, Value>), String> {
    let vit = plain(model)?;
    if vit.distillation_token {
        return Err("Hugging Face's ViT has no option for a distillation token".into());
    }
    let class = if vit.classes > 0 { "ViTForImageClassification" } else { "ViTModel" };
    Ok((class.into(), written(vit)))
}

/// A Vision Transformer without options that ViT and DeiT do not have.
pub(super) fn plain(model: &Architecture) -> Result<&Vit, String> {
    let vit = model.downcast_ref::<Vit>().ok_or_else(String::new)?;
    for (what, differs) in [
        ("convolutional stages before the encoder", vit.backbone.is_some()),
        ("register tokens", vit.registers > 0),
        ("layer scale", vit.layer_scale.is_some()),
        ("relative positions", vit.relative_bias.is_some()),
        ("biases of query and value alone", vit.qkv.bias == QkvBias::QueryValue),
        ("query-key norm", vit.qk_norm),
        ("a norm before the blocks", vit.pre_norm),
        ("a norm on the patch embeddings", vit.patch_norm),
        ("another norm than layer norm", vit.norm != NormKind::Layer),
        ("blocks of another form", vit.block != BlockKind::PreNorm),
        ("rotary positions", vit.rotary.is_some()),
        ("separate projections of query, key and value", vit.qkv.separate),
        ("a gated MLP", vit.gate != Gate::None),
        ("norms inside attention or the MLP", vit.attention_norm || vit.mlp_norm),
        ("projections without biases", !vit.projection_bias),
        ("a hidden layer in the head", vit.pre_logits.is_some()),
        ("no class token", !vit.class_token),
        ("the mean of two tokens without their heads", vit.distillation_head && vit.classes == 0),
        ("pooling other than by token", vit.pooling != Pooling::Token),
        ("a norm after pooling", vit.final_norm != FinalNorm::BeforePooling),
        (
            "positions that are not learned for all tokens",
            vit.positions != Positions::Learned || vit.positions_on != PositionsOn::AllTokens,
        ),
    ] {
        if differs {
            return Err(format!("Hugging Face's ViT and DeiT have no option for {what}"));
        }
    }
    Ok(vit)
}

/// Classes with a class token would initialise a missing one at random.
pub(super) fn needs_class_token(weights: &mut Weights) -> Result<(), WeightsError> {
    weights.get("cls_token").map(drop)
}
