//! `convnext` and `convnextv2`. The last norm has the configuration's epsilon, all others 1e-6; the first stage keeps the
//! resolution whatever the patch size, and no stage is dilated.

use serde_json::{Map, Value, json};
use vit_graph::ops::Activation;

use super::names::Names;
use super::vision_transformer::activation;
use super::{ModelType, Task, Writer, class_of, processor, unchanged};
use crate::architecture::Architecture;
use crate::config::Arguments;
use crate::config::timm::{object, short, square};
use crate::convnext::{ConvNext, ConvNextStem};
use crate::weights::{Weights, WeightsError};

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

/// Coarser than any image.
const LARGEST_STRIDE: usize = 1 << 17;

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
    write: Some(Writer { config: |model| config(model, "ConvNext"), convert: |_| Ok(()) }),
};

pub(super) const V2: ModelType = ModelType {
    name: "convnextv2",
    class: "ConvNextV2",
    base: "convnextv2.",
    read: |args, task| Ok(ConvNext { layer_scale: None, response_norm: true, ..net(args, task)? }.into()),
    write: Some(Writer { config: |model| config(model, "ConvNextV2"), convert: spread_response_norms }),
    ..TYPE
};

fn config(model: &Architecture, prefix: &str) -> Result<(String, Map<String, Value>), String> {
    let net = model.downcast_ref::<ConvNext>().ok_or_else(String::new)?;
    let ConvNextStem::Patches(patch) = net.stem else {
        return Err("Hugging Face's ConvNeXt has no option for overlapping patches".into());
    };
    let mut options = object(json!({
        "image_size": square(net.image_size),
        "num_channels": net.channels,
        "patch_size": patch,
        "num_stages": net.depths.len(),
        "depths": net.depths,
        "hidden_sizes": net.widths,
        "hidden_act": activation(net.activation),
        "layer_norm_eps": short(net.last_norm_epsilon),
        "drop_path_rate": short(net.drop_path),
    }));
    if !net.response_norm {
        options.insert("layer_scale_init_value".into(), json!(net.layer_scale.map_or(0.0, short)));
    }
    Ok((class_of(prefix, model), options))
}

/// transformers has the parameters of response norms as `[1, 1, 1, channels]`.
fn spread_response_norms(weights: &mut Weights) -> Result<(), WeightsError> {
    for (_, tensor) in weights.tensors.iter_mut().filter(|(name, _)| name.contains(".grn.")) {
        tensor.shape = [&[1; 3], &tensor.shape[..]].concat();
    }
    Ok(())
}

fn net(args: &Arguments, task: Task) -> Result<ConvNext, String> {
    args.get("num_stages");
    let base = ConvNext::default();
    let depths = args.counts("depths")?.unwrap_or(base.depths);
    let patch = match args.pair("patch_size")?.unwrap_or([4, 4]) {
        [high, wide] if high == wide => high,
        [high, wide] => return Err(format!("Hugging Face's option `patch_size` should be square, not {high}x{wide}")),
    };
    let coarsest = depths.iter().skip(1).fold(patch, |stride, _| stride.saturating_mul(2));
    Ok(ConvNext {
        image_size: args.pair("image_size")?.unwrap_or(base.image_size),
        channels: args.count("num_channels")?.unwrap_or(3),
        classes: task.labels,
        kernels: vec![7; depths.len()],
        depths,
        widths: args.counts("hidden_sizes")?.unwrap_or(base.widths),
        stem: ConvNextStem::Patches(patch),
        first_stride: 1,
        output_stride: coarsest.clamp(32, LARGEST_STRIDE).next_power_of_two(),
        activation: args.activation("hidden_act")?.unwrap_or(Activation::Gelu),
        last_norm_epsilon: args.number("layer_norm_eps")?.unwrap_or(1e-12) as f32,
        drop_path: args.rate("drop_path_rate")?.unwrap_or_default(),
        ..ConvNext::default()
    })
}
