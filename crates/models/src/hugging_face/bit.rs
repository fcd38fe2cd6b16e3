//! `bit`: Big Transfer, and the post-activation ResNet of hybrids.

use vit_graph::ops::Activation;

use super::names::Names;
use super::{ModelType, Task, processor, unchanged};
use crate::config::Arguments;
use crate::layers::{Norm, Padding, round_width};
use crate::resnetv2::{ResNetV2, ResNetV2Block, StemPooling};

const NAMES: &[(&str, &str)] = &[
    ("embedder.convolution", "stem.conv"),
    ("embedder.norm", "stem.norm"),
    ("encoder.stages.*.layers", "stages.*.blocks"),
    ("norm", "norm"),
    ("classifier.1", "head.fc"),
];

pub(super) const TYPE: ModelType = ModelType {
    name: "bit",
    class: "Bit",
    base: "bit.",
    read: |args, task| Ok(net(args, task)?.into()),
    names: |_| Names::new(NAMES),
    unused: &[],
    convert: unchanged,
    preprocessing: processor::bit,
    any_size: true,
    write: None,
};

fn net(args: &Arguments, task: Task) -> Result<ResNetV2, String> {
    // The option of a removed class.
    args.get("conv_layer");
    let block = match args.text("layer_type")?.unwrap_or("preactivation") {
        "preactivation" => ResNetV2Block::Bottleneck,
        "bottleneck" => ResNetV2Block::PostActivation,
        other => {
            return Err(format!(
                "Hugging Face's option `layer_type` should be preactivation or bottleneck, not `{other}`"
            ));
        }
    };
    let same = args.text("global_padding")?.map(str::to_ascii_lowercase);
    let dynamic = args.flag("embedding_dynamic_padding")?.unwrap_or(false);
    // With norm and relu before the pooling, transformers' padding by zeros never is the maximum.
    let (padding, stem_pooling) = match (same.as_deref(), dynamic, block) {
        (None, false, ResNetV2Block::Bottleneck) => (Padding::Symmetric, StemPooling::Zeros),
        (Some("same"), true, ResNetV2Block::PostActivation) => (Padding::Same, StemPooling::Same),
        _ => {
            return Err(
                "Hugging Face's options `global_padding`, `embedding_dynamic_padding` and `layer_type` can be \
                        used here as null, false and preactivation, or as same, true and bottleneck"
                    .into(),
            );
        }
    };
    if args.count("output_stride")?.is_some_and(|stride| stride != 32) {
        return Err("Hugging Face's option `output_stride` should be 32".into());
    }
    let factor = args.number("width_factor")?.unwrap_or(1.0);
    let widths = args.counts("hidden_sizes")?.unwrap_or(vec![256, 512, 1024, 2048]);
    Ok(ResNetV2 {
        channels: args.count("num_channels")?.unwrap_or(3),
        classes: task.labels,
        depths: args.counts("depths")?.unwrap_or(vec![3, 4, 6, 3]),
        widths: widths.into_iter().map(|width| round_width(width as f64 * factor)).collect(),
        stem_width: args.count("embedding_size")?.unwrap_or(64),
        stem_pooling,
        block,
        padding,
        norm: Norm::Group { groups: args.count("num_groups")?.unwrap_or(32), epsilon: 1e-5 },
        activation: args.activation("hidden_act")?.unwrap_or(Activation::Relu),
        drop_path: args.rate("drop_path_rate")?.unwrap_or_default(),
        ..ResNetV2::default()
    })
}
