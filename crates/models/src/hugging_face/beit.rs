//! `beit` and `data2vec-vision`: ViT with relative position biases, layer scale, and no bias of the keys.

use super::names::Names;
use super::vision_transformer::{AROUND, read};
use super::{ModelType, Task, processor, unchanged};
use crate::config::Arguments;
use crate::vit::{
    BiasSharing, FinalNorm, Lineage, Pooling, Positions, Qkv, QkvBias, RelativeBias, RelativeBiasKind, Vit,
};

const NAMES: &[(&str, &str)] = &[
    ("encoder.layer.*.layernorm_before", "blocks.*.norm1"),
    ("encoder.layer.*.layernorm_after", "blocks.*.norm2"),
    ("encoder.layer.*.lambda_1", "blocks.*.ls1.gamma"),
    ("encoder.layer.*.lambda_2", "blocks.*.ls2.gamma"),
    ("encoder.layer.*.attention.attention.query.weight", "blocks.*.attn.qkv.weight#0"),
    ("encoder.layer.*.attention.attention.key.weight", "blocks.*.attn.qkv.weight#1"),
    ("encoder.layer.*.attention.attention.value.weight", "blocks.*.attn.qkv.weight#2"),
    ("encoder.layer.*.attention.attention.query.bias", "blocks.*.attn.q_bias"),
    ("encoder.layer.*.attention.attention.value.bias", "blocks.*.attn.v_bias"),
    ("encoder.layer.*.attention.attention.relative_position_bias", "blocks.*.attn.rel_pos"),
    ("encoder.relative_position_bias", "shared_rel_pos"),
    ("encoder.layer.*.attention.output.dense", "blocks.*.attn.proj"),
    ("encoder.layer.*.intermediate.dense", "blocks.*.mlp.fc1"),
    ("encoder.layer.*.output.dense", "blocks.*.mlp.fc2"),
    ("pooler.layernorm", "fc_norm"),
    // transformers 5's modules.
    ("layers.*.layernorm_before", "blocks.*.norm1"),
    ("layers.*.layernorm_after", "blocks.*.norm2"),
    ("layers.*.lambda_1", "blocks.*.ls1.gamma"),
    ("layers.*.lambda_2", "blocks.*.ls2.gamma"),
    ("layers.*.attention.q_proj.weight", "blocks.*.attn.qkv.weight#0"),
    ("layers.*.attention.k_proj.weight", "blocks.*.attn.qkv.weight#1"),
    ("layers.*.attention.v_proj.weight", "blocks.*.attn.qkv.weight#2"),
    ("layers.*.attention.q_proj.bias", "blocks.*.attn.q_bias"),
    ("layers.*.attention.v_proj.bias", "blocks.*.attn.v_bias"),
    ("layers.*.relative_position_bias", "blocks.*.attn.rel_pos"),
    ("shared_position_bias", "shared_rel_pos"),
    ("layers.*.attention.o_proj", "blocks.*.attn.proj"),
    ("layers.*.mlp", "blocks.*.mlp"),
];

/// Options of pre-training and of segmentation.
const OTHER_TASKS: [&str; 9] = [
    "vocab_size",
    "use_mask_token",
    "pool_scales",
    "use_auxiliary_head",
    "auxiliary_loss_weight",
    "auxiliary_channels",
    "auxiliary_num_convs",
    "auxiliary_concat_input",
    "semantic_loss_ignore_index",
];

pub(super) const TYPE: ModelType = ModelType {
    name: "beit",
    class: "Beit",
    base: "beit.",
    read: |args, task| Ok(beit(args, task)?.into()),
    names: |_| Names::new(AROUND).and(NAMES),
    unused: &["embeddings.mask_token", "lm_head."],
    convert: unchanged,
    preprocessing: processor::siglip,
    any_size: false,
    write: None,
};

pub(super) const DATA2VEC: ModelType = ModelType {
    name: "data2vec-vision",
    class: "Data2VecVision",
    base: "data2vec_vision.",
    read: |args, task| {
        let mut vit = beit(args, task)?;
        // Without a head this type has no pooler, nor its norm.
        if task.labels == 0 && vit.final_norm == FinalNorm::AfterPooling {
            vit.final_norm = FinalNorm::Absent;
        }
        Ok(vit.into())
    },
    ..TYPE
};

fn beit(args: &Arguments, task: Task) -> Result<Vit, String> {
    for option in OTHER_TASKS.iter().chain(&["add_fpn", "segmentation_indices"]) {
        args.get(option);
    }
    let flag = |name, usual| args.flag(name).map(|flag| flag.unwrap_or(usual));
    let sharing = match (flag("use_relative_position_bias", false)?, flag("use_shared_relative_position_bias", false)?)
    {
        (true, true) => Some(BiasSharing::Both),
        (true, false) => Some(BiasSharing::PerBlock),
        (false, true) => Some(BiasSharing::Shared),
        (false, false) => None,
    };
    let layer_scale = args.number("layer_scale_init_value")?.unwrap_or(0.1) as f32;
    // Pre-training has no pooler, and a norm on all tokens.
    let pooled = flag("use_mean_pooling", true)? && !task.class.contains("MaskedImageModeling");
    Ok(Vit {
        lineage: Lineage::Beit,
        positions: if flag("use_absolute_position_embeddings", false)? { Positions::Learned } else { Positions::None },
        relative_bias: sharing.map(|sharing| RelativeBias { kind: RelativeBiasKind::Table, sharing }),
        qkv: Qkv { bias: QkvBias::QueryValue, separate: false },
        layer_scale: (layer_scale > 0.0).then_some(layer_scale),
        pooling: if pooled { Pooling::Mean } else { Pooling::Token },
        final_norm: if pooled { FinalNorm::AfterPooling } else { FinalNorm::BeforePooling },
        drop_path: args.rate("drop_path_rate")?.unwrap_or(0.1),
        ..read(args, task, 1e-12)?
    })
}
