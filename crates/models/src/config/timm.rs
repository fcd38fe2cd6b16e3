//! timm's configurations: the hub's `config.json`, and the constructor of `VisionTransformer`.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Activation, Operation};

use super::{Arguments, Config, unnamed};
use crate::architecture::Architecture;
use crate::preprocessing::Preprocessing;
use crate::variant::{suggestions, variant};
use crate::vit::{FinalNorm, Pooling, Positions, PositionsOn, Vit};

/// Options that change how timm trains or starts a model, not what the model computes.
const IGNORED: [&str; 9] = [
    "weight_init",
    "fix_init",
    "dynamic_img_size",
    "dynamic_img_pad",
    "strict_img_size",
    "pretrained",
    "features_only",
    "patch_drop_rate",
    "drop_rate",
];

/// The hub's form.
pub(super) fn parse(map: &Map<String, Value>) -> Result<Config, String> {
    let name = map["architecture"].as_str().ok_or("`architecture` is not a string")?;
    let Some(mut found) = variant(name) else {
        let near = suggestions(name);
        let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) };
        return Err(format!("the architecture `{name}` is not known here{hint}"));
    };
    // Older files have the preprocessing at the top level.
    let pretrained = map.get("pretrained_cfg").and_then(Value::as_object).unwrap_or(map);
    let Architecture::Vit(vit) = &mut found.architecture;
    if let Some(&[channels, height, width]) = numbers(pretrained.get("input_size")).as_deref() {
        vit.channels = channels as usize;
        vit.image_size = [height as usize, width as usize];
    }
    let classes = map.get("num_classes").or_else(|| pretrained.get("num_classes")).and_then(Value::as_u64);
    vit.classes = classes.map_or(vit.classes, |n| n as usize);
    if let Some(args) = map.get("model_args").and_then(Value::as_object) {
        *vit = apply(&Arguments::new("timm", args), vit.clone())?;
    }
    if let Some(extra) = map.get(EXTRA).and_then(Value::as_object) {
        apply_extra(&Arguments::new("vit", extra), vit)?;
    }
    let preprocessing = preprocessing(pretrained, Preprocessing { image_size: vit.image_size, ..found.preprocessing });
    Ok(Config {
        name: Some(name.into()),
        labels: labels(map, vit.classes),
        preprocessing,
        architecture: found.architecture,
    })
}

/// The constructor's form.
pub(super) fn from_arguments(args: &Map<String, Value>, distilled: bool) -> Result<Config, String> {
    let base = Vit { distillation_token: distilled, distillation_head: distilled, ..Vit::default() };
    let vit = apply(&Arguments::new("timm", args), base)?;
    let usual = if distilled { Preprocessing::imagenet() } else { Preprocessing::inception() };
    Ok(unnamed(vit, usual))
}

/// Changes a model as the constructor's arguments say.
fn apply(args: &Arguments, mut vit: Vit) -> Result<Vit, String> {
    let old_ratio = vit.mlp_dim as f64 / vit.dim as f64;
    vit.image_size = args.pair("img_size")?.unwrap_or(vit.image_size);
    vit.patch_size = args.pair("patch_size")?.unwrap_or(vit.patch_size);
    vit.channels = args.count("in_chans")?.unwrap_or(vit.channels);
    vit.classes = args.count("num_classes")?.unwrap_or(vit.classes);
    vit.dim = args.count("embed_dim")?.unwrap_or(vit.dim);
    vit.depth = args.count("depth")?.unwrap_or(vit.depth);
    vit.heads = args.count("num_heads")?.unwrap_or(vit.heads);
    vit.mlp_dim = (vit.dim as f64 * args.number("mlp_ratio")?.unwrap_or(old_ratio)) as usize;
    vit.qkv_bias = args.flag("qkv_bias")?.unwrap_or(vit.qkv_bias);
    vit.qk_norm = args.flag("qk_norm")?.unwrap_or(vit.qk_norm);
    vit.class_token = args.flag("class_token")?.unwrap_or(vit.class_token);
    vit.registers = args.count("reg_tokens")?.unwrap_or(vit.registers);
    vit.pre_norm = args.flag("pre_norm")?.unwrap_or(vit.pre_norm);
    vit.layer_scale = args.number("init_values")?.map(|v| v as f32).or(vit.layer_scale);
    vit.activation = args.activation("act_layer")?.unwrap_or(vit.activation);
    if let Some(no_embed_class) = args.flag("no_embed_class")? {
        vit.positions_on = if no_embed_class { PositionsOn::Patches } else { PositionsOn::AllTokens };
    }
    match args.text("pos_embed")? {
        Some("" | "none") => vit.positions = Positions::None,
        Some("learn") => vit.positions = Positions::Learned,
        Some(other) => return Err(format!("timm's option `pos_embed` should be learn or none, not {other}")),
        None => {}
    }
    let found_pooling = vit.pooling;
    let pooling = args.text("global_pool")?;
    match pooling {
        Some("token") => vit.pooling = Pooling::Token,
        Some("avg") => vit.pooling = Pooling::Mean,
        Some("map") => vit.pooling = Pooling::Map,
        Some(other) => return Err(format!("timm's option `global_pool` should be token, avg or map, not `{other}`")),
        None => {}
    }
    // A named model that averages after its norm says `fc_norm: false` itself, and timm keeps that.
    let fixed = (found_pooling == Pooling::Mean && vit.final_norm == FinalNorm::BeforePooling).then_some(false);
    let fc_norm = args.flag("fc_norm")?.or(fixed);
    let final_norm = args.flag("final_norm")?.unwrap_or(vit.final_norm != FinalNorm::Absent);
    vit.final_norm = match (final_norm, fc_norm, pooling) {
        (false, ..) => FinalNorm::Absent,
        (_, Some(true), _) | (_, None, Some("avg")) => FinalNorm::AfterPooling,
        (_, Some(false), _) | (_, None, Some(_)) => FinalNorm::BeforePooling,
        (_, None, None) => vit.final_norm,
    };
    let rates = [args.rate("proj_drop_rate")?, args.rate("pos_drop_rate")?];
    vit.dropout = rates.into_iter().flatten().fold(vit.dropout, f32::max);
    vit.attention_dropout = args.rate("attn_drop_rate")?.unwrap_or(vit.attention_dropout);
    vit.drop_path = args.rate("drop_path_rate")?.unwrap_or(vit.drop_path);
    // What timm has off by default is understood as long as it stays off.
    for name in ["pool_include_prefix", "scale_attn_norm", "scale_mlp_norm"] {
        if args.flag(name)? == Some(true) {
            return Err(format!("timm's option `{name}` cannot be used here yet"));
        }
    }
    if args.flag("proj_bias")? == Some(false) {
        return Err("timm's option `proj_bias: false` cannot be used here yet".into());
    }
    args.finish(&IGNORED)?;
    Ok(vit)
}

