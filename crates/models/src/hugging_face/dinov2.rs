//! `dinov2` and `dinov2_with_registers`: ViT with layer scale. A classifier reads the class token and the mean of the patches.

use serde_json::{Map, Value, json};
use vit_graph::ops::Activation;

use super::names::Names;
use super::vision_transformer::{AROUND, activation, read, written};
use super::{ModelType, Task, Writer, processor, unchanged, vit};
use crate::architecture::Architecture;
use crate::config::Arguments;
use crate::layers::Gate;
use crate::vit::{FinalNorm, Pooling, Positions, PositionsOn, QkvBias, Vit};
use crate::weights::{Tensor, Weights, WeightsError};

const LAYERS: &[(&str, &str)] = &[
    ("encoder.layer.*.norm1", "blocks.*.norm1"),
    ("encoder.layer.*.norm2", "blocks.*.norm2"),
    ("encoder.layer.*.attention.attention.query", "blocks.*.attn.qkv#0"),
    ("encoder.layer.*.attention.attention.key", "blocks.*.attn.qkv#1"),
    ("encoder.layer.*.attention.attention.value", "blocks.*.attn.qkv#2"),
    ("encoder.layer.*.attention.output.dense", "blocks.*.attn.proj"),
    ("encoder.layer.*.layer_scale1.lambda1", "blocks.*.ls1.gamma"),
    ("encoder.layer.*.layer_scale2.lambda1", "blocks.*.ls2.gamma"),
    ("encoder.layer.*.mlp.fc1", "blocks.*.mlp.fc1"),
    ("encoder.layer.*.mlp.fc2", "blocks.*.mlp.fc2"),
    ("encoder.layer.*.mlp.weights_in", "blocks.*.mlp.fc1"),
    ("encoder.layer.*.mlp.weights_out", "blocks.*.mlp.fc2"),
    ("embeddings.register_tokens", "reg_token"),
];

pub(super) const TYPE: ModelType = ModelType {
    name: "dinov2",
    class: "Dinov2",
    base: "dinov2.",
    read: |args, task| Ok(dino(args, task)?.into()),
    names: |_| Names::new(AROUND).and(LAYERS),
    unused: vit::UNUSED,
    convert: unchanged,
    preprocessing: processor::bit,
    any_size: true,
    write: Some(Writer { config: |model| config(model, false), convert: vit::needs_class_token }),
};

pub(super) const WITH_REGISTERS: ModelType = ModelType {
    name: "dinov2_with_registers",
    class: "Dinov2WithRegisters",
    base: "dinov2_with_registers.",
    read: |args, task| {
        let registers = args.count("num_register_tokens")?.unwrap_or(4);
        Ok(Vit { registers, positions_on: PositionsOn::Patches, ..dino(args, task)? }.into())
    },
    convert: |weights, _| add_position_of_class_token(weights),
    write: Some(Writer { config: |model| config(model, true), convert: split_position_of_class_token }),
    ..TYPE
};

fn dino(args: &Arguments, task: Task) -> Result<Vit, String> {
    args.flag("use_mask_token")?;
    let vit = read(args, task, 1e-6)?;
    let patch_size = if args.has("patch_size") { vit.patch_size } else { [14, 14] };
    let ratio = args.number("mlp_ratio")?.unwrap_or(4.0);
    let hidden = (vit.dim as f64 * ratio) as usize;
    let gated = args.flag("use_swiglu_ffn")? == Some(true);
    Ok(Vit {
        patch_size,
        mlp_dim: if gated { gated_width(hidden) } else { hidden },
        gate: if gated { Gate::Packed } else { Gate::None },
        activation: if gated { Activation::Silu } else { vit.activation },
        layer_scale: Some(args.number("layerscale_value")?.unwrap_or(1.0) as f32),
        drop_path: args.rate("drop_path_rate")?.unwrap_or_default(),
        pooling: if vit.classes > 0 { Pooling::TokenAndMean } else { Pooling::Token },
        ..vit
    })
}

