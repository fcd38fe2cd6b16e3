//! The names of Google's Big Transfer files: `resnet/block1/unit01/a/standardized_conv2d/kernel`, filters as height,
//! width, in, out.

use super::jax::conv;
use crate::weights::{Tensor, Weights, WeightsError};

const ROOT: &str = "resnet/";

/// Whether these are the names of a Big Transfer checkpoint.
pub fn detect(weights: &Weights) -> bool {
    weights.tensors.contains_key("resnet/root_block/standardized_conv2d/kernel")
}

/// Canonical names and shapes for Big Transfer's.
pub fn to_canonical(weights: Weights) -> Result<Weights, WeightsError> {
    let mut ours = Weights { metadata: weights.metadata, ..Weights::default() };
    for (name, tensor) in weights.tensors {
        // The optimiser's state is outside.
        let Some(inside) = name.strip_prefix(ROOT) else { continue };
        let (name, tensor) = match canonical_name(inside) {
            Some(ours) if inside.ends_with("kernel") => (ours, conv(&name, tensor)?),
            Some(ours) => (ours, Tensor { shape: vec![tensor.data.len()], data: tensor.data }),
            None => (name, tensor),
        };
        ours.insert(name, tensor)?;
    }
    Ok(ours)
}

fn canonical_name(name: &str) -> Option<String> {
    let (layer, kind) = name.rsplit_once('/')?;
    let kind = match kind {
        "kernel" | "gamma" => "weight",
        "beta" | "bias" => "bias",
        _ => return None,
    };
    let layer = match layer {
        "root_block/standardized_conv2d" => "stem.conv".into(),
        "group_norm" => "norm".into(),
        "head/conv2d" => "head.fc".into(),
        _ => block(layer)?,
    };
    Some(format!("{layer}.{kind}"))
}

fn block(layer: &str) -> Option<String> {
    let (block, rest) = layer.strip_prefix("block")?.split_once("/unit")?;
    let (unit, part) = rest.split_once('/')?;
    let (block, unit) = (block.parse::<usize>().ok()?.checked_sub(1)?, unit.parse::<usize>().ok()?.checked_sub(1)?);
    let part = match part {
        "a/standardized_conv2d" => "conv1",
        "b/standardized_conv2d" => "conv2",
        "c/standardized_conv2d" => "conv3",
        "a/group_norm" => "norm1",
        "b/group_norm" => "norm2",
        "c/group_norm" => "norm3",
        "a/proj/standardized_conv2d" => "downsample.conv",
        _ => return None,
    };
    Some(format!("stages.{block}.blocks.{unit}.{part}"))
}
