//! Hugging Face's configurations of ViT and DeiT and of their preprocessors, read and written.

use serde_json::{Map, Value, json};
use vit_graph::ops::Activation;

use super::timm::{short, square};
use super::{Arguments, Config, hub};
use crate::layers::{Gate, NormKind};
use crate::problem_type::ProblemType;
use crate::vit::{BlockKind, FinalNorm, Pooling, Positions, PositionsOn, Qkv, QkvBias, Vit};
use vit_preprocess::{CropMode, Filter, Preprocess};

/// Options that do not change what the model computes.
const IGNORED: [&str; 17] = [
    "architectures",
    "model_type",
    "dtype",
    "torch_dtype",
    "encoder_stride",
    "initializer_range",
    "pooler_act",
    "pooler_output_size",
    "label2id",
    "transformers_version",
    "_name_or_path",
    "problem_type",
    "finetuning_task",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
];

pub(super) fn parse(map: &Map<String, Value>, preprocessor: Option<&Value>) -> Result<Config, String> {
    let class = map.get("architectures").and_then(|a| a.as_array()?.first()?.as_str()).unwrap_or_default();
    let kind = map["model_type"].as_str().unwrap_or_default();
    if !["vit", "deit"].contains(&kind) {
        return Err(format!("Hugging Face's model type `{kind}` is not known here; vit and deit are"));
    }
    build(kind == "deit", class, map, preprocessor)
}

pub(super) fn from_arguments(class: &str, args: &Map<String, Value>) -> Result<Config, String> {
    if !class.starts_with("ViT") && !class.starts_with("DeiT") {
        return Err(format!("the class `transformers.{class}` is not known here; ViT… and DeiT… are"));
    }
    build(class.starts_with("DeiT"), class, args, None)
}

fn build(deit: bool, class: &str, map: &Map<String, Value>, preprocessor: Option<&Value>) -> Result<Config, String> {
    let args = Arguments::new("Hugging Face", map);
    let labels = labels(args.object("id2label")?);
    let classes = if class.contains("ForImageClassification") {
        args.count("num_labels")?.unwrap_or(if labels.is_empty() { 2 } else { labels.len() })
    } else {
        0
    };
    let heads = args.count("num_attention_heads")?.unwrap_or(12);
    let rate = |name| args.rate(name).map(Option::unwrap_or_default);
    let vit = Vit {
        image_size: args.pair("image_size")?.unwrap_or([224, 224]),
        patch_size: args.pair("patch_size")?.unwrap_or([16, 16]),
        channels: args.count("num_channels")?.unwrap_or(3),
        classes,
        dim: args.count("hidden_size")?.unwrap_or(768),
        depth: args.count("num_hidden_layers")?.unwrap_or(12),
        heads,
        mlp_dim: args.count("intermediate_size")?.unwrap_or(3072),
        distillation_token: deit,
        distillation_head: class.ends_with("WithTeacher"),
        qkv: Qkv {
            bias: if args.flag("qkv_bias")?.unwrap_or(true) { QkvBias::All } else { QkvBias::None },
            separate: false,
        },
        activation: args.activation("hidden_act")?.unwrap_or(Activation::Gelu),
        norm_epsilon: args.number("layer_norm_eps")?.unwrap_or(1e-12) as f32,
        dropout: rate("hidden_dropout_prob")?,
        attention_dropout: rate("attention_probs_dropout_prob")?,
        ..Vit::default()
    };
    args.finish(&IGNORED)?;
    let usual = if deit {
        Preprocess { crop_pct: 0.875, ..Preprocess::imagenet() }
    } else {
        Preprocess { crop_pct: 1.0, interpolation: Filter::Bilinear, ..Preprocess::inception() }
    };
    let usual = Preprocess { image_size: vit.image_size, crop_mode: CropMode::Squash, ..usual };
    let preprocessing = preprocessor.and_then(Value::as_object).map_or(usual.clone(), |p| preprocessing(p, &usual));
    let generic = labels.iter().enumerate().all(|(i, label)| *label == format!("LABEL_{i}"));
    let labels = if generic || labels.len() != classes { Vec::new() } else { labels };
    Ok(Config { name: None, architecture: vit.into(), preprocessing, labels, problem_type: ProblemType::parse(map)? })
}

