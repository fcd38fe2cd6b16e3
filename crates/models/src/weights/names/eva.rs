//! The names of the original files of EVA-02 and DINOv3, mapped onto timm's.

use crate::weights::{Tensor, Weights, WeightsError};

/// Names inside a block, ours second. DINOv3 and EVA-02 call the three layers of SwiGLU `w1`, `w2` and `w3`.
const INSIDE: [(&str, &str); 6] = [
    (".mlp.ffn_ln.", ".mlp.norm."),
    (".attn.inner_attn_ln.", ".attn.norm."),
    (".mlp.w12.", ".mlp.fc1."),
    (".mlp.w1.", ".mlp.fc1_g."),
    (".mlp.w2.", ".mlp.fc1_x."),
    (".mlp.w3.", ".mlp.fc2."),
];

/// Tables of rotary positions, which follow from the configuration.
const ROTARY_TABLES: [&str; 3] = ["rope_embed.periods", "rope.freqs_cos", "rope.freqs_sin"];

/// A name in timm's form; `None` for tensors that inference does not need.
pub(super) fn canonical_name(name: &str) -> Option<String> {
    // DINOv3's local crops have their own norm in pre-training.
    let table = ROTARY_TABLES.iter().any(|table| name.ends_with(table));
    if table || name.ends_with(".qkv.bias_mask") || name.starts_with("local_cls_norm.") {
        return None;
    }
    if name == "storage_tokens" {
        return Some("reg_token".into());
    }
    let inside = INSIDE.iter().find(|(theirs, _)| name.starts_with("blocks.") && name.contains(theirs));
    Some(inside.map_or_else(|| name.into(), |(theirs, ours)| name.replacen(theirs, ours, 1)))
}

/// Whether Facebook's DINOv3 wrote these weights, and then whether its periods are rounded to bf16.
pub fn detect_dinov3(weights: &Weights) -> Option<bool> {
    weights.tensors.get("storage_tokens")?;
    let periods = weights.tensors.get("rope_embed.periods");
    Some(periods.is_some_and(|periods| periods.data.iter().all(|period| period.to_bits() & 0xffff == 0)))
}

/// Whether the bias of keys is masked, as DINOv3's own files have it.
pub(super) fn has_masked_keys(weights: &Weights) -> bool {
    weights.tensors.keys().any(|name| name.ends_with("blocks.0.attn.qkv.bias_mask"))
}

/// Splits the bias of query, key and value where that of keys is masked, and moves separate biases to their projections.
pub(super) fn split_biases(weights: &mut Weights, masked: bool) -> Result<(), WeightsError> {
    let prefixes: Vec<String> = weights
        .tensors
        .keys()
        .filter_map(|name| name.strip_suffix(".proj.weight").filter(|layer| layer.ends_with(".attn")))
        .map(String::from)
        .collect();
    for attention in prefixes {
        if weights.tensors.contains_key(&format!("{attention}.q_proj.weight")) {
            for part in ["q", "v"] {
                if let Some(bias) = weights.tensors.remove(&format!("{attention}.{part}_bias")) {
                    weights.insert(format!("{attention}.{part}_proj.bias"), bias)?;
                }
            }
        }
        let name = format!("{attention}.qkv.bias");
        if let Some(stacked) = if masked { weights.tensors.remove(&name) } else { None } {
            let third = stacked.data.len() / 3;
            if stacked.shape != [3 * third] {
                return Err(WeightsError::shape(&name, &stacked.shape, "[3 × dim]"));
            }
            for (part, start) in [("q", 0), ("v", 2 * third)] {
                let values = stacked.data[start..][..third].to_vec();
                weights.insert(format!("{attention}.{part}_bias"), Tensor::new(vec![third], values)?)?;
            }
        }
    }
    Ok(())
}
