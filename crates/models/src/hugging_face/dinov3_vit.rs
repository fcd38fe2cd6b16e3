//! `dinov3_vit`: ViT with rotary positions, registers and layer scale, and no bias of the keys.

use super::names::Names;
use super::vision_transformer::read;
use super::{ModelType, Task, processor};
use crate::architecture::Architecture;
use crate::config::Arguments;
use crate::layers::Gate;
use crate::vit::{
    CoordinateAugmentation, Lineage, Positions, PositionsOn, Qkv, QkvBias, RotaryAngles, RotaryPositions, Vit,
};

const NAMES: &[(&str, &str)] = &[
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.register_tokens", "reg_token"),
    ("embeddings.patch_embeddings", "patch_embed.proj"),
    ("layer.*.norm1", "blocks.*.norm1"),
    ("layer.*.norm2", "blocks.*.norm2"),
    ("layer.*.attention.q_proj.weight", "blocks.*.attn.qkv.weight#0"),
    ("layer.*.attention.k_proj.weight", "blocks.*.attn.qkv.weight#1"),
    ("layer.*.attention.v_proj.weight", "blocks.*.attn.qkv.weight#2"),
    ("layer.*.attention.o_proj", "blocks.*.attn.proj"),
    ("layer.*.layer_scale1.lambda1", "blocks.*.ls1.gamma"),
    ("layer.*.layer_scale2.lambda1", "blocks.*.ls2.gamma"),
    ("layer.*.mlp.down_proj", "blocks.*.mlp.fc2"),
    ("norm", "norm"),
];

const ALL_BIASES: &[(&str, &str)] = &[
    ("layer.*.attention.q_proj.bias", "blocks.*.attn.qkv.bias#0"),
    ("layer.*.attention.k_proj.bias", "blocks.*.attn.qkv.bias#1"),
    ("layer.*.attention.v_proj.bias", "blocks.*.attn.qkv.bias#2"),
];

const QUERY_VALUE_BIASES: &[(&str, &str)] = &[
    ("layer.*.attention.q_proj.bias", "blocks.*.attn.q_bias"),
    ("layer.*.attention.v_proj.bias", "blocks.*.attn.v_bias"),
];

const PLAIN: &[(&str, &str)] = &[("layer.*.mlp.up_proj", "blocks.*.mlp.fc1")];

const GATED: &[(&str, &str)] =
    &[("layer.*.mlp.gate_proj", "blocks.*.mlp.fc1_g"), ("layer.*.mlp.up_proj", "blocks.*.mlp.fc1_x")];

pub(super) const TYPE: ModelType = ModelType {
    name: "dinov3_vit",
    class: "DINOv3ViT",
    // transformers 5's modules have the prefix, published files do not.
    base: "model.",
    read: |args, task| Ok(dino(args, task)?.into()),
    names,
    unused: &["embeddings.mask_token"],
    convert: |weights, _| {
        // Without registers there is an empty tensor of them.
        weights.tensors.retain(|_, tensor| !tensor.data.is_empty());
        Ok(())
    },
    preprocessing: processor::dinov3,
    any_size: true,
    write: None,
};

fn names(model: &Architecture) -> Names {
    let Some(vit) = model.downcast_ref::<Vit>() else { return Names::default() };
    let biases = if vit.qkv.bias == QkvBias::All { ALL_BIASES } else { QUERY_VALUE_BIASES };
    Names::new(NAMES).and(biases).and(if vit.gate == Gate::None { PLAIN } else { GATED })
}

fn dino(args: &Arguments, task: Task) -> Result<Vit, String> {
    let bias = |name| args.flag(name).map(|flag| flag.unwrap_or(name != "key_bias"));
    let qkv_bias = match (bias("query_bias")?, bias("key_bias")?, bias("value_bias")?) {
        (true, true, true) => QkvBias::All,
        (true, false, true) => QkvBias::QueryValue,
        (false, false, false) => QkvBias::None,
        _ => {
            return Err(
                "Hugging Face's options `query_bias`, `key_bias` and `value_bias` can be used here as true, false \
                        and true, or all the same"
                    .into(),
            );
        }
    };
    let projection_bias = bias("proj_bias")?;
    if bias("mlp_bias")? != projection_bias {
        return Err("Hugging Face's options `proj_bias` and `mlp_bias` should be the same".into());
    }
    let float = |name| args.number(name).map(|value| value.map(|value| value as f32));
    let augmentation = CoordinateAugmentation {
        shift: float("pos_embed_shift")?,
        jitter: float("pos_embed_jitter")?,
        rescale: if args.has("pos_embed_rescale") { float("pos_embed_rescale")? } else { Some(2.0) },
    };
    let rotary = RotaryPositions {
        angles: RotaryAngles::Centred { augmentation, bf16_periods: false },
        temperature: float("rope_theta")?.unwrap_or(100.0),
        ..RotaryPositions::dinov3()
    };
    let gated = args.flag("use_gated_mlp")? == Some(true);
    let count = |name, usual| args.count(name).map(|count| count.unwrap_or(usual));
    Ok(Vit {
        lineage: Lineage::Eva,
        dim: count("hidden_size", 384)?,
        heads: count("num_attention_heads", 6)?,
        mlp_dim: count("intermediate_size", 1536)?,
        gate: if gated { Gate::Separate } else { Gate::None },
        registers: count("num_register_tokens", 0)?,
        positions: Positions::None,
        positions_on: PositionsOn::Patches,
        rotary: Some(rotary),
        qkv: Qkv { bias: qkv_bias, separate: false },
        projection_bias,
        layer_scale: Some(float("layerscale_value")?.unwrap_or(1.0)),
        attention_dropout: args.rate("attention_dropout")?.unwrap_or_default(),
        drop_path: args.rate("drop_path_rate")?.unwrap_or_default(),
        ..read(args, task, 1e-5)?
    })
}