fn numbers(value: Option<&Value>) -> Option<Vec<u64>> {
    value?.as_array()?.iter().map(Value::as_u64).collect()
}

fn preprocessing(cfg: &Map<String, Value>, usual: Preprocessing) -> Preprocessing {
    let floats = |name: &str| -> Option<Vec<f32>> {
        cfg.get(name)?.as_array()?.iter().map(|v| v.as_f64().map(|v| v as f32)).collect()
    };
    let text = |name: &str| cfg.get(name).and_then(Value::as_str).map(str::to_string);
    Preprocessing {
        image_size: usual.image_size,
        crop_pct: cfg.get("crop_pct").and_then(Value::as_f64).unwrap_or(usual.crop_pct),
        crop_mode: text("crop_mode").unwrap_or(usual.crop_mode),
        interpolation: text("interpolation").unwrap_or(usual.interpolation),
        mean: floats("mean").unwrap_or(usual.mean),
        std: floats("std").unwrap_or(usual.std),
    }
}

/// `label_names` as a list or by number, with `label_descriptions` in their place where there are any.
fn labels(map: &Map<String, Value>, classes: usize) -> Vec<String> {
    let names: Vec<String> = match map.get("label_names") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_string).collect(),
        Some(Value::Object(by_number)) => {
            (0..classes).filter_map(|i| by_number.get(&i.to_string())?.as_str().map(str::to_string)).collect()
        }
        _ => Vec::new(),
    };
    if names.len() != classes {
        return Vec::new();
    }
    let descriptions = map.get("label_descriptions").and_then(Value::as_object);
    let describe = |name: String| descriptions.and_then(|d| d.get(&name)?.as_str().map(str::to_string)).unwrap_or(name);
    names.into_iter().map(describe).collect()
}

/// The key for what timm's own options cannot say. timm ignores it.
const EXTRA: &str = "vit";

fn apply_extra(extra: &Arguments, vit: &mut Vit) -> Result<(), String> {
    vit.norm_epsilon = extra.number("norm_epsilon")?.map_or(vit.norm_epsilon, |e| e as f32);
    vit.pre_logits = extra.count("pre_logits")?.or(vit.pre_logits);
    vit.distillation_token = extra.flag("distillation_token")?.unwrap_or(vit.distillation_token);
    vit.distillation_head = extra.flag("distillation_head")?.unwrap_or(vit.distillation_head);
    // A ratio in floating point cannot give every width.
    vit.mlp_dim = extra.count("mlp_dim")?.unwrap_or(vit.mlp_dim);
    vit.positions = match extra.text("positions")? {
        None => vit.positions,
        Some("learned_2d") => Positions::Learned2d,
        Some("sin_cos") => Positions::SinCos,
        Some("relative") => Positions::Relative,
        Some(other) => return Err(format!("`positions` should be learned_2d, sin_cos or relative, not {other}")),
    };
    extra.finish(&[])
}

