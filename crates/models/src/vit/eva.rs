//! The constructor of timm's `Eva`: EVA, EVA-02, DINOv3, the Perception Encoder and others with rotary positions.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Activation, RotaryPairs};

use super::timm::{IGNORED, configure_encoder, pooling, width_ratio};
use super::{
    BlockKind, CoordinateAugmentation, FinalNorm, Lineage, Pooling, Positions, PositionsOn, Qkv, QkvBias, RotaryAngles,
    RotaryPositions, Vit,
};
use crate::config::Arguments;
use crate::config::timm::short;
use crate::layers::{Gate, NormKind};

pub(super) const CLASS: &str = "timm.models.eva.Eva";

/// The model made without arguments.
pub(super) fn default() -> Vit {
    Vit {
        lineage: Lineage::Eva,
        qkv: Qkv::packed(QkvBias::QueryValue),
        pooling: Pooling::Mean,
        final_norm: FinalNorm::AfterPooling,
        ..Vit::default()
    }
}

/// A named model with the same norms, whose classes are not among the arguments that timm reads from a file.
pub(super) fn base(vit: &Vit) -> &'static str {
    match vit.norm {
        NormKind::Rms => "vit_base_patch16_sapiens2",
        NormKind::Layer if vit.norm_epsilon == 1e-5 => "vit_small_patch16_dinov3",
        NormKind::Layer => "eva02_tiny_patch14_224",
    }
}

pub(super) fn configure(vit: &mut Vit, args: &Arguments) -> Result<(), String> {
    // `AttentionRope` has biases of all three projections, `EvaAttention` none of the keys.
    let all = match args.text("attn_type")? {
        Some("rope") => true,
        Some("eva") => false,
        Some(other) => return Err(format!("timm's option `attn_type` should be eva or rope, not `{other}`")),
        None => vit.qkv.bias == QkvBias::All,
    };
    let with_bias = if all { QkvBias::All } else { QkvBias::QueryValue };
    if vit.qkv.bias != QkvBias::None {
        vit.qkv.bias = with_bias;
    }
    let old_ratio = width_ratio(vit.mlp_dim, vit.dim);
    configure_encoder(vit, args, with_bias)?;
    vit.qkv.separate = args.flag("qkv_fused")?.map_or(vit.qkv.separate, |fused| !fused);
    configure_heads(vit, args)?;
    if args.has("init_values") {
        vit.layer_scale = args.number("init_values")?.map(|initial| initial as f32);
    }
    for (name, field) in [
        ("qk_norm", &mut vit.qk_norm),
        ("scale_attn_inner", &mut vit.attention_norm),
        ("attn_only_layer_scale", &mut vit.attention_only_layer_scale),
        ("class_token", &mut vit.class_token),
        ("use_pre_transformer_norm", &mut vit.pre_norm),
    ] {
        *field = args.flag(name)?.unwrap_or(*field);
    }
    if let Some(post) = args.flag("use_post_norm")? {
        vit.block = if post { BlockKind::PostNorm } else { BlockKind::PreNorm };
    }
    let unaligned = configure_mlp(vit, args, old_ratio)?;
    vit.registers = args.count("num_reg_tokens")?.unwrap_or(vit.registers);
    if let Some(embedded) = args.flag("use_abs_pos_emb")? {
        vit.positions = if embedded { Positions::Learned } else { Positions::None };
    }
    if let Some(patches) = args.flag("no_embed_class")? {
        vit.positions_on = if patches { PositionsOn::Patches } else { PositionsOn::AllTokens };
    }
    configure_pooling(vit, args, unaligned)?;
    let rotary = rotary(vit.rotary.unwrap_or(PLAIN), args)?;
    let has_rotary = args.flag("use_rot_pos_emb")?.unwrap_or(vit.rotary.is_some());
    vit.rotary = has_rotary.then_some(rotary);
    args.finish(&[&IGNORED[..], &["head_init_scale"]].concat())
}

