//! timm's names, which are the canonical ones. Those of older files and of original repositories (DeiT III, DINOv2, BEiT, Swin)
//! are converted.

use super::{eva, original, rename};
use crate::weights::{Weights, WeightsError};

/// Prefixes that data-parallel and compiled modules put before every name.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

const BUFFERS: [&str; 4] = [".num_batches_tracked", ".relative_position_index", ".attn_mask", ".relative_coords_table"];

/// Whether these are the names of one of timm's Vision Transformers.
pub fn detect(weights: &Weights) -> bool {
    let named = |name: &String| ["patch_embed.proj.weight", "blocks.0."].iter().any(|n| unwrapped(name).starts_with(n));
    weights.tensors.keys().any(named) || original::detect(weights)
}

/// Canonical names.
pub fn to_canonical(weights: Weights) -> Result<Weights, WeightsError> {
    let weights = original::to_timm(rename(weights, |name| Some(unwrapped(name).into()))?)?;
    let autoencoder = weights.tensors.contains_key("decoder_embed.weight");
    let masked_keys = eva::has_masked_keys(&weights);
    let original_swin = weights.tensors.contains_key("layers.0.downsample.reduction.weight");
    let mut weights = rename(weights, |name| {
        match name {
            "register_tokens" => return Some("reg_token".into()),
            // Only used in masked pre-training, for which a masked autoencoder has a decoder.
            "mask_token" if !autoencoder => return None,
            _ => {}
        }
        // Buffers follow from the configuration.
        if BUFFERS.iter().any(|buffer| name.ends_with(buffer)) {
            return None;
        }
        if original_swin {
            return Some(from_original_swin(name));
        }
        if let Some(table) = name.strip_prefix("rel_pos_bias.") {
            return Some(format!("shared_rel_pos.{table}"));
        }
        if name.starts_with("blocks.") {
            if let Some(attention) = name.strip_suffix(".attn.relative_position_bias_table") {
                return Some(format!("{attention}.attn.rel_pos.relative_position_bias_table"));
            }
            if let Some(block) = name.strip_suffix(".gamma_1") {
                return Some(format!("{block}.ls1.gamma"));
            }
            if let Some(block) = name.strip_suffix(".gamma_2") {
                return Some(format!("{block}.ls2.gamma"));
            }
        }
        eva::canonical_name(name)
    })?;
    eva::split_biases(&mut weights, masked_keys)?;
    Ok(weights)
}

/// The name of a parameter in the files of BEiT and EVA.
pub fn beit_name(canonical: &str) -> String {
    for (ours, theirs) in [(".ls1.gamma", ".gamma_1"), (".ls2.gamma", ".gamma_2"), (".attn.rel_pos.", ".attn.")] {
        if canonical.starts_with("blocks.") && canonical.contains(ours) {
            return canonical.replace(ours, theirs);
        }
    }
    canonical.strip_prefix("shared_rel_pos.").map_or_else(|| canonical.into(), |table| format!("rel_pos_bias.{table}"))
}

/// Swin's own repository merges patches at the end of a stage, and has no pooling in its head.
fn from_original_swin(name: &str) -> String {
    let moved = name.strip_prefix("layers.").and_then(|rest| {
        let (stage, part) = rest.split_once(".downsample.")?;
        Some(format!("layers.{}.downsample.{part}", stage.parse::<usize>().ok()? + 1))
    });
    moved.or_else(|| Some(format!("head.fc.{}", name.strip_prefix("head.")?))).unwrap_or_else(|| name.into())
}

fn unwrapped(mut name: &str) -> &str {
    while let Some(inner) = WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper)) {
        name = inner;
    }
    name
}
