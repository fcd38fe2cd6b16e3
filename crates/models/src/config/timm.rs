//! timm's configurations: the hub's `config.json`, and the constructors of its classes, one file each.

mod efficientnet;
mod hub;
mod maxxvit;
mod resnet;
mod resnetv2;
mod swin;
mod vision_transformer;

pub(super) use hub::can_build;
pub use hub::{timm_config, timm_differences};
pub(super) use resnet::block;

use serde_json::{Map, Value, json};

use super::{Arguments, Config, unnamed};
use crate::architecture::Architecture;
use crate::layers::Norm;
use crate::preprocessing::Preprocessing;
use crate::problem_type::ProblemType;
use crate::resnet::ResNet;
use crate::swin::Swin;
use crate::variant::{suggestions, variant};
use crate::vit::Vit;

/// The hub's form.
pub(super) fn parse(map: &Map<String, Value>) -> Result<Config, String> {
    let name = map["architecture"].as_str().ok_or("`architecture` is not a string")?;
    let Some(found) = variant(name) else {
        let near = suggestions(name);
        let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) };
        return Err(format!("the architecture `{name}` is not known here{hint}"));
    };
    // Older files have the preprocessing at the top level.
    let pretrained = map.get("pretrained_cfg").and_then(Value::as_object).unwrap_or(map);
    let mut architecture = found.architecture;
    if let Some(&[channels, height, width]) = numbers(pretrained.get("input_size")).as_deref() {
        architecture.set_channels(channels as usize);
        architecture.set_image_size([height as usize, width as usize]);
    }
    let classes = map.get("num_classes").or_else(|| pretrained.get("num_classes")).and_then(Value::as_u64);
    architecture.set_classes(classes.map_or(architecture.classes(), |n| n as usize));
    if let Some(args) = map.get("model_args").and_then(Value::as_object) {
        architecture = apply(&Arguments::new("timm", args), architecture)?;
    }
    let own = apply_extra(map, &mut architecture)?;
    let usual = Preprocessing { image_size: architecture.image_size(), ..found.preprocessing };
    Ok(Config {
        name: Some(own.unwrap_or_else(|| name.into())),
        labels: labels(map, architecture.classes()),
        problem_type: ProblemType::parse(map)?,
        preprocessing: preprocessing(pretrained, usual),
        architecture,
    })
}

/// Changes a model as the key of this project says, and returns the name that it gives the model.
pub(super) fn apply_extra(map: &Map<String, Value>, architecture: &mut Architecture) -> Result<Option<String>, String> {
    let Some(extra) = map.get(EXTRA).and_then(Value::as_object) else { return Ok(None) };
    let extra = Arguments::new("vit", extra);
    let name = extra.text("name")?.map(str::to_string);
    match architecture {
        Architecture::Vit(vit) => vision_transformer::apply_extra(&extra, vit)?,
        _ => extra.finish(&[])?,
    }
    Ok(name)
}

/// Changes a model as its class's constructor would.
fn apply(args: &Arguments, architecture: Architecture) -> Result<Architecture, String> {
    Ok(match architecture {
        Architecture::Vit(vit) => vision_transformer::apply(args, vit)?.into(),
        Architecture::ResNet(net) => resnet::apply(args, net)?.into(),
        Architecture::ResNetV2(net) => resnetv2::apply(args, net)?.into(),
        Architecture::EfficientNet(net) => efficientnet::apply(args, net)?.into(),
        Architecture::Swin(swin) => swin::apply(args, swin)?.into(),
        Architecture::CoAtNet(net) => maxxvit::apply(args, net)?.into(),
        Architecture::LeNet(net) => super::lenet::apply(args, net)?.into(),
    })
}

/// The classes, by name: what a constructor without arguments would start from.
fn class(name: &str) -> Option<(Architecture, Preprocessing)> {
    let distilled = Vit { distillation_token: true, distillation_head: true, ..Vit::default() };
    Some(match name {
        "VisionTransformer" | "VisionTransformer+HybridEmbed" => (Vit::default().into(), Preprocessing::inception()),
        "VisionTransformerDistilled" => (distilled.into(), Preprocessing::imagenet()),
        "ResNet" => (ResNet::default().into(), Preprocessing::imagenet()),
        "ResNetV2" => (resnetv2::constructed().into(), Preprocessing::inception()),
        "EfficientNet" => (efficientnet::constructed().into(), Preprocessing::imagenet()),
        "SwinTransformer" => (Swin::default().into(), Preprocessing::imagenet()),
        "MaxxVit" => (maxxvit::constructed().into(), Preprocessing::inception()),
        _ => return None,
    })
}

