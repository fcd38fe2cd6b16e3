//! The constructor of timm's `EfficientNet`, with the definition of its blocks as strings.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Activation, Operation};

use super::{EfficientNet, MobileBlock, MobileBlockKind, Scaling, parse_stages};
use crate::config::timm::{described, mean_pooling, norm, object, short};
use crate::config::{Arguments, Configured};
use crate::layers::{Norm, Padding};
use vit_preprocess::Preprocess;

const CLASS: &str = "timm.models.efficientnet.EfficientNet";

impl Configured for EfficientNet {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        (CLASS, arguments(self))
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        let multiplier = |name| match args.number(name)? {
            Some(n) if !(n > 0.0 && n <= 64.0) => {
                Err(format!("timm's option `{name}` should be above 0 and at most 64, not {n}"))
            }
            n => Ok(n.unwrap_or(1.0)),
        };
        let scaling = Scaling { width: multiplier("channel_multiplier")?, depth: multiplier("depth_multiplier")? };
        if let Some(definition) = args.get("arch_def") {
            let strings = |stage: &Value| -> Option<Vec<String>> {
                stage.as_array()?.iter().map(|block| block.as_str().map(str::to_string)).collect()
            };
            let stages: Option<Vec<Vec<String>>> =
                definition.as_array().and_then(|all| all.iter().map(strings).collect());
            let stages = stages.ok_or("timm's option `arch_def` should be a list of lists of strings")?;
            self.stages = parse_stages(&stages, scaling)?;
        }
        if let Some(stem) = args.count("stem_size")? {
            self.stem_width = if args.flag("fix_stem")? == Some(true) { stem } else { scaling.width(stem) };
        }
        args.flag("fix_stem")?;
        self.classes = args.count("num_classes")?.unwrap_or(self.classes);
        self.features = args.count("num_features")?.unwrap_or(self.features);
        self.channels = args.count("in_chans")?.unwrap_or(self.channels);
        self.stem_kernel = args.count("stem_kernel_size")?.unwrap_or(self.stem_kernel);
        self.output_stride = args.count("output_stride")?.unwrap_or(self.output_stride);
        self.activation = args.activation("act_layer")?.unwrap_or(self.activation);
        self.padding = match args.text("pad_type")?.map(str::to_ascii_lowercase).as_deref() {
            None => self.padding,
            Some("" | "symmetric") => Padding::Symmetric,
            Some("same") => Padding::Same,
            Some(other) => return Err(format!("timm's option `pad_type` should be same or empty, not `{other}`")),
        };
        self.norm = norm(args, "norm_layer", self.norm)?;
        if let Norm::Batch { epsilon, momentum } = &mut self.norm {
            *epsilon = args.number("bn_eps")?.map_or(*epsilon, |e| e as f32);
            *momentum = args.number("bn_momentum")?.map_or(*momentum, |m| m as f32);
        }
        self.dropout = args.rate("drop_rate")?.unwrap_or(self.dropout);
        self.drop_path = args.rate("drop_path_rate")?.unwrap_or(self.drop_path);
        mean_pooling(args)?;
        args.finish(&["pretrained", "features_only", "depth_trunc"])
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![(CLASS, constructed(), Preprocess::imagenet())]
    }
}

/// The model of the constructor without arguments.
fn constructed() -> EfficientNet {
    EfficientNet { activation: Activation::Relu, ..EfficientNet::default() }
}

/// The definition of a block, without scaling.
fn definition(block: &MobileBlock) -> String {
    let kind = match block.kind {
        MobileBlockKind::Separable { active: false } => "ds",
        MobileBlockKind::Separable { active: true } => "dsa",
        MobileBlockKind::Inverted => "ir",
        MobileBlockKind::Fused => "er",
        MobileBlockKind::Plain => "cn",
    };
    let mut text = format!("{kind}_r1_k{}_s{}_e{}_c{}", block.kernel, block.stride, block.expansion, block.width);
    let mut add = |part: String| text.extend(["_", &part]);
    if block.squeeze > 0.0 {
        add(format!("se{}", block.squeeze));
    }
    for (key, size) in [("a", block.expand_kernel), ("p", block.project_kernel)] {
        if size != 1 {
            add(format!("{key}{size}"));
        }
    }
    if let Some(width) = block.expand_from {
        add(format!("fc{width}"));
    }
    add(format!("gs{}", block.group_size));
    match block.activation {
        Some(Activation::Relu) => add("nre".into()),
        Some(_) => add("nsw".into()),
        None => {}
    }
    match (block.kind, block.skip) {
        (MobileBlockKind::Plain, true) => add("skip".into()),
        (MobileBlockKind::Plain | MobileBlockKind::Separable { active: true }, false) | (_, true) => {}
        (_, false) => add("noskip".into()),
    }
    text
}

/// The constructor's arguments that make this model.
fn arguments(net: &EfficientNet) -> Map<String, Value> {
    let stages: Vec<Vec<String>> = net.stages.iter().map(|stage| stage.iter().map(definition).collect()).collect();
    object(json!({
        "arch_def": stages,
        "stem_size": net.stem_width,
        "fix_stem": true,
        "stem_kernel_size": net.stem_kernel,
        "num_features": net.features,
        "num_classes": net.classes,
        "in_chans": net.channels,
        "output_stride": net.output_stride,
        "pad_type": if net.padding == Padding::Same { "same" } else { "" },
        "act_layer": net.activation.name(),
        "norm_layer": described(net.norm),
        "drop_rate": short(net.dropout),
        "drop_path_rate": short(net.drop_path),
    }))
}
