//! The constructor of timm's `ResNet`.

use serde_json::{Map, Value, json};
use vit_graph::ops::Operation;

use super::{ResNet, ResNetBlock};
use crate::config::timm::{described, mean_pooling, norm, object, short};
use crate::config::{Arguments, TimmForm};
use crate::layers::{Norm, Stem};

pub(super) const CLASS: &str = "timm.models.resnet.ResNet";

/// Options of training and initialisation.
const IGNORED: [&str; 4] = ["zero_init_last", "pretrained", "drop_block_rate", "features_only"];

pub(super) fn configure(args: &Arguments, net: &mut ResNet) -> Result<(), String> {
    if let Some((class, bound)) = args.class("block")? {
        net.block = ResNetBlock::of_class(class)?;
        bound.finish(&[])?;
    }
    net.depths = args.counts("layers")?.unwrap_or_else(|| net.depths.clone());
    net.widths = args.counts("channels")?.unwrap_or_else(|| net.widths.clone());
    net.widths.truncate(net.depths.len());
    net.classes = args.count("num_classes")?.unwrap_or(net.classes);
    net.channels = args.count("in_chans")?.unwrap_or(net.channels);
    net.output_stride = args.count("output_stride")?.unwrap_or(net.output_stride);
    net.groups = args.count("cardinality")?.unwrap_or(net.groups);
    net.group_width = args.count("base_width")?.unwrap_or(net.group_width);
    net.reduce_first = args.count("block_reduce_first")?.unwrap_or(net.reduce_first);
    net.down_kernel = args.count("down_kernel_size")?.unwrap_or(net.down_kernel);
    net.average_down = args.flag("avg_down")?.unwrap_or(net.average_down);
    net.stem_width = args.count("stem_width")?.unwrap_or(net.stem_width);
    if let Some(stem) = args.text("stem_type")? {
        net.stem = match stem {
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
    net.activation = args.activation("act_layer")?.unwrap_or(net.activation);
    net.norm = norm(args, "norm_layer", net.norm)?;
    net.dropout = args.rate("drop_rate")?.unwrap_or(net.dropout);
    net.drop_path = args.rate("drop_path_rate")?.unwrap_or(net.drop_path);
    mean_pooling(args)?;
    if args.flag("replace_stem_pool")? == Some(true) {
        return Err("timm's option `replace_stem_pool` cannot be used here yet".into());
    }
    if args.object("block_args")?.is_some_and(|map| !map.is_empty()) {
        return Err("timm's option `block_args` cannot be used here yet".into());
    }
    args.finish(&IGNORED)
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
pub(super) fn arguments(net: &ResNet) -> Map<String, Value> {
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

pub(super) fn form(net: &ResNet) -> TimmForm {
    TimmForm { base: base(net), ..TimmForm::published(arguments(net)) }
}

/// The model that timm changes into this one and the arguments, or why it cannot.
fn base(net: &ResNet) -> Result<(String, Map<String, Value>), String> {
    if net.stem == Stem::Small {
        return Err("timm's ResNet has no first layer for small images, with 3x3 filters and no pooling".into());
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
