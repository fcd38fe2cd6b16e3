//! The constructor of timm's `ResNet`.

use serde_json::{Map, Value, json};
use vit_graph::ops::Operation;

use super::super::Arguments;
use super::hub::Entry;
use super::{described, mean_pooling, norm, short};
use crate::layers::Norm;
use crate::resnet::{ResNet, ResNetBlock, Stem};

/// Options that change how timm trains or starts a model, not what the model computes.
const IGNORED: [&str; 4] = ["zero_init_last", "pretrained", "drop_block_rate", "features_only"];

/// Changes a model as the constructor's arguments say.
pub(super) fn apply(args: &Arguments, mut net: ResNet) -> Result<ResNet, String> {
    if let Some((block, bound)) = args.class("block")? {
        net.block = self::block(block)?;
        bound.finish(&[])?;
    }
    net.depths = args.counts("layers")?.unwrap_or(net.depths);
    net.widths = args.counts("channels")?.unwrap_or(net.widths);
    net.widths.truncate(net.depths.len());
    net.classes = args.count("num_classes")?.unwrap_or(net.classes);
    net.channels = args.count("in_chans")?.unwrap_or(net.channels);
    net.output_stride = args.count("output_stride")?.unwrap_or(net.output_stride);
    net.groups = args.count("cardinality")?.unwrap_or(net.groups);
    net.group_width = args.count("base_width")?.unwrap_or(net.group_width);
    net.reduce_first = args.count("block_reduce_first")?.unwrap_or(net.reduce_first);
    net.down_kernel = args.count("down_kernel_size")?.unwrap_or(net.down_kernel);
    net.average_down = args.flag("avg_down")?.unwrap_or(net.average_down);
    let width = args.count("stem_width")?;
    let old = match net.stem {
        Stem::Plain => None,
        Stem::Small => Some(("small", 64)),
        Stem::Deep { width } => Some(("deep", width)),
        Stem::Tiered { width } => Some(("deep_tiered", width)),
    };
    let width = width.or(old.map(|(_, width)| width)).unwrap_or(64);
    net.stem = match args.text("stem_type")?.or(old.map(|(kind, _)| kind)).unwrap_or_default() {
        "" => Stem::Plain,
        // Not timm's: it has no stem for small pictures.
        "small" => Stem::Small,
        "deep" => Stem::Deep { width },
        "deep_tiered" => Stem::Tiered { width },
        other => {
            return Err(format!(
                "timm's option `stem_type` should be deep, deep_tiered, small or empty, not `{other}`"
            ));
        }
    };
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
    args.finish(&IGNORED)?;
    Ok(net)
}

/// A block by its class, with or without its module.
pub(in crate::config) fn block(class: &str) -> Result<ResNetBlock, String> {
    match class.rsplit('.').next().unwrap_or_default() {
        "BasicBlock" => Ok(ResNetBlock::Basic),
        "Bottleneck" => Ok(ResNetBlock::Bottleneck),
        other => Err(format!("the option `block` should be BasicBlock or Bottleneck, not `{other}`")),
    }
}

/// The constructor's arguments that make this model.
pub(super) fn arguments(net: &ResNet) -> Map<String, Value> {
    let (kind, width) = match net.stem {
        Stem::Plain => ("", 64),
        Stem::Small => ("small", 64),
        Stem::Deep { width } => ("deep", width),
        Stem::Tiered { width } => ("deep_tiered", width),
    };
    let all = json!({
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
        "stem_type": kind,
        "stem_width": width,
        "act_layer": net.activation.name(),
        "norm_layer": described(net.norm),
        "drop_rate": short(net.dropout),
        "drop_path_rate": short(net.drop_path),
    });
    all.as_object().cloned().unwrap_or_default()
}

/// How timm builds this model, or why it cannot.
pub(super) fn entry(net: &ResNet) -> Result<Entry, String> {
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
    Ok(Entry::new(if net.block == ResNetBlock::Basic { "resnet18" } else { "resnet50" }, args))
}
