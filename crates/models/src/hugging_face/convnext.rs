//! `convnext` and `convnextv2`. The last norm has the configuration's epsilon, all others 1e-6.

use vit_graph::ops::Activation;

use super::names::Names;
use super::{ModelType, Task, processor, unchanged};
use crate::config::Arguments;
use crate::convnext::{ConvNext, ConvNextStem};

const NAMES: &[(&str, &str)] = &[
    ("embeddings.patch_embeddings", "stem.0"),
    ("embeddings.layernorm", "stem.1"),
    ("encoder.stages.*.downsampling_layer", "stages.*.downsample"),
    ("encoder.stages.*.layers.*.dwconv", "stages.*.blocks.*.conv_dw"),
    ("encoder.stages.*.layers.*.layernorm", "stages.*.blocks.*.norm"),
    ("encoder.stages.*.layers.*.pwconv1", "stages.*.blocks.*.mlp.fc1"),
    ("encoder.stages.*.layers.*.pwconv2", "stages.*.blocks.*.mlp.fc2"),
    ("encoder.stages.*.layers.*.grn", "stages.*.blocks.*.mlp.grn"),
    ("encoder.stages.*.layers.*.layer_scale_parameter", "stages.*.blocks.*.gamma"),
    ("layernorm", "head.norm"),
    ("classifier", "head.fc"),
];

pub(super) const TYPE: ModelType = ModelType {
    name: "convnext",
    class: "ConvNext",
    base: "convnext.",
    read: |args, task| {
        let initial = args.number("layer_scale_init_value")?.unwrap_or(1e-6);
        let layer_scale = (initial > 0.0).then_some(initial as f32);
        Ok(ConvNext { layer_scale, ..net(args, task)? }.into())
    },
    names: |_| Names::new(NAMES),
    unused: &[],
    convert: unchanged,
    preprocessing: processor::convnext,
    any_size: true,
    write: None,
};

pub(super) const V2: ModelType = ModelType {
    name: "convnextv2",
    class: "ConvNextV2",
    base: "convnextv2.",
    read: |args, task| Ok(ConvNext { layer_scale: None, response_norm: true, ..net(args, task)? }.into()),
    ..TYPE
};

fn net(args: &Arguments, task: Task) -> Result<ConvNext, String> {
    args.get("num_stages");
    let base = ConvNext::default();
    let depths = args.counts("depths")?.unwrap_or(base.depths);
    let patch = match args.pair("patch_size")?.unwrap_or([4, 4]) {
        [high, wide] if high == wide => high,
        [high, wide] => return Err(format!("Hugging Face's option `patch_size` should be square, not {high}x{wide}")),
    };
    Ok(ConvNext {
        image_size: args.pair("image_size")?.unwrap_or(base.image_size),
        channels: args.count("num_channels")?.unwrap_or(3),
        classes: task.labels,
        kernels: vec![7; depths.len()],
        depths,
        widths: args.counts("hidden_sizes")?.unwrap_or(base.widths),
        stem: ConvNextStem::Patches(patch),
        activation: args.activation("hidden_act")?.unwrap_or(Activation::Gelu),
        last_norm_epsilon: args.number("layer_norm_eps")?.unwrap_or(1e-12) as f32,
        drop_path: args.rate("drop_path_rate")?.unwrap_or_default(),
        ..ConvNext::default()
    })
}