/// The values of `id2label` in the order of its keys.
fn labels(by_number: Option<&Map<String, Value>>) -> Vec<String> {
    let by_number = by_number.cloned().unwrap_or_default();
    (0..by_number.len()).map_while(|i| by_number.get(&i.to_string())?.as_str().map(str::to_string)).collect()
}

/// Hugging Face resizes both sides, whatever the image's aspect ratio; `do_center_crop` adds a crop.
fn preprocessing(map: &Map<String, Value>, usual: &Preprocess) -> Preprocess {
    let floats = |name: &str| -> Option<Vec<f32>> {
        map.get(name)?.as_array()?.iter().map(|v| v.as_f64().map(|v| v as f32)).collect()
    };
    let side = |value: Option<&Value>| -> Option<f64> {
        let value = value?;
        value.as_f64().or_else(|| value.get("height")?.as_f64()).or_else(|| value.get("shortest_edge")?.as_f64())
    };
    let shortest = map.get("size").is_some_and(|size| size.get("shortest_edge").is_some());
    let cropped = map.get("do_center_crop").and_then(Value::as_bool).unwrap_or(map.contains_key("crop_size"));
    let (size, crop) = (side(map.get("size")), side(map.get("crop_size")).filter(|_| cropped));
    let filter = match map.get("resample").and_then(Value::as_u64) {
        Some(0) => Filter::Nearest,
        Some(1) => Filter::Lanczos,
        Some(2) => Filter::Bilinear,
        Some(3) => Filter::Bicubic,
        Some(4) => Filter::Box,
        Some(5) => Filter::Hamming,
        _ => usual.interpolation,
    };
    let (mut mean, mut std) =
        (floats("image_mean").unwrap_or(usual.mean.clone()), floats("image_std").unwrap_or(usual.std.clone()));
    if map.get("do_normalize").and_then(Value::as_bool) == Some(false) {
        (mean, std) = (vec![0.0; mean.len()], vec![1.0; std.len()]);
    }
    Preprocess {
        image_size: usual.image_size,
        crop_pct: match (size, crop) {
            (Some(size), Some(crop)) if size > 0.0 => share(crop, size),
            _ => 1.0,
        },
        crop_mode: if shortest { CropMode::Center } else { CropMode::Squash },
        interpolation: filter,
        mean,
        std,
    }
}

/// `crop / size`, rounded so that `floor(crop / share)` is `size` again: 224 / (224 / 354) is a little less than 354.
fn share(crop: f64, size: f64) -> f64 {
    let share = crop / size;
    if (crop / share).floor() < size { share.next_down() } else { share }
}

/// Hugging Face's `config.json` of a model, or why its classes cannot express it and what to write instead.
pub fn hugging_face_config(config: &Config) -> Result<Value, String> {
    expressed(config).map_err(|reason| {
        let instead = if hub::can_build(config) {
            "write timm's layout, which transformers opens too where timm is installed"
        } else {
            "timm's layout keeps it for vit, but neither library can build this model"
        };
        format!("{reason}; {instead}")
    })
}

