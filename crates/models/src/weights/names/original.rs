//! The names of original repositories whose layers are timm's: DINO, DINOv2, MAE, TIPSv2, AIMv2, OpenAI's CLIP and OpenCLIP.
//! Parts of a file that are not the image encoder are left out.

use super::rename;
use crate::weights::{Tensor, Weights, WeightsError};

/// Prefixes of an encoder with timm's names in a file that has more than that.
const TRUNKS: [&str; 4] = ["backbone.", "visual.trunk.", "vision_encoder.", "encoder."];

/// AIMv2's names and timm's.
const AIMV2: [(&str, &str); 8] = [
    ("preprocessor.patchifier.", "patch_embed."),
    ("preprocessor.pos_embed", "pos_embed"),
    ("trunk.post_trunk_norm.", "norm."),
    ("trunk.", ""),
    ("norm_1", "norm1"),
    ("norm_2", "norm2"),
    ("mlp.fc1", "mlp.fc1_g"),
    ("mlp.fc3", "mlp.fc1_x"),
];

/// CLIP's names and timm's.
pub(crate) const CLIP: [(&str, &str); 12] = [
    ("conv1.", "patch_embed.proj."),
    ("positional_embedding", "pos_embed"),
    ("class_embedding", "cls_token"),
    ("transformer.resblocks.", "blocks."),
    ("ln_pre", "norm_pre"),
    ("ln_post", "norm"),
    ("ln_", "norm"),
    (".ls_", ".ls"),
    ("in_proj_", "qkv."),
    ("out_proj", "proj"),
    ("mlp.c_fc", "mlp.fc1"),
    ("mlp.c_proj", "mlp.fc2"),
];

const CLIP_ROOTS: [&str; 2] = ["visual.", "module.visual."];

/// Whether these are names that [`to_timm`] changes.
pub fn detect(weights: &Weights) -> bool {
    let has = |name: &str| weights.tensors.contains_key(name);
    has("preprocessor.patchifier.proj.weight")
        || CLIP_ROOTS.iter().any(|root| has(&format!("{root}class_embedding")))
        || TRUNKS.iter().any(|trunk| has(&format!("{trunk}patch_embed.proj.weight")))
}

/// timm's names.
pub fn to_timm(weights: Weights) -> Result<Weights, WeightsError> {
    let has = |name: &str| weights.tensors.contains_key(name);
    if let Some(root) = CLIP_ROOTS.into_iter().find(|root| has(&format!("{root}class_embedding"))) {
        return clip(weights, root);
    }
    if has("preprocessor.patchifier.proj.weight") {
        return rename(weights, |name| Some(replaced(name, &AIMV2)));
    }
    let trunk = TRUNKS.into_iter().find(|trunk| has(&format!("{trunk}patch_embed.proj.weight")));
    let projection = weights.tensors.get("visual.head.proj.weight").cloned();
    let mut weights = rename(weights, |name| {
        let name = trunk.map_or(Some(name), |trunk| name.strip_prefix(trunk))?;
        Some(replaced(name, &[(".mlp.w12.", ".mlp.fc1."), (".mlp.w3.", ".mlp.fc2.")]))
    })?;
    if let Some(projection) = projection.filter(|_| trunk == Some("visual.trunk.")) {
        without_bias(&mut weights, projection)?;
    }
    if ["register_tokens", "pos_embed"].iter().all(|name| weights.tensors.contains_key(*name)) {
        fold_class_position(&mut weights)?;
    }
    Ok(weights)
}

/// Replaces parts of a name, one after the other.
pub(crate) fn replaced(name: &str, parts: &[(&str, &str)]) -> String {
    parts.iter().fold(name.to_string(), |name, (theirs, ours)| name.replace(theirs, ours))
}

fn clip(weights: Weights, root: &str) -> Result<Weights, WeightsError> {
    let mut weights = rename(weights, |name| Some(replaced(name.strip_prefix(root)?, &CLIP)))?;
    for name in ["cls_token", "pos_embed"] {
        let mut tensor = weights.take(name)?;
        let Some(&dim) = tensor.shape.last().filter(|&&dim| dim > 0) else {
            return Err(WeightsError::shape(name, &tensor.shape, "a vector for each token"));
        };
        tensor.shape = vec![1, tensor.data.len() / dim, dim];
        weights.insert(name.to_string(), tensor)?;
    }
    if let Some(projection) = weights.tensors.remove("proj") {
        let projection = transposed("proj", projection)?;
        without_bias(&mut weights, projection)?;
    }
    Ok(weights)
}

/// A projection to the embedding is a head without a bias.
fn without_bias(weights: &mut Weights, projection: Tensor) -> Result<(), WeightsError> {
    let rows = projection.shape.first().copied().unwrap_or(0);
    weights.insert("head.bias".to_string(), Tensor { shape: vec![rows], data: vec![0.0; rows] })?;
    weights.insert("head.weight".to_string(), projection)
}

pub(crate) fn transposed(name: &str, tensor: Tensor) -> Result<Tensor, WeightsError> {
    let [rows, columns] = tensor.shape[..] else {
        return Err(WeightsError::shape(name, &tensor.shape, "two axes"));
    };
    let data = (0..rows * columns).map(|i| tensor.data[i % rows * columns + i / rows]).collect();
    Tensor::new(vec![columns, rows], data)
}

/// DINOv2 with registers has a position for the class token but none for registers; timm has them for patches only.
fn fold_class_position(weights: &mut Weights) -> Result<(), WeightsError> {
    let positions = weights.take("pos_embed")?;
    let class = weights.tensors.get_mut("cls_token").filter(|class| class.data.len() <= positions.data.len());
    let &[1, tokens, dim] = positions.shape.as_slice() else {
        return Err(WeightsError::shape("pos_embed", &positions.shape, "one vector for each token"));
    };
    let patches = tokens.saturating_sub(1);
    match class {
        Some(class) if class.data.len() == dim && patches.isqrt().pow(2) == patches && patches > 0 => {
            class.data.iter_mut().zip(&positions.data).for_each(|(token, position)| *token += position);
            let data = positions.data[dim..].to_vec();
            weights.insert("pos_embed".to_string(), Tensor { shape: vec![1, patches, dim], data })
        }
        _ => weights.insert("pos_embed".to_string(), positions),
    }
}
