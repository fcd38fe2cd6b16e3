//! Writes the form of timm's hub: one of the models that timm has by name, and the arguments that turn it into this one.
//! `bench/interop` opens what is written here with timm itself.

use serde_json::{Map, Value, json};

use super::super::{Arguments, Config};
use super::{EXTRA, apply, constructor, efficientnet, maxxvit, resnet, resnetv2, round, swin, vision_transformer};
use crate::architecture::Architecture;
use crate::problem_type::ProblemType;
use crate::variant::{variant, variants};

/// Published models that have no name in timm.
const NOT_IN_TIMM: [&str; 4] = ["vit_medium_patch32_224", "vit_medium_patch16_224", "lenet5", "lenet5_relu"];

/// A model of timm's and what differs from it, as arguments that JSON can hold.
pub(super) struct Entry {
    pub name: String,
    pub args: Map<String, Value>,
}

impl Entry {
    pub fn new(name: &str, args: Map<String, Value>) -> Entry {
        Entry { name: name.into(), args }
    }

    /// Whether the arguments turn the named model into this one.
    pub fn builds(&self, model: &Architecture) -> bool {
        let Some(mut base) = variant(&self.name).map(|found| found.architecture) else { return false };
        base.set_image_size(model.image_size());
        base.set_channels(model.channels());
        base.set_classes(model.classes());
        let built = apply(&Arguments::new("timm", &self.args), base);
        match (built, model) {
            // Its rates of dropout belong to a training run, and its epsilon is not among timm's arguments.
            (Ok(Architecture::Vit(built)), Architecture::Vit(vit)) => {
                let (dropout, attention_dropout, drop_path) = (vit.dropout, vit.attention_dropout, vit.drop_path);
                let norm_epsilon = vit.norm_epsilon;
                crate::vit::Vit { dropout, attention_dropout, drop_path, norm_epsilon, ..built } == *vit
            }
            (Ok(built), model) => built == *model,
            (Err(_), _) => false,
        }
    }
}

/// How timm builds a model, or why it cannot.
pub(super) fn entry(config: &Config) -> Result<Entry, String> {
    let model = &config.architecture;
    let own = config.name.as_deref().and_then(|name| name.split('.').next()).filter(|name| in_timm(name));
    if let Architecture::Vit(vit) = model {
        return vision_transformer::entry(vit, own);
    }
    // What a name does not say: the image size where positions depend on it, and rates of dropout.
    let beyond = match model {
        Architecture::Swin(net) => swin::beyond_name(net),
        Architecture::CoAtNet(net) => maxxvit::beyond_name(net),
        Architecture::ResNet(net) => rates(resnet::arguments(net)),
        Architecture::ResNetV2(net) => rates(resnetv2::arguments(net)),
        Architecture::EfficientNet(net) => rates(efficientnet::arguments(net)),
        Architecture::Vit(_) | Architecture::LeNet(_) => Map::new(),
    };
    if let Some(named) = own.map(|name| Entry::new(name, beyond)).filter(|named| named.builds(model)) {
        return Ok(named);
    }
    let made = match model {
        Architecture::ResNet(net) => resnet::entry(net)?,
        Architecture::Swin(net) => swin::entry(net)?,
        Architecture::CoAtNet(net) => maxxvit::entry(net),
        Architecture::LeNet(_) => return Err("timm has no LeNet".into()),
        _ => return Err("timm builds models of this class only in its published sizes".into()),
    };
    if made.builds(model) { Ok(made) } else { Err("timm's arguments cannot describe this model".into()) }
}

/// Whether timm opens what [`timm_config`] writes.
pub(in crate::config) fn can_build(config: &Config) -> bool {
    entry(config).is_ok()
}

fn in_timm(name: &str) -> bool {
    !NOT_IN_TIMM.contains(&name) && variants().iter().any(|v| v.name == name)
}

/// Of a constructor's arguments the rates that are not zero.
pub(super) fn rates(args: Map<String, Value>) -> Map<String, Value> {
    let is_rate = |name: &str| name.ends_with("_rate") || name.ends_with("_drop");
    args.into_iter().filter(|(name, value)| is_rate(name) && value.as_f64() != Some(0.0)).collect()
}

/// The hub's form of a configuration, from which timm builds the same model; where timm cannot build it, the class and
/// arguments of its constructor, which this project understands.
pub fn timm_config(config: &Config) -> Value {
    let (model, p) = (&config.architecture, &config.preprocessing);
    let entry = entry(config);
    let mut root = match &entry {
        Err(_) => {
            let (class, args) = constructor(model);
            json!({ "class": class, "args": args, "input_shape": [1, model.channels(), p.image_size[0], p.image_size[1]] })
        }
        Ok(entry) => {
            let mut root = json!({ "architecture": entry.name, "num_classes": model.classes() });
            if let Architecture::Vit(vit) = model {
                root["num_features"] = json!(vit.dim);
                root["global_pool"] = json!(vision_transformer::pooling(vit));
            }
            if !entry.args.is_empty() {
                root["model_args"] = json!(entry.args);
            }
            root
        }
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
    let mut extra = Map::new();
    let written = entry.as_ref().ok().map(|entry| &entry.name);
    if let Some(name) = config.name.as_ref().filter(|name| written != Some(*name)) {
        extra.insert("name".into(), json!(name));
    }
    if let Architecture::Vit(vit) = model {
        extra.extend(vision_transformer::extra(vit));
    }
    if !extra.is_empty() {
        root[EXTRA] = Value::Object(extra);
    }
    root
}

/// What timm will do otherwise than this model when it opens [`timm_config`], one line each.
pub fn timm_differences(config: &Config) -> Vec<String> {
    let usual = crate::vit::Vit::default().norm_epsilon;
    match (entry(config), &config.architecture) {
        (Err(reason), _) => vec![format!("timm cannot open this model, only vit can: {reason}")],
        (Ok(_), Architecture::Vit(vit)) if vit.norm_epsilon != usual => vec![format!(
            "timm computes with an epsilon of {usual:e} in its layer norms instead of {:e}; its outputs differ a little",
            vit.norm_epsilon
        )],
        (Ok(_), _) => Vec::new(),
    }
}