fn expressed(config: &Config) -> Result<Value, String> {
    let Some(vit) = config.architecture.downcast_ref::<Vit>() else {
        return Err("Hugging Face's layout is written for Vision Transformers only, as ViT or DeiT".into());
    };
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
        ("biases of query and value alone", vit.qkv.bias == QkvBias::QueryValue),
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
    let activation = match vit.activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Relu => "relu",
        Activation::Silu => "silu",
        Activation::Tanh => "tanh",
        Activation::Sigmoid => "sigmoid",
        Activation::QuickGelu => "quick_gelu",
    };
    let (kind, class) = match (vit.distillation_token, vit.distillation_head, vit.classes) {
        (false, _, 0) => ("vit", "ViTModel"),
        (true, _, 0) => ("deit", "DeiTModel"),
        (false, ..) => ("vit", "ViTForImageClassification"),
        (true, true, _) => ("deit", "DeiTForImageClassificationWithTeacher"),
        (true, false, _) => ("deit", "DeiTForImageClassification"),
    };
    let label = |i: usize| config.labels.get(i).cloned().unwrap_or_else(|| format!("LABEL_{i}"));
    let id2label: Map<String, Value> = (0..vit.classes).map(|i| (i.to_string(), json!(label(i)))).collect();
    let label2id: Map<String, Value> = (0..vit.classes).map(|i| (label(i), json!(i))).collect();
    let mut root = json!({
        "architectures": [class],
        "model_type": kind,
        "hidden_size": vit.dim,
        "num_hidden_layers": vit.depth,
        "num_attention_heads": vit.heads,
        "intermediate_size": vit.mlp_dim,
        "image_size": square(vit.image_size),
        "patch_size": square(vit.patch_size),
        "num_channels": vit.channels,
        "hidden_act": activation,
        "layer_norm_eps": short(vit.norm_epsilon),
        "qkv_bias": vit.qkv.bias != QkvBias::None,
        "hidden_dropout_prob": short(vit.dropout),
        "attention_probs_dropout_prob": short(vit.attention_dropout),
        "id2label": id2label,
        "label2id": label2id,
    });
    if vit.classes > 0 {
        root[ProblemType::KEY] = json!(config.problem_type.name());
    }
    Ok(root)
}

/// How transformers will prepare images differently when it opens [`hugging_face_preprocessor`], one line each.
pub fn hugging_face_differences(config: &Config) -> Vec<String> {
    let p = &config.preprocessing;
    let (squashed, [height, width]) = (p.crop_mode == CropMode::Squash, p.image_size);
    if squashed && p.crop_pct >= 1.0 {
        return Vec::new();
    }
    if !squashed && height != width {
        return vec![
            "transformers cannot resize images for an input that is not square as this model does; prepare them yourself"
                .into(),
        ];
    }
    vec![
        "transformers cuts the middle out of an image one pixel further up or left where the margin is odd; its answers \
         differ a little"
            .into(),
    ]
}

/// Hugging Face's `preprocessor_config.json` for a model's preprocessing.
pub fn hugging_face_preprocessor(config: &Config) -> Value {
    let distilled = config.architecture.downcast_ref().is_some_and(|vit: &Vit| vit.distillation_token);
    let p = &config.preprocessing;
    let resample = match p.interpolation {
        Filter::Nearest => 0,
        Filter::Lanczos => 1,
        Filter::Bilinear => 2,
        Filter::Box => 4,
        Filter::Hamming => 5,
        Filter::Bicubic => 3,
    };
    let [height, width] = p.image_size;
    let resized = |side: usize| (side as f64 / p.crop_pct).floor() as usize;
    let squashed = p.crop_mode == CropMode::Squash;
    let size = if squashed {
        json!({ "height": resized(height), "width": resized(width) })
    } else {
        json!({ "shortest_edge": resized(height.min(width)) })
    };
    // Not every class keeps the aspect ratio, or crops; all of them read the same fields.
    let class = match (squashed, p.crop_pct < 1.0) {
        (true, false) if !distilled => "ViTImageProcessor",
        (true, _) => "DeiTImageProcessor",
        (false, _) => "CLIPImageProcessor",
    };
    json!({
        "image_processor_type": class,
        "do_resize": true,
        "size": size,
        "resample": resample,
        "do_center_crop": p.crop_pct < 1.0 || !squashed,
        "crop_size": { "height": height, "width": width },
        "do_rescale": true,
        "rescale_factor": 1.0 / 255.0,
        "do_normalize": true,
        "image_mean": p.mean.iter().map(|&v| short(v)).collect::<Vec<_>>(),
        "image_std": p.std.iter().map(|&v| short(v)).collect::<Vec<_>>(),
    })
}
