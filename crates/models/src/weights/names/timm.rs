//! timm's own names, which are the canonical ones. Only what older files and the repositories around timm do
//! differently is changed.

use super::rename;
use crate::weights::{Weights, WeightsError};

/// Wrappers that training code leaves in front of every name.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// Whether these are the names of one of timm's Vision Transformers.
pub fn detect(weights: &Weights) -> bool {
    weights.tensors.keys().any(|name| {
        let name = unwrapped(name);
        name == "patch_embed.proj.weight" || name.starts_with("blocks.0.")
    })
}

/// Canonical names for timm's, and for those of the original DeiT III and DINOv2 files.
pub fn to_canonical(weights: Weights) -> Result<Weights, WeightsError> {
    rename(weights, |name| {
        let name = unwrapped(name);
        match name {
            "register_tokens" => return Some("reg_token".into()),
            // Only masked pre-training uses it; no classifier has a place for it.
            "mask_token" => return None,
            _ => {}
        }
        if name.starts_with("blocks.") {
            if let Some(block) = name.strip_suffix(".gamma_1") {
                return Some(format!("{block}.ls1.gamma"));
            }
            if let Some(block) = name.strip_suffix(".gamma_2") {
                return Some(format!("{block}.ls2.gamma"));
            }
        }
        Some(name.into())
    })
}

fn unwrapped(mut name: &str) -> &str {
    while let Some(inner) = WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper)) {
        name = inner;
    }
    name
}
