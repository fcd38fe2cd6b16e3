//! torchvision's names. Its query, key and value are already one matrix, so this is renaming alone.

use super::rename;
use crate::weights::{Weights, WeightsError};

/// Whether these are the names of one of torchvision's Vision Transformers.
pub fn detect(weights: &Weights) -> bool {
    weights.tensors.contains_key("conv_proj.weight")
        && weights.tensors.keys().any(|name| name.starts_with("encoder.layers.encoder_layer_"))
}

/// Canonical names for torchvision's.
pub fn to_canonical(weights: Weights) -> Result<Weights, WeightsError> {
    rename(weights, |name| Some(canonical_name(name).unwrap_or_else(|| name.into())))
}

fn canonical_name(name: &str) -> Option<String> {
    const OUTSIDE: [(&str, &str); 6] = [
        ("class_token", "cls_token"),
        ("encoder.pos_embedding", "pos_embed"),
        ("conv_proj.", "patch_embed.proj."),
        ("encoder.ln.", "norm."),
        ("heads.pre_logits.", "pre_logits.fc."),
        ("heads.head.", "head."),
    ];
    const INSIDE: [(&str, &str); 8] = [
        ("ln_1.", "norm1."),
        ("ln_2.", "norm2."),
        ("self_attention.in_proj_", "attn.qkv."),
        ("self_attention.out_proj.", "attn.proj."),
        ("mlp.0.", "mlp.fc1."),
        ("mlp.3.", "mlp.fc2."),
        // Before torchvision 0.13.
        ("mlp.linear_1.", "mlp.fc1."),
        ("mlp.linear_2.", "mlp.fc2."),
    ];
    if let Some(inside) = name.strip_prefix("encoder.layers.encoder_layer_") {
        let (layer, part) = inside.split_once('.')?;
        let layer: usize = layer.parse().ok()?;
        return INSIDE.iter().find_map(|(theirs, ours)| {
            let rest = part.strip_prefix(theirs)?;
            Some(format!("blocks.{layer}.{ours}{rest}"))
        });
    }
    OUTSIDE.iter().find_map(|(theirs, ours)| Some(format!("{ours}{}", name.strip_prefix(theirs)?)))
}