/// The hub's form of a configuration, from which timm builds the same model.
pub fn timm_config(config: &Config) -> Value {
    let Architecture::Vit(vit) = &config.architecture;
    let plain = if vit.distillation_head { "deit_base_distilled_patch16_224" } else { "vit_base_patch16_224" };
    let name = config.name.clone().filter(|name| variant(name).is_some()).unwrap_or_else(|| plain.into());
    let name = name.split('.').next().unwrap_or_default().to_string();
    let pooling = match vit.pooling {
        Pooling::Token => "token",
        Pooling::Mean => "avg",
        Pooling::Map => "map",
    };
    let mut args = Map::new();
    let mut set = |name: &str, value: Value| args.insert(name.into(), value);
    set("img_size", json!(vit.image_size));
    set("patch_size", square(vit.patch_size));
    set("embed_dim", json!(vit.dim));
    set("depth", json!(vit.depth));
    set("num_heads", json!(vit.heads));
    set("mlp_ratio", json!(vit.mlp_dim as f64 / vit.dim as f64));
    set("qkv_bias", json!(vit.qkv_bias));
    set("class_token", json!(vit.class_token));
    if !vit.distillation_head {
        set("global_pool", json!(pooling));
        set("fc_norm", json!(vit.final_norm == FinalNorm::AfterPooling));
    }
    for (name, on) in [
        ("qk_norm", vit.qk_norm),
        ("pre_norm", vit.pre_norm),
        ("no_embed_class", vit.positions_on == PositionsOn::Patches),
    ] {
        if on {
            set(name, json!(true));
        }
    }
    if vit.final_norm == FinalNorm::Absent {
        set("final_norm", json!(false));
    }
    if vit.registers > 0 {
        set("reg_tokens", json!(vit.registers));
    }
    if let Some(initial) = vit.layer_scale {
        set("init_values", json!(f64::from(initial)));
    }
    if vit.activation != Activation::Gelu {
        set("act_layer", json!(vit.activation.name()));
    }
    if vit.positions == Positions::None {
        set("pos_embed", json!("none"));
    }
    let p = &config.preprocessing;
    let mut root = json!({
        "architecture": name,
        "num_classes": vit.classes,
        "num_features": vit.dim,
        "global_pool": pooling,
        "model_args": args,
        "pretrained_cfg": {
            "input_size": [vit.channels, p.image_size[0], p.image_size[1]],
            "fixed_input_size": true,
            "interpolation": p.interpolation,
            "crop_pct": p.crop_pct,
            "crop_mode": p.crop_mode,
            "mean": round(&p.mean),
            "std": round(&p.std),
            "num_classes": vit.classes,
            // timm adapts this layer from three channels wherever a model has others, even when its weights do too.
            "first_conv": (vit.channels == 3).then_some("patch_embed.proj"),
            "classifier": if vit.distillation_head { json!(["head", "head_dist"]) } else { json!("head") },
        },
    });
    if config.labels.len() == vit.classes && vit.classes > 0 {
        root["label_names"] = json!(config.labels);
    }
    let extra = extra(vit, &name);
    if !extra.is_empty() {
        root[EXTRA] = Value::Object(extra);
    }
    root
}

/// What timm's options cannot say about a model.
fn extra(vit: &Vit, name: &str) -> Map<String, Value> {
    let mut extra = Map::new();
    if vit.norm_epsilon != Vit::default().norm_epsilon {
        extra.insert("norm_epsilon".into(), json!(short(vit.norm_epsilon)));
    }
    if let Some(hidden) = vit.pre_logits {
        extra.insert("pre_logits".into(), json!(hidden));
    }
    if vit.distillation_token && !vit.distillation_head {
        extra.insert("distillation_token".into(), json!(true));
    }
    if name.contains("_distilled") && !vit.distillation_head {
        extra.insert("distillation_head".into(), json!(false));
    }
    if (vit.dim as f64 * (vit.mlp_dim as f64 / vit.dim as f64)) as usize != vit.mlp_dim {
        extra.insert("mlp_dim".into(), json!(vit.mlp_dim));
    }
    let positions = match vit.positions {
        Positions::None | Positions::Learned => None,
        Positions::Learned2d => Some("learned_2d"),
        Positions::SinCos => Some("sin_cos"),
        Positions::Relative => Some("relative"),
    };
    if let Some(positions) = positions {
        extra.insert("positions".into(), json!(positions));
    }
    extra
}

/// What timm will do otherwise than this model when it opens [`timm_config`], one line each.
pub fn timm_differences(config: &Config) -> Vec<String> {
    let Architecture::Vit(vit) = &config.architecture;
    extra(vit, "").iter().map(|(name, value)| format!("timm has no option for `{name}: {value}`")).collect()
}

/// One number where both sides are equal.
fn square(size: [usize; 2]) -> Value {
    if size[0] == size[1] { json!(size[0]) } else { json!(size) }
}

fn round(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| short(v)).collect()
}

/// The shortest decimal that means this f32, so that 0.485 is written and not 0.48500001430511475.
pub(super) fn short(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
