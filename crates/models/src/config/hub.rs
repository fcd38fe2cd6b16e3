//! The form of timm's hub: one of the models that timm has by name, and the arguments that turn it into this one.
//! `bench/interop` opens what is written here with timm itself.

use serde_json::{Map, Value, json};

use super::timm::{rates, short};
use super::{Arguments, Config};
use crate::architecture::Architecture;
use crate::problem_type::ProblemType;
use crate::variant::{suggestions, variant, variants};
use vit_preprocess::{CropMode, CropRule, Filter, Preprocess, PreprocessError, Resizer};

/// Published models that have no name in timm.
const NOT_IN_TIMM: [&str; 2] = ["vit_medium_patch32_224", "vit_medium_patch16_224"];

/// The key of settings that timm's arguments cannot express, and of names that timm does not have. timm ignores it.
const EXTRA: &str = "vit";

/// How timm builds a model.
#[derive(Debug, Clone)]
pub struct TimmForm {
    /// Arguments besides the model's published name: rates of dropout, and the image size if parameters depend on it.
    pub beside_name: Map<String, Value>,
    /// A named model and the arguments that turn it into this one, or why there are none.
    pub base: Result<(String, Map<String, Value>), String>,
    /// Whether parameters depend on the image size.
    pub fixed_image_size: bool,
    /// Further keys of timm's file.
    pub keys: Map<String, Value>,
    /// Settings that timm's arguments cannot express.
    pub extra: Map<String, Value>,
}

impl TimmForm {
    /// That of a class which timm builds in its published sizes only.
    pub fn published(constructor: Map<String, Value>) -> Self {
        TimmForm {
            beside_name: rates(constructor),
            base: Err("timm builds models of this class only in its published sizes".into()),
            fixed_image_size: false,
            keys: Map::new(),
            extra: Map::new(),
        }
    }
}

/// Reads the hub's form.
pub(super) fn parse(map: &Map<String, Value>) -> Result<Config, String> {
    let name = map["architecture"].as_str().ok_or("`architecture` is not a string")?;
    let Some(found) = variant(name) else {
        let near = suggestions(name);
        let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(", ")) };
        return Err(format!("the architecture `{name}` is not known here{hint}"));
    };
    described(map, name, found.architecture, found.preprocessing)
}

/// The name of a model that is not known here, in a configuration of the hub's form with arguments.
pub(crate) fn unknown_name(config: &Value) -> Option<&str> {
    let name = config.get("architecture")?.as_str()?;
    (config.get("model_args")?.is_object() && config.get("model_type").is_none() && variant(name).is_none())
        .then_some(name)
}

/// Reads the hub's form of a model whose name is not known here, starting from what its weights say.
pub(crate) fn parse_unknown(config: &Value, guessed: Config) -> Result<Config, String> {
    let map = config.as_object().ok_or("the configuration is not a JSON object")?;
    let name = unknown_name(config).unwrap_or_default();
    described(map, name, guessed.architecture, guessed.preprocessing)
}

/// A model changed as a configuration of the hub's form says.
fn described(
    map: &Map<String, Value>,
    name: &str,
    mut architecture: Architecture,
    usual: Preprocess,
) -> Result<Config, String> {
    // Older files have the preprocessing at the top level.
    let pretrained = map.get("pretrained_cfg").and_then(Value::as_object).unwrap_or(map);
    let input_size: Option<Vec<u64>> = pretrained
        .get("input_size")
        .and_then(Value::as_array)
        .and_then(|extents| extents.iter().map(Value::as_u64).collect());
    if let Some(&[channels, height, width]) = input_size.as_deref() {
        architecture.set_channels(channels as usize);
        architecture.set_image_size([height as usize, width as usize]);
    }
    let classes = map.get("num_classes").or_else(|| pretrained.get("num_classes")).and_then(Value::as_u64);
    architecture.set_classes(classes.map_or(architecture.classes(), |n| n as usize));
    if let Some(args) = map.get("model_args").and_then(Value::as_object) {
        architecture.configure(&Arguments::new("timm", args))?;
    }
    let usual = Preprocess { image_size: architecture.image_size(), ..usual };
    let mut config = Config {
        name: Some(name.into()),
        labels: labels(map, architecture.classes()),
        problem_type: ProblemType::parse(map)?,
        preprocessing: preprocessing(pretrained, usual)?,
        architecture,
    };
    apply_extra(map, &mut config)?;
    Ok(config)
}

