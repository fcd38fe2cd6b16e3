//! timm's configurations: the hub's `config.json`, and the constructors of its classes, one file each.

mod efficientnet;
mod maxxvit;
mod resnet;
mod resnetv2;
mod swin;
mod vision_transformer;

pub(super) use resnet::block;

use serde_json::{Map, Value, json};

use super::{Arguments, Config, unnamed};
use crate::architecture::Architecture;
use crate::layers::Norm;
use crate::preprocessing::Preprocessing;
use crate::problem_type::ProblemType;
use crate::resnet::ResNet;
use crate::swin::Swin;
use crate::variant::{suggestions, variant, variants};
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
    if let (Some(extra), Architecture::Vit(vit)) = (map.get(EXTRA).and_then(Value::as_object), &mut architecture) {
        vision_transformer::apply_extra(&Arguments::new("vit", extra), vit)?;
    }
    let usual = Preprocessing { image_size: architecture.image_size(), ..found.preprocessing };
    Ok(Config {
        name: Some(name.into()),
        labels: labels(map, architecture.classes()),
        problem_type: ProblemType::parse(map)?,
        preprocessing: preprocessing(pretrained, usual),
        architecture,
    })
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

/// The key for what timm's own options cannot say. timm ignores it.
const EXTRA: &str = "vit";

/// The name under which timm builds the same model but for image size, channels and classes; Vision Transformers it
/// builds from arguments under any name of theirs.
fn name(config: &Config) -> Option<String> {
    let plain =
        |vit: &Vit| if vit.distillation_head { "deit_base_distilled_patch16_224" } else { "vit_base_patch16_224" };
    let own = config.name.as_deref().and_then(|name| Some((name.split('.').next()?, variant(name)?)));
    if let Architecture::Vit(vit) = &config.architecture {
        let same = |a: &Architecture| matches!(a, Architecture::Vit(other) if other.backbone == vit.backbone);
        return match own.filter(|(_, found)| same(&found.architecture)) {
            Some((name, _)) => Some(name.into()),
            None => vit.backbone.is_none().then(|| plain(vit).into()),
        };
    }
    let (name, mut found) = own?;
    found.architecture.set_image_size(config.architecture.image_size());
    found.architecture.set_channels(config.architecture.channels());
    found.architecture.set_classes(config.architecture.classes());
    (found.architecture == config.architecture && !matches!(config.architecture, Architecture::LeNet(_)))
        .then(|| name.into())
}

/// The hub's form of a configuration, from which timm builds the same model; where timm has no name for it, the class
/// and arguments of its constructor.
pub fn timm_config(config: &Config) -> Value {
    let (model, p) = (&config.architecture, &config.preprocessing);
    let (class, args) = constructor(model);
    let name = name(config);
    let mut root = match &name {
        None => {
            json!({ "class": class, "args": args, "input_shape": [1, model.channels(), p.image_size[0], p.image_size[1]] })
        }
        Some(name) => match model {
            Architecture::Vit(vit) => {
                let mut args = args;
                // Named hybrids bring their stages along, and the hub has a place of its own for the others.
                ["backbone", "num_classes", "in_chans"].iter().for_each(|name| {
                    args.remove(*name);
                });
                json!({
                    "architecture": name,
                    "num_classes": vit.classes,
                    "num_features": vit.dim,
                    "global_pool": vision_transformer::pooling(vit),
                    "model_args": args,
                })
            }
            Architecture::Swin(_) | Architecture::CoAtNet(_) => {
                json!({ "architecture": name, "num_classes": model.classes(), "model_args": { "img_size": model.image_size() } })
            }
            _ => json!({ "architecture": name, "num_classes": model.classes() }),
        },
    };
    let heads = model.heads();
    root["pretrained_cfg"] = json!({
        "input_size": [model.channels(), p.image_size[0], p.image_size[1]],
        "fixed_input_size": matches!(model, Architecture::Vit(_) | Architecture::Swin(_) | Architecture::CoAtNet(_)),
        "interpolation": p.interpolation,
        "crop_pct": p.crop_pct,
        "crop_mode": p.crop_mode,
        "mean": round(&p.mean),
        "std": round(&p.std),
        "num_classes": model.classes(),
        // timm adapts this layer from three channels wherever a model has others, even when its weights do too.
        "first_conv": (model.channels() == 3).then(|| model.first_filters().trim_end_matches(".weight").to_string()),
        "classifier": match model {
            Architecture::Vit(vit) if vit.distillation_head => json!(heads),
            _ => json!(heads[0]),
        },
    });
    if config.labels.len() == model.classes() && model.classes() > 0 {
        root["label_names"] = json!(config.labels);
    }
    if model.classes() > 0 {
        root[ProblemType::KEY] = json!(config.problem_type.name());
    }
    if let Architecture::Vit(vit) = model {
        let extra = vision_transformer::extra(vit, name.as_deref().unwrap_or_default());
        if !extra.is_empty() {
            root[EXTRA] = Value::Object(extra);
        }
    }
    root
}

/// What timm will do otherwise than this model when it opens [`timm_config`], one line each.
pub fn timm_differences(config: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    match name(config) {
        None => {
            lines.push("timm has no name for this model; config.json says its class and arguments instead".to_string())
        }
        Some(name) if variants().iter().all(|v| v.name != name) => {
            lines.push(format!("timm does not know a model named `{name}`"));
        }
        Some(_) => {}
    }
    if let Architecture::Vit(vit) = &config.architecture {
        let extra = vision_transformer::extra(vit, "");
        lines.extend(extra.iter().map(|(name, value)| format!("timm has no option for `{name}: {value}`")));
    }
    lines
}

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
