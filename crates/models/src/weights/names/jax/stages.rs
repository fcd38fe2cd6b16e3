//! The convolutional stages before a hybrid Vision Transformer, as vision_transformer names them: `conv_root`, `gn_root`,
//! and in every `blockN/unitM` three convolutions with their norms and a projection.

use super::arrays::{bias, conv};
use crate::weights::{Tensor, WeightsError};

/// The canonical name and shape of a stage's tensor; `None` for other tensors. A stem without blocks has no prefix in
/// timm.
pub(super) fn canonical(
    name: &str,
    tensor: &Tensor,
    has_blocks: bool,
) -> Result<Option<(String, Tensor)>, WeightsError> {
    let Some((layer, kind)) = name.rsplit_once('/') else { return Ok(None) };
    let Some(layer) = layer_name(layer, has_blocks) else { return Ok(None) };
    let layer = format!("patch_embed.backbone.{layer}");
    Ok(match kind {
        "kernel" => Some((format!("{layer}.weight"), conv(name, tensor.clone())?)),
        // Published as [1, 1, 1, channels].
        "scale" => Some((format!("{layer}.weight"), bias(tensor.clone()))),
        "bias" => Some((format!("{layer}.bias"), bias(tensor.clone()))),
        _ => None,
    })
}

fn layer_name(layer: &str, has_blocks: bool) -> Option<String> {
    let stem = if has_blocks { "stem." } else { "" };
    match layer {
        "conv_root" => return Some(format!("{stem}conv")),
        "gn_root" => return Some(format!("{stem}norm")),
        _ => {}
    }
    let (block, rest) = layer.strip_prefix("block")?.split_once("/unit")?;
    let (unit, part) = rest.split_once('/')?;
    let (block, unit) = (block.parse::<usize>().ok()?.checked_sub(1)?, unit.parse::<usize>().ok()?.checked_sub(1)?);
    let part = match part {
        "conv1" | "conv2" | "conv3" => part.to_string(),
        "gn1" | "gn2" | "gn3" => part.replace("gn", "norm"),
        "conv_proj" => "downsample.conv".into(),
        "gn_proj" => "downsample.norm".into(),
        _ => return None,
    };
    Some(format!("stages.{block}.blocks.{unit}.{part}"))
}
