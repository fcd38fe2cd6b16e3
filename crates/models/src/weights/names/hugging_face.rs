//! The names of transformers' ViT and DeiT in files without a configuration, in both directions. `crate::hugging_face` has
//! the tables, and those of all other model types.

use crate::hugging_face::without_config;
use crate::weights::{Weights, WeightsError};

/// Whether these are the names of transformers' ViT or DeiT.
pub fn detect(weights: &Weights) -> bool {
    let bases = ["", "vit.", "deit."];
    bases
        .iter()
        .any(|base| weights.tensors.contains_key(&format!("{base}embeddings.patch_embeddings.projection.weight")))
}

/// Canonical names for transformers'.
pub fn to_canonical(weights: Weights) -> Result<Weights, WeightsError> {
    without_config::to_canonical(weights)
}

/// transformers' names for canonical ones: DeiT's if there is a distillation token, else ViT's; the class token's head has
/// another name if the distillation token has one too. A tensor that these classes do not have is an error.
pub fn from_canonical(weights: &Weights) -> Result<Weights, WeightsError> {
    without_config::from_canonical(weights)
}
