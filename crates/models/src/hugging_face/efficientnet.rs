//! `efficientnet`, with the padding of Keras.

use vit_graph::ops::Activation;

use super::names::Names;
use super::{ModelType, Task, processor, unchanged};
use crate::architecture::Architecture;
use crate::config::Arguments;
use crate::efficientnet::{EfficientNet, MobileBlock, MobileBlockKind};
use crate::layers::{Norm, Padding};

pub(super) const TYPE: ModelType = ModelType {
    name: "efficientnet",
    class: "EfficientNet",
    base: "efficientnet.",
    read: |args, task| Ok(net(args, task)?.into()),
    names,
    unused: &[],
    convert: unchanged,
    preprocessing: processor::efficientnet,
    any_size: true,
    write: None,
};

/// transformers numbers blocks through all stages.
fn names(model: &Architecture) -> Names {
    let mut names = Names::new(&[
        ("embeddings.convolution", "conv_stem"),
        ("embeddings.batchnorm", "bn1"),
        ("encoder.top_conv", "conv_head"),
        ("encoder.top_bn", "bn2"),
        ("classifier", "classifier"),
    ]);
    let stages = model.downcast_ref().map_or(&[][..], |net: &EfficientNet| &net.stages);
    let blocks = stages.iter().enumerate().flat_map(|(s, stage)| stage.iter().enumerate().map(move |(b, k)| (s, b, k)));
    for (number, (stage, index, block)) in blocks.enumerate() {
        let rows: &[(&str, &str)] = match block.kind {
            MobileBlockKind::Inverted => &[
                ("expansion.expand_conv", "conv_pw"),
                ("expansion.expand_bn", "bn1"),
                ("depthwise_conv.depthwise_conv", "conv_dw"),
                ("depthwise_conv.depthwise_norm", "bn2"),
                ("squeeze_excite.reduce", "se.conv_reduce"),
                ("squeeze_excite.expand", "se.conv_expand"),
                ("projection.project_conv", "conv_pwl"),
                ("projection.project_bn", "bn3"),
            ],
            _ => &[
                ("depthwise_conv.depthwise_conv", "conv_dw"),
                ("depthwise_conv.depthwise_norm", "bn1"),
                ("squeeze_excite.reduce", "se.conv_reduce"),
                ("squeeze_excite.expand", "se.conv_expand"),
                ("projection.project_conv", "conv_pw"),
                ("projection.project_bn", "bn2"),
            ],
        };
        for (theirs, ours) in rows {
            names.add(format!("encoder.blocks.{number}.{theirs}"), format!("blocks.{stage}.{index}.{ours}"));
        }
    }
    names
}