/// One number for all blocks, or one for each.
fn configure_heads(vit: &mut Vit, args: &Arguments) -> Result<(), String> {
    if args.has("num_kv_heads") {
        vit.key_value_heads = match args.get("num_kv_heads") {
            None => Vec::new(),
            Some(Value::Array(_)) => args.counts("num_kv_heads")?.unwrap_or_default(),
            Some(_) => vec![args.count("num_kv_heads")?.unwrap_or(vit.heads); vit.depth],
        };
    }
    if vit.key_value_heads.iter().all(|heads| *heads == vit.heads) {
        vit.key_value_heads.clear();
    }
    Ok(())
}

/// A gate is packed into one projection unless the MLP has a norm or its width is aligned. Gives the width before alignment.
fn configure_mlp(vit: &mut Vit, args: &Arguments, old_ratio: f64) -> Result<usize, String> {
    let gated = args.flag("swiglu_mlp")?.unwrap_or(vit.gate != Gate::None);
    let aligned = vit.gate == Gate::Separate && !vit.mlp_norm;
    let alignment = args.count("swiglu_align_to")?.unwrap_or(usize::from(aligned));
    vit.mlp_norm = args.flag("scale_mlp")?.unwrap_or(vit.mlp_norm);
    let separate = vit.mlp_norm || (alignment > 0 && vit.block == BlockKind::PreNorm);
    (vit.gate, vit.activation) = match (gated, separate) {
        (false, _) => (Gate::None, Activation::Gelu),
        (true, false) => (Gate::Packed, Activation::Silu),
        (true, true) => (Gate::Separate, Activation::Silu),
    };
    let unaligned = (vit.dim as f64 * args.number("mlp_ratio")?.unwrap_or(old_ratio)) as usize;
    let alignment = if vit.gate == Gate::Separate { alignment.max(1) } else { 1 };
    vit.mlp_dim = unaligned.next_multiple_of(alignment);
    Ok(unaligned)
}

/// The mean moves the norm after the pooling, unless an argument says otherwise; a named model that differs sets that
/// argument itself.
fn configure_pooling(vit: &mut Vit, args: &Arguments, unaligned: usize) -> Result<(), String> {
    let fixed = match (vit.pooling, vit.final_norm) {
        (_, FinalNorm::Absent) => [Some(false), Some(false)],
        (Pooling::Mean, FinalNorm::BeforePooling) => [Some(false), None],
        (other, FinalNorm::AfterPooling) if other != Pooling::Mean => [Some(true), None],
        _ => [None, None],
    };
    vit.pooling = match args.text("global_pool")? {
        None => vit.pooling,
        Some("avg") => Pooling::Mean,
        Some("max") => Pooling::Max,
        Some("avgmax") => Pooling::MeanMax,
        Some("token") => Pooling::Token,
        Some("map") => Pooling::Map,
        Some("") => Pooling::None,
        Some(other) => {
            return Err(format!("timm's option `global_pool` should be avg, max, avgmax, token or map, not `{other}`"));
        }
    };
    let after = args.flag("use_fc_norm")?.or(fixed[0]).unwrap_or(vit.pooling == Pooling::Mean);
    let before = args.flag("use_post_transformer_norm")?.or(fixed[1]).unwrap_or(!after);
    vit.final_norm = match (before, after) {
        (true, false) => FinalNorm::BeforePooling,
        (false, true) => FinalNorm::AfterPooling,
        (false, false) => FinalNorm::Absent,
        (true, true) => {
            return Err(
                "timm's options `use_post_transformer_norm` and `use_fc_norm` cannot be used together here".into()
            );
        }
    };
    // Attention pooling is over all tokens.
    vit.pool_prefix = vit.pooling == Pooling::Map;
    vit.pool_heads = args.count("attn_pool_num_heads")?.or(vit.pool_heads);
    let ratio = args.number("attn_pool_mlp_ratio")?;
    vit.pool_mlp_dim = ratio.map(|ratio| (vit.dim as f64 * ratio) as usize).or(vit.pool_mlp_dim);
    // Its hidden layer has the blocks' ratio and no alignment.
    if vit.pooling == Pooling::Map && unaligned != vit.mlp_dim {
        vit.pool_mlp_dim.get_or_insert(unaligned);
    }
    Ok(())
}

