//! The constructor of timm's `ResNet`.

use serde_json::{Map, Value, json};
use vit_graph::ops::Operation;

use super::{ResNet, ResNetBlock};
use crate::config::timm::{described, mean_pooling, norm, object, short};
use crate::config::{Arguments, Configured, TimmForm};
use crate::layers::{Norm, Stem};
use vit_preprocess::Preprocess;

const CLASS: &str = "timm.models.resnet.ResNet";

/// Options of training and initialisation.
const IGNORED: [&str; 4] = ["zero_init_last", "pretrained", "drop_block_rate", "features_only"];

impl Configured for ResNet {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        (CLASS, arguments(self))
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        if let Some((class, bound)) = args.class("block")? {
            self.block = ResNetBlock::of_class(class)?;
            bound.finish(&[])?;
        }
        self.depths = args.counts("layers")?.unwrap_or_else(|| self.depths.clone());
        self.widths = args.counts("channels")?.unwrap_or_else(|| self.widths.clone());
        self.widths.truncate(self.depths.len());
        self.classes = args.count("num_classes")?.unwrap_or(self.classes);
        self.channels = args.count("in_chans")?.unwrap_or(self.channels);
        self.output_stride = args.count("output_stride")?.unwrap_or(self.output_stride);
        self.groups = args.count("cardinality")?.unwrap_or(self.groups);
        self.group_width = args.count("base_width")?.unwrap_or(self.group_width);
        self.reduce_first = args.count("block_reduce_first")?.unwrap_or(self.reduce_first);
        self.down_kernel = args.count("down_kernel_size")?.unwrap_or(self.down_kernel);
        self.average_down = args.flag("avg_down")?.unwrap_or(self.average_down);
        self.stem_width = args.count("stem_width")?.unwrap_or(self.stem_width);
        if let Some(stem) = args.text("stem_type")? {
            self.stem = match stem {
                "" => Stem::Plain,
                // Not timm's: it has no stem for small images.
                "small" => Stem::Small,
                "deep" => Stem::Deep,
                "deep_tiered" => Stem::Tiered,
                other => {
                    return Err(format!(
                        "timm's option `stem_type` should be deep, deep_tiered, small or empty, not `{other}`"
                    ));
                }
            };
        }
        self.activation = args.activation("act_layer")?.unwrap_or(self.activation);
        self.norm = norm(args, "norm_layer", self.norm)?;
        self.dropout = args.rate("drop_rate")?.unwrap_or(self.dropout);
        self.drop_path = args.rate("drop_path_rate")?.unwrap_or(self.drop_path);
        mean_pooling(args)?;
        if args.flag("replace_stem_pool")? == Some(true) {
            return Err("timm's option `replace_stem_pool` cannot be used here yet".into());
        }
        if args.object("block_args")?.is_some_and(|map| !map.is_empty()) {
            return Err("timm's option `block_args` cannot be used here yet".into());
        }
        args.finish(&IGNORED)
    }

    fn timm(&self) -> TimmForm {
        TimmForm { base: base(self), ..TimmForm::published(arguments(self)) }
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![(CLASS, ResNet::default(), Preprocess::imagenet())]
    }
}

impl ResNetBlock {
    /// A block by the class that timm and torchvision have for it, with or without its module.
    pub(crate) fn of_class(class: &str) -> Result<Self, String> {
        match class.rsplit('.').next().unwrap_or_default() {
            "BasicBlock" => Ok(ResNetBlock::Basic),
            "Bottleneck" => Ok(ResNetBlock::Bottleneck),
            other => Err(format!("the option `block` should be BasicBlock or Bottleneck, not `{other}`")),
        }
    }
}

/// The constructor's arguments that make this model.
fn arguments(net: &ResNet) -> Map<String, Value> {
    let stem = match net.stem {
        Stem::Plain => "",
        Stem::Small => "small",
        Stem::Deep => "deep",
        Stem::Tiered => "deep_tiered",
    };
    object(json!({
        "block": if net.block == ResNetBlock::Basic { "BasicBlock" } else { "Bottleneck" },
        "layers": net.depths,
        "channels": net.widths,
        "num_classes": net.classes,
        "in_chans": net.channels,
        "output_stride": net.output_stride,
        "cardinality": net.groups,
        "base_width": net.group_width,
        "block_reduce_first": net.reduce_first,
        "down_kernel_size": net.down_kernel,
        "avg_down": net.average_down,
        "stem_type": stem,
        "stem_width": net.stem_width,
        "act_layer": net.activation.name(),
        "norm_layer": described(net.norm),
        "drop_rate": short(net.dropout),
        "drop_path_rate": short(net.drop_path),
    }))
}

/// The model that timm changes into this one and the arguments, or why it cannot.
fn base(net: &ResNet) -> Result<(String, Map<String, Value>), String> {
    if net.stem == Stem::Small {
        return Err("timm's ResNet has no first layer for small images, with 3x3 filters and no pooling".into());
    }
    if net.stem == Stem::Plain && net.stem_width != 64 {
        return Err(format!("timm's ResNet has 64 filters in its first layer, not {}", net.stem_width));
    }
    let mut args = arguments(net);
    for name in ["block", "num_classes", "in_chans", "norm_layer"] {
        args.remove(name);
    }
    match net.norm {
        norm if norm == Norm::BATCH => {}
        Norm::Group { groups: 32, epsilon: 1e-5 } => {
            args.insert("norm_layer".into(), json!("groupnorm"));
        }
        _ => return Err("timm reads no epsilon, momentum or groups of a norm from a file".into()),
    }
    let base = if net.block == ResNetBlock::Basic { "resnet18" } else { "resnet50" };
    Ok((base.into(), args))
}