/// Changes a configuration as this project's key says.
pub(super) fn apply_extra(map: &Map<String, Value>, config: &mut Config) -> Result<(), String> {
    let Some(extra) = map.get(EXTRA).and_then(Value::as_object) else { return Ok(()) };
    let extra = Arguments::new("vit", extra);
    if let Some(name) = extra.text("name")? {
        config.name = Some(name.into());
    }
    if let Some(rule) = extra.text("crop_rule")? {
        config.preprocessing.crop_rule = rule.parse().map_err(|error: PreprocessError| error.to_string())?;
    }
    if let Some(resizer) = extra.text("resizer")? {
        config.preprocessing.resizer = resizer.parse().map_err(|error: PreprocessError| error.to_string())?;
    }
    config.architecture.configure_extra(&extra)
}

pub(super) fn preprocessing(cfg: &Map<String, Value>, usual: Preprocess) -> Result<Preprocess, String> {
    let floats = |name: &str| -> Option<Vec<f32>> {
        cfg.get(name)?.as_array()?.iter().map(|v| v.as_f64().map(|v| v as f32)).collect()
    };
    let text = |name: &str| cfg.get(name).and_then(Value::as_str);
    let crop_mode = text("crop_mode").map(str::parse::<CropMode>).transpose().map_err(|error| error.to_string())?;
    let interpolation =
        text("interpolation").map(str::parse::<Filter>).transpose().map_err(|error| error.to_string())?;
    Ok(Preprocess {
        image_size: usual.image_size,
        crop_pct: cfg.get("crop_pct").and_then(Value::as_f64).unwrap_or(usual.crop_pct),
        crop_mode: crop_mode.unwrap_or(usual.crop_mode),
        crop_rule: usual.crop_rule,
        resizer: usual.resizer,
        interpolation: interpolation.unwrap_or(usual.interpolation),
        mean: floats("mean").unwrap_or(usual.mean),
        std: floats("std").unwrap_or(usual.std),
    })
}

/// `label_names` as a list or by number, replaced by `label_descriptions` where there are any.
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

/// How timm builds a model: a name and arguments, or why it cannot.
fn entry(config: &Config, form: &TimmForm) -> Result<(String, Map<String, Value>), String> {
    let model = &config.architecture;
    let own = config.name.as_deref().and_then(|name| name.split('.').next()).filter(|name| in_timm(name));
    let named = own.map(|name| (name.to_string(), form.beside_name.clone()));
    if let Some(named) = named.filter(|(name, args)| builds(name, args, model)) {
        return Ok(named);
    }
    let (name, args) = form.base.clone()?;
    if builds(&name, &args, model) {
        Ok((name, args))
    } else {
        Err("timm's arguments cannot describe this model".into())
    }
}

/// Whether arguments turn the named model into this one.
fn builds(name: &str, args: &Map<String, Value>, model: &Architecture) -> bool {
    built(name, args, model).is_some_and(|built| model.same_in_timm(&built))
}

/// What timm makes of a name and arguments, with the dimensions of `model`.
fn built(name: &str, args: &Map<String, Value>, model: &Architecture) -> Option<Architecture> {
    let mut built = variant(name)?.architecture;
    built.set_dimensions(model.dimensions());
    built.configure(&Arguments::new("timm", args)).ok()?;
    Some(built)
}

fn in_timm(name: &str) -> bool {
    let is_timms = |model: &Architecture| model.constructor().0.starts_with("timm.");
    !NOT_IN_TIMM.contains(&name) && variants().iter().any(|v| v.name == name && is_timms(&v.architecture))
}