/// Options that this class does not have: they could not be written.
pub(super) fn contradiction(vit: &Vit) -> Option<String> {
    let aligned = vit.gate == Gate::Separate && !vit.mlp_norm;
    let (what, _) = [
        ("convolutional stages before the encoder", vit.backbone.is_some()),
        ("a norm on the patch embeddings", vit.patch_norm),
        ("blocks with several branches", !matches!(vit.block, BlockKind::PreNorm | BlockKind::PostNorm)),
        ("relative positions", vit.relative_bias.is_some()),
        ("differential attention", vit.differential),
        (
            "separate gates without a norm in blocks with norms at their end",
            aligned && vit.block == BlockKind::PostNorm,
        ),
        (
            "biases of query and value alone where keys are shared by several heads",
            vit.qkv.bias == QkvBias::QueryValue && !vit.key_value_heads.is_empty(),
        ),
        ("pooling over all tokens but by attention", vit.pool_prefix != (vit.pooling == Pooling::Map)),
    ]
    .into_iter()
    .find(|(_, present)| *present)?;
    Some(format!("timm's class Eva has no option for {what}"))
}

/// The rotary positions of the class without arguments.
const PLAIN: RotaryPositions = RotaryPositions {
    angles: RotaryAngles::Axial { reference: None },
    temperature: 10_000.0,
    pairs: RotaryPairs::Adjacent,
    columns_first: false,
    offset: 0.0,
};

fn rotary(old: RotaryPositions, args: &Arguments) -> Result<RotaryPositions, String> {
    let reference = match old.angles {
        RotaryAngles::Axial { reference } => reference,
        _ => None,
    };
    let reference = if args.has("ref_feat_shape") { args.pair("ref_feat_shape")? } else { reference };
    let (augmentation, bf16_periods) = match old.angles {
        RotaryAngles::Centred { augmentation, bf16_periods } => (augmentation, bf16_periods),
        _ => (CoordinateAugmentation::default(), false),
    };
    let coordinate = |name: &str, old: Option<f32>| {
        Ok::<_, String>(if args.has(name) { args.number(name)?.map(|v| v as f32) } else { old })
    };
    let augmentation = CoordinateAugmentation {
        shift: coordinate("rope_shift_coords", augmentation.shift)?,
        jitter: coordinate("rope_jitter_coords", augmentation.jitter)?,
        rescale: coordinate("rope_rescale_coords", augmentation.rescale)?,
    };
    let angles = match args.text("rope_type")?.unwrap_or(kind(old.angles)) {
        "cat" => RotaryAngles::Axial { reference },
        "dinov3" => RotaryAngles::Centred { augmentation, bf16_periods },
        "mixed" => RotaryAngles::Mixed,
        other => return Err(format!("timm's option `rope_type` should be cat, dinov3 or mixed, not `{other}`")),
    };
    let offset = args.number("rope_grid_offset")?.map_or(old.offset, |offset| offset as f32);
    let columns_first = match args.text("rope_grid_indexing")? {
        None => old.columns_first,
        Some("ij") => false,
        Some("xy") => true,
        Some(other) => return Err(format!("timm's option `rope_grid_indexing` should be ij or xy, not `{other}`")),
    };
    // The tables of each kind are for one way to pair channels.
    let halves = matches!(angles, RotaryAngles::Centred { .. });
    let found = args.flag("rope_rotate_half")?.unwrap_or(old.pairs == RotaryPairs::Halves);
    if args.has("rope_rotate_half") && found != halves {
        return Err(format!("timm's option `rope_rotate_half` should be {halves} with `rope_type` {}", kind(angles)));
    }
    Ok(RotaryPositions {
        angles,
        temperature: args.number("rope_temperature")?.map_or(old.temperature, |t| t as f32),
        pairs: if halves { RotaryPairs::Halves } else { RotaryPairs::Adjacent },
        // Centred coordinates are always rows before columns.
        columns_first: columns_first && !halves,
        // Learned frequencies have no offset in timm.
        offset: if angles == RotaryAngles::Mixed { 0.0 } else { offset },
    })
}