/// The constructor's form; `None` for a class that is not known here.
pub(super) fn from_arguments(
    class_name: &str,
    args: &Map<String, Value>,
    input: Option<[usize; 2]>,
) -> Option<Result<Config, String>> {
    let (mut architecture, usual) = class(class_name)?;
    // Only transformers know their image size; the others say it beside.
    if let Some(size) = input.filter(|_| !args.contains_key("img_size")) {
        architecture.set_image_size(size);
    }
    Some(apply(&Arguments::new("timm", args), architecture).map(|architecture| unnamed(architecture, usual)))
}

/// What says the same of a model as this class and these arguments do.
fn constructor(architecture: &Architecture) -> (&'static str, Map<String, Value>) {
    match architecture {
        Architecture::Vit(vit) => {
            let class = match (&vit.backbone, vit.distillation_head) {
                (Some(_), _) => "timm.models.vision_transformer.VisionTransformer+HybridEmbed",
                (None, true) => "timm.models.deit.VisionTransformerDistilled",
                (None, false) => "timm.models.vision_transformer.VisionTransformer",
            };
            let mut args = vision_transformer::arguments(vit);
            args.insert("num_classes".into(), json!(vit.classes));
            args.insert("in_chans".into(), json!(vit.channels));
            (class, args)
        }
        Architecture::ResNet(net) => ("timm.models.resnet.ResNet", resnet::arguments(net)),
        Architecture::ResNetV2(net) => ("timm.models.resnetv2.ResNetV2", resnetv2::arguments(net)),
        Architecture::EfficientNet(net) => ("timm.models.efficientnet.EfficientNet", efficientnet::arguments(net)),
        Architecture::Swin(net) => ("timm.models.swin_transformer.SwinTransformer", swin::arguments(net)),
        Architecture::CoAtNet(net) => ("timm.models.maxxvit.MaxxVit", maxxvit::arguments(net)),
        Architecture::LeNet(net) => ("lenet5", super::lenet::arguments(net)),
    }
}

fn numbers(value: Option<&Value>) -> Option<Vec<u64>> {
    value?.as_array()?.iter().map(Value::as_u64).collect()
}

pub(super) fn preprocessing(cfg: &Map<String, Value>, usual: Preprocessing) -> Preprocessing {
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
pub(super) fn labels(map: &Map<String, Value>, classes: usize) -> Vec<String> {
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

/// The key for what timm's own options cannot say, among it the name here of a model that has none there. timm ignores
/// it.
const EXTRA: &str = "vit";

/// A norm by timm's class or short name, with the epsilon that it has there unless told otherwise.
fn norm(args: &Arguments, name: &str, usual: Norm) -> Result<Norm, String> {
    let Some((class, bound)) = args.class(name)? else { return Ok(usual) };
    let epsilon = |usual: f64| Ok::<f32, String>(bound.number("eps")?.unwrap_or(usual) as f32);
    let found = match class.to_ascii_lowercase().as_str() {
        "batchnorm2d" | "batchnormact2d" | "batchnorm" => {
            Norm::Batch { epsilon: epsilon(1e-5)?, momentum: bound.number("momentum")?.unwrap_or(0.1) as f32 }
        }
        "groupnorm" | "groupnormact" => {
            Norm::Group { groups: bound.count("num_groups")?.unwrap_or(32), epsilon: epsilon(1e-5)? }
        }
        "layernorm" | "layernorm2d" => Norm::Layer { epsilon: epsilon(1e-5)? },
        _ => return Err(format!("timm's option `{name}` should be a batch, group or layer norm, not `{class}`")),
    };
    bound.finish(&["apply_act", "inplace", "act_layer"])?;
    Ok(found)
}

/// A norm with everything that it needs.
fn described(norm: Norm) -> Value {
    match norm {
        Norm::Batch { epsilon, momentum } => {
            json!({ "BatchNorm2d": { "eps": short(epsilon), "momentum": short(momentum) } })
        }
        Norm::Group { groups, epsilon } => json!({ "GroupNormAct": { "num_groups": groups, "eps": short(epsilon) } }),
        Norm::Layer { epsilon } => json!({ "LayerNorm": { "eps": short(epsilon) } }),
    }
}

/// Refuses every kind of global pooling but the mean.
fn mean_pooling(args: &Arguments) -> Result<(), String> {
    match args.text("global_pool")? {
        None | Some("avg" | "") => Ok(()),
        Some(other) => Err(format!("timm's option `global_pool` should be avg, not `{other}`")),
    }
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