/// Whether timm opens what [`timm_config`] writes.
pub(crate) fn can_build(config: &Config) -> bool {
    entry(config, &config.architecture.timm()).is_ok()
}

/// The hub's form of a configuration, from which timm builds the same model; where timm cannot build it, the class and
/// arguments of its constructor, which this project understands.
pub fn timm_config(config: &Config) -> Value {
    let (model, p) = (&config.architecture, &config.preprocessing);
    let form = model.timm();
    let entry = entry(config, &form);
    let mut root = match &entry {
        Err(_) => {
            let (class, args) = model.constructor();
            json!({ "class": class, "args": args, "input_shape": [1, model.channels(), p.image_size[0], p.image_size[1]] })
        }
        Ok((name, args)) => {
            let mut root = json!({ "architecture": name, "num_classes": model.classes() });
            for (key, value) in form.keys {
                root[key] = value;
            }
            if !args.is_empty() {
                root["model_args"] = json!(args);
            }
            root
        }
    };
    root["pretrained_cfg"] = json!({
        "input_size": [model.channels(), p.image_size[0], p.image_size[1]],
        "fixed_input_size": form.fixed_image_size,
        "interpolation": p.interpolation.name(),
        "crop_pct": p.crop_pct,
        "crop_mode": p.crop_mode.name(),
        "mean": p.mean.iter().map(|&v| short(v)).collect::<Vec<_>>(),
        "std": p.std.iter().map(|&v| short(v)).collect::<Vec<_>>(),
        "num_classes": model.classes(),
        // timm adapts this layer from three channels wherever a model has others, even when its weights do too.
        "first_conv": (model.channels() == 3).then(|| model.first_filters().trim_end_matches(".weight").to_string()),
        "classifier": match model.heads() {
            [head] => json!(head),
            heads => json!(heads),
        },
    });
    if config.labels.len() == model.classes() && model.classes() > 0 {
        root["label_names"] = json!(config.labels);
    }
    if model.classes() > 0 {
        root[ProblemType::KEY] = json!(config.problem_type.name());
    }
    let mut extra = Map::new();
    let written = entry.as_ref().ok().map(|(name, _)| name);
    if let Some(name) = config.name.as_ref().filter(|name| written != Some(*name)) {
        extra.insert("name".into(), json!(name));
    }
    if p.crop_rule != CropRule::default() {
        extra.insert("crop_rule".into(), json!(p.crop_rule.name()));
    }
    if p.resizer != Resizer::default() {
        extra.insert("resizer".into(), json!(p.resizer.name()));
    }
    extra.extend(form.extra);
    if !extra.is_empty() {
        root[EXTRA] = Value::Object(extra);
    }
    root
}

/// The differences of timm's model when it opens [`timm_config`], one line each.
pub fn timm_differences(config: &Config) -> Vec<String> {
    let model = &config.architecture;
    match entry(config, &model.timm()) {
        Err(reason) => vec![format!("timm cannot open this model, only vit can: {reason}")],
        Ok((name, args)) => {
            let differences = built(&name, &args, model).map_or_else(Vec::new, |built| model.differences(&built));
            differences.into_iter().chain(crop_difference(&config.preprocessing)).collect()
        }
    }
}

/// How timm crops images differently.
fn crop_difference(p: &Preprocess) -> Option<String> {
    if p.crop_mode == CropMode::Unscaled {
        return Some("timm cannot leave images at their size; prepare them yourself".into());
    }
    if p.resizer != Resizer::Pillow {
        return Some(
            "timm cuts and resizes images by Pillow, this model by torchvision; its answers differ a little".into(),
        );
    }
    let whole = p.crop_mode == CropMode::Squash && p.crop_pct == 1.0;
    (p.crop_rule == CropRule::Transformers && !whole).then(|| {
        "timm cuts the middle out of an image one pixel further down or right where the margin is odd; its answers \
         differ a little"
            .into()
    })
}
