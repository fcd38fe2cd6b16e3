//! `resnet`: ResNet v1.5.

use serde_json::{Map, Value, json};

use super::names::Names;
use super::vision_transformer::activation;
use super::{ModelType, Task, Writer, class_of, processor, unchanged};
use crate::architecture::Architecture;
use crate::config::Arguments;
use crate::config::timm::object;
use crate::resnet::{ResNet, ResNetBlock};

const NAMES: &[(&str, &str)] = &[
    ("embedder.embedder.convolution", "conv1"),
    ("embedder.embedder.normalization", "bn1"),
    ("encoder.stages.*.layers.*.shortcut.convolution", "layer+.*.downsample.0"),
    ("encoder.stages.*.layers.*.shortcut.normalization", "layer+.*.downsample.1"),
    ("encoder.stages.*.layers.*.layer.0.convolution", "layer+.*.conv1"),
    ("encoder.stages.*.layers.*.layer.0.normalization", "layer+.*.bn1"),
    ("encoder.stages.*.layers.*.layer.1.convolution", "layer+.*.conv2"),
    ("encoder.stages.*.layers.*.layer.1.normalization", "layer+.*.bn2"),
    ("encoder.stages.*.layers.*.layer.2.convolution", "layer+.*.conv3"),
    ("encoder.stages.*.layers.*.layer.2.normalization", "layer+.*.bn3"),
    ("classifier.1", "fc"),
];

pub(super) const TYPE: ModelType = ModelType {
    name: "resnet",
    class: "ResNet",
    base: "resnet.",
    read: |args, task| Ok(net(args, task)?.into()),
    names: |_| Names::new(NAMES),
    unused: &[],
    convert: unchanged,
    preprocessing: processor::convnext,
    any_size: true,
    write: Some(Writer { config, convert: |_| Ok(()) }),
};

fn config(model: &Architecture) -> Result<(String, Map<String, Value>), String> {
    let net = model.downcast_ref::<ResNet>().ok_or_else(String::new)?;
    let options = json!({
        "num_channels": net.channels,
        "embedding_size": net.stem_width,
        "hidden_sizes": net.widths.iter().map(|width| width * net.block.expansion()).collect::<Vec<_>>(),
        "depths": net.depths,
        "layer_type": if net.block == ResNetBlock::Basic { "basic" } else { "bottleneck" },
        "hidden_act": activation(net.activation),
    });
    Ok((class_of("ResNet", model), object(options)))
}

fn net(args: &Arguments, task: Task) -> Result<ResNet, String> {
    let block = match args.text("layer_type")?.unwrap_or("bottleneck") {
        "basic" => ResNetBlock::Basic,
        "bottleneck" => ResNetBlock::Bottleneck,
        other => {
            return Err(format!("Hugging Face's option `layer_type` should be basic or bottleneck, not `{other}`"));
        }
    };
    for option in ["downsample_in_first_stage", "downsample_in_bottleneck"] {
        if args.flag(option)? == Some(true) {
            return Err(format!("Hugging Face's option `{option}` cannot be used here yet"));
        }
    }
    // Inside a block transformers has relu, whatever the option says.
    match args.text("hidden_act")? {
        None | Some("relu") => {}
        Some(other) => {
            return Err(format!("Hugging Face's option `hidden_act` should be relu for ResNet, not `{other}`"));
        }
    }
    let widths = args.counts("hidden_sizes")?.unwrap_or(vec![256, 512, 1024, 2048]);
    if let Some(width) = widths.iter().find(|width| !width.is_multiple_of(block.expansion())) {
        return Err(format!(
            "Hugging Face's option `hidden_sizes` should be multiples of 4 for bottlenecks, not {width}"
        ));
    }
    Ok(ResNet {
        channels: args.count("num_channels")?.unwrap_or(3),
        classes: task.labels,
        block,
        depths: args.counts("depths")?.unwrap_or(vec![3, 4, 6, 3]),
        widths: widths.into_iter().map(|width| width / block.expansion()).collect(),
        stem_width: args.count("embedding_size")?.unwrap_or(64),
        ..ResNet::default()
    })
}