fn net(args: &Arguments, task: Task) -> Result<EfficientNet, String> {
    args.get("num_hidden_layers");
    let list = |name: &str, usual: [usize; 7]| args.counts(name).map(|found| found.unwrap_or(usual.to_vec()));
    let kernels = list("kernel_sizes", [3, 3, 5, 3, 5, 5, 3])?;
    let inputs = list("in_channels", [32, 16, 24, 40, 80, 112, 192])?;
    let outputs = list("out_channels", [16, 24, 40, 80, 112, 192, 320])?;
    let strides = list("strides", [1, 2, 2, 2, 1, 2, 1])?;
    let repeats = list("num_block_repeats", [1, 2, 2, 3, 3, 4, 1])?;
    let expansions = list("expand_ratios", [1, 6, 6, 6, 6, 6, 6])?;
    let square_padding = args.counts("depthwise_padding")?.unwrap_or_default();
    let lengths = [kernels.len(), outputs.len(), strides.len(), repeats.len(), expansions.len()];
    if lengths.iter().any(|&length| length != inputs.len()) || inputs.len() > 64 {
        return Err(
            "Hugging Face's lists of channels, kernels, strides, repeats and ratios have different lengths".into()
        );
    }
    let factor = |name: &str, usual: f64| match args.number(name)?.unwrap_or(usual) {
        n if n > 0.0 && n <= 64.0 => Ok(n),
        n => Err(format!("Hugging Face's option `{name}` should be above 0 and at most 64, not {n}")),
    };
    let (width, depth) = (factor("width_coefficient", 2.0)?, factor("depth_coefficient", 3.1)?);
    let divisor = args.count("depth_divisor")?.unwrap_or(8);
    if divisor == 0 || !divisor.is_multiple_of(8) {
        return Err(format!("Hugging Face's option `depth_divisor` should be a multiple of 8, not {divisor}"));
    }
    let rounded = |channels: usize| {
        let scaled = channels as f64 * width;
        let rounded = ((scaled + divisor as f64 / 2.0) as usize / divisor * divisor).max(divisor);
        if (rounded as f64) < 0.9 * scaled { rounded.saturating_add(divisor) } else { rounded }
    };
    let ratio = args.number("squeeze_expansion_ratio")?.unwrap_or(0.25);
    let mut stages = Vec::new();
    let (mut block_number, mut before) = (0, rounded(32));
    let image_size = args.pair("image_size")?.unwrap_or([600, 600]);
    let mut extents = image_size.map(|extent| extent.div_ceil(2));
    for stage in 0..inputs.len() {
        if rounded(inputs[stage]) != before {
            return Err(format!(
                "Hugging Face's option `in_channels` has {} in stage {stage}, where {before} channels come in",
                inputs[stage]
            ));
        }
        let (kernel, stride, expansion) = (kernels[stage], strides[stage], expansions[stage]);
        let count = (depth * repeats[stage] as f64).ceil() as usize;
        if count > 1 << 10 {
            return Err(format!("Hugging Face's options give {count} blocks in stage {stage}"));
        }
        // Keras pads by the size of the image: an even extent less before than after, an odd one equally.
        if stride == 2 {
            for extent in &mut extents {
                if extent.is_multiple_of(2) == square_padding.contains(&block_number) {
                    return Err(format!(
                        "Hugging Face's option `depthwise_padding` does not suit an image of {}x{} pixels in block \
                         {block_number}",
                        image_size[0], image_size[1]
                    ));
                }
                *extent = extent.div_ceil(2);
            }
        }
        let output = rounded(outputs[stage]);
        let blocks = (0..count).map(|index| {
            let inputs = if index == 0 { before } else { output };
            let squeezed = ((inputs as f64 * ratio) as usize).max(1);
            let kind =
                if expansion == 1 { MobileBlockKind::Separable { active: false } } else { MobileBlockKind::Inverted };
            MobileBlock {
                kind,
                kernel,
                expand_kernel: 1,
                project_kernel: 1,
                stride,
                expansion: expansion as f64,
                width: output,
                expand_from: None,
                squeeze: squeezed as f64 / inputs as f64,
                group_size: 1,
                skip: index > 0,
                activation: None,
            }
        });
        stages.push(blocks.collect());
        block_number += count;
        before = output;
    }
    let features = rounded(1280);
    if args.count("hidden_dim")?.is_some_and(|hidden| hidden != features) {
        return Err(format!("Hugging Face's option `hidden_dim` should be {features} with this width coefficient"));
    }
    match args.text("pooling_type")? {
        None | Some("mean") => {}
        Some(other) => return Err(format!("Hugging Face's option `pooling_type` should be mean, not `{other}`")),
    }
    Ok(EfficientNet {
        image_size,
        channels: args.count("num_channels")?.unwrap_or(3),
        classes: task.labels,
        stem_width: rounded(32),
        stem_kernel: 3,
        stages,
        features,
        padding: Padding::Same,
        activation: args.activation("hidden_act")?.unwrap_or(Activation::Silu),
        norm: Norm::Batch {
            epsilon: args.number("batch_norm_eps")?.unwrap_or(1e-3) as f32,
            momentum: args.number("batch_norm_momentum")?.unwrap_or(0.99) as f32,
        },
        dropout: args.rate("dropout_rate")?.unwrap_or(0.5),
        drop_path: args.rate("drop_connect_rate")?.unwrap_or(0.2),
        ..EfficientNet::default()
    })
}