/// Two thirds of a width, rounded up to a multiple of 8.
fn gated_width(hidden: usize) -> usize {
    (hidden.saturating_mul(2) / 3).div_ceil(8).saturating_mul(8)
}

/// The class token has a position and the registers have none: it is added to the token, and only patches keep theirs.
fn add_position_of_class_token(weights: &mut Weights) -> Result<(), WeightsError> {
    let positions = weights.take("pos_embed")?;
    let &[1, tokens, dim] = &positions.shape[..] else {
        return Err(WeightsError::shape("pos_embed", &positions.shape, "[1, tokens, dim]"));
    };
    let (Some((first, patches)), Some(class)) =
        (positions.data.split_at_checked(dim), weights.tensors.get_mut("cls_token"))
    else {
        return Err(WeightsError::shape("pos_embed", &positions.shape, "a position for the class token"));
    };
    class.data.iter_mut().zip(first).for_each(|(token, position)| *token += position);
    weights.insert("pos_embed", Tensor::new(vec![1, tokens.saturating_sub(1), dim], patches.to_vec())?)
}

/// The class token gets a position of zeros.
fn split_position_of_class_token(weights: &mut Weights) -> Result<(), WeightsError> {
    vit::needs_class_token(weights)?;
    let positions = weights.take("pos_embed")?;
    let &[1, patches, dim] = &positions.shape[..] else {
        return Err(WeightsError::shape("pos_embed", &positions.shape, "[1, patches, dim]"));
    };
    let data = [vec![0.0; dim], positions.data].concat();
    weights.insert("pos_embed", Tensor::new(vec![1, patches + 1, dim], data)?)
}

fn config(model: &Architecture, registers: bool) -> Result<(String, Map<String, Value>), String> {
    let vit = model.downcast_ref::<Vit>().ok_or_else(String::new)?;
    let positions_on = if registers { PositionsOn::Patches } else { PositionsOn::AllTokens };
    let like = Vit {
        image_size: vit.image_size,
        patch_size: vit.patch_size,
        channels: vit.channels,
        classes: vit.classes,
        dim: vit.dim,
        depth: vit.depth,
        heads: vit.heads,
        mlp_dim: vit.mlp_dim,
        registers: vit.registers,
        qkv: vit.qkv,
        layer_scale: vit.layer_scale,
        activation: vit.activation,
        norm_epsilon: vit.norm_epsilon,
        dropout: vit.dropout,
        attention_dropout: vit.attention_dropout,
        drop_path: vit.drop_path,
        pooling: if vit.classes > 0 { Pooling::TokenAndMean } else { Pooling::Token },
        positions: Positions::Learned,
        positions_on,
        final_norm: FinalNorm::BeforePooling,
        ..Vit::default()
    };
    if *vit != like
        || vit.qkv.bias == QkvBias::QueryValue
        || vit.layer_scale.is_none()
        || (vit.registers > 0) != registers
    {
        return Err(
            "Hugging Face's DINOv2 is a ViT with layer scale, whose head reads the class token and the mean".into()
        );
    }
    let prefix = if registers { "Dinov2WithRegisters" } else { "Dinov2" };
    let class = format!("{prefix}{}", if vit.classes > 0 { "ForImageClassification" } else { "Model" });
    let mut options = written(vit);
    options.remove("intermediate_size");
    let ratio = vit.mlp_dim as f64 / vit.dim as f64;
    let ratio = if (vit.dim as f64 * ratio) as usize == vit.mlp_dim { ratio } else { ratio.next_up() };
    // transformers takes whole ratios only as integers.
    let ratio = if ratio.fract() == 0.0 { json!(ratio as u64) } else { json!(ratio) };
    options.insert("mlp_ratio".into(), ratio);
    options.insert("hidden_act".into(), json!(activation(vit.activation)));
    options.insert("layerscale_value".into(), json!(vit.layer_scale));
    options.insert("drop_path_rate".into(), json!(vit.drop_path));
    if registers {
        options.insert("num_register_tokens".into(), json!(vit.registers));
    }
    Ok((class, options))
}