/// timm's `rope_type`.
fn kind(angles: RotaryAngles) -> &'static str {
    match angles {
        RotaryAngles::Axial { .. } => "cat",
        RotaryAngles::Centred { .. } => "dinov3",
        RotaryAngles::Mixed => "mixed",
    }
}

/// The arguments without channels, classes and the norms' class, from those that all classes have.
pub(super) fn arguments(vit: &Vit, mut args: Map<String, Value>) -> Map<String, Value> {
    args.remove("act_layer");
    let mut set = |name: &str, value: Value| args.insert(name.into(), value);
    set("mlp_ratio", json!(width_ratio(vit.mlp_dim, vit.dim)));
    set("init_values", json!(vit.layer_scale.map(short)));
    set("attn_type", json!(if vit.qkv.bias == QkvBias::All { "rope" } else { "eva" }));
    set("qkv_fused", json!(!vit.qkv.separate));
    // Grouped queries are an option of `rope` alone, whose projections then differ by their biases only.
    if !vit.key_value_heads.is_empty() {
        set("attn_type", json!("rope"));
    }
    set("num_kv_heads", if vit.key_value_heads.is_empty() { Value::Null } else { json!(vit.key_value_heads) });
    for (name, on) in [
        ("qk_norm", vit.qk_norm),
        ("scale_attn_inner", vit.attention_norm),
        ("attn_only_layer_scale", vit.attention_only_layer_scale),
        ("class_token", vit.class_token),
        ("use_pre_transformer_norm", vit.pre_norm),
        ("use_post_norm", vit.block == BlockKind::PostNorm),
        ("swiglu_mlp", vit.gate != Gate::None),
        ("scale_mlp", vit.mlp_norm),
        ("no_embed_class", vit.positions_on == PositionsOn::Patches),
        ("use_abs_pos_emb", vit.positions == Positions::Learned),
        ("use_rot_pos_emb", vit.rotary.is_some()),
        ("use_fc_norm", vit.final_norm == FinalNorm::AfterPooling),
        ("use_post_transformer_norm", vit.final_norm == FinalNorm::BeforePooling),
    ] {
        set(name, json!(on));
    }
    let aligned = vit.gate == Gate::Separate && !vit.mlp_norm;
    set(
        "swiglu_align_to",
        json!(match aligned {
            false => 0,
            true if vit.mlp_dim.is_multiple_of(8) => 8,
            true => 1,
        }),
    );
    set("num_reg_tokens", json!(vit.registers));
    set("global_pool", json!(pooling(vit)));
    if let Some(heads) = vit.pool_heads {
        set("attn_pool_num_heads", json!(heads));
    }
    if let Some(hidden) = vit.pool_mlp_dim {
        set("attn_pool_mlp_ratio", json!(width_ratio(hidden, vit.dim)));
    }
    if let Some(rotary) = vit.rotary {
        args.extend(rotary_arguments(rotary));
    }
    args
}

fn rotary_arguments(rotary: RotaryPositions) -> Map<String, Value> {
    let mut args = Map::new();
    let mut set = |name: &str, value: Value| args.insert(name.into(), value);
    set("rope_type", json!(kind(rotary.angles)));
    set("rope_temperature", json!(short(rotary.temperature)));
    set("rope_rotate_half", json!(rotary.pairs == RotaryPairs::Halves));
    set("rope_grid_indexing", json!(if rotary.columns_first { "xy" } else { "ij" }));
    set("rope_grid_offset", json!(short(rotary.offset)));
    match rotary.angles {
        RotaryAngles::Axial { reference } => drop(set("ref_feat_shape", json!(reference))),
        RotaryAngles::Centred { augmentation, .. } => {
            set("rope_shift_coords", json!(augmentation.shift.map(short)));
            set("rope_jitter_coords", json!(augmentation.jitter.map(short)));
            set("rope_rescale_coords", json!(augmentation.rescale.map(short)));
        }
        RotaryAngles::Mixed => {}
    }
    args
}
