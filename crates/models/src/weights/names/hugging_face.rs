//! The names of transformers' ViT and DeiT, in both directions. transformers has one matrix each for query, key and value,
//! timm one for all three; the pooler, which no classifier uses, is dropped.

use super::{concat, rename};
use crate::weights::{Tensor, Weights, WeightsError};

/// Prefixes of a model inside a classifier.
const BASES: [&str; 2] = ["vit.", "deit."];

const OUTSIDE: [(&str, &str); 8] = [
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.distillation_token", "dist_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("layernorm.", "norm."),
    ("classifier.", "head."),
    ("cls_classifier.", "head."),
    ("distillation_classifier.", "head_dist."),
];

/// Names inside a layer, without query, key and value. Of two for the same tensor the first is that of published files, the
/// second that of transformers 5's modules, which `torch.save` of a state dict writes.
const INSIDE: [(&str, &str); 8] = [
    ("layernorm_before.", "norm1."),
    ("layernorm_after.", "norm2."),
    ("attention.output.dense.", "attn.proj."),
    ("intermediate.dense.", "mlp.fc1."),
    ("output.dense.", "mlp.fc2."),
    ("attention.o_proj.", "attn.proj."),
    ("mlp.fc1.", "mlp.fc1."),
    ("mlp.fc2.", "mlp.fc2."),
];

const QKV: [&str; 3] = ["attention.attention.query", "attention.attention.key", "attention.attention.value"];
/// Their temporary names, until they are stacked.
const APART: [&str; 3] = ["query", "key", "value"];
const QKV_IN_MEMORY: [&str; 3] = ["attention.q_proj", "attention.k_proj", "attention.v_proj"];

/// Whether these are the names of transformers' ViT or DeiT.
pub fn detect(weights: &Weights) -> bool {
    weights.tensors.keys().any(|name| without_base(name) == "embeddings.patch_embeddings.projection.weight")
}

/// Canonical names for transformers'.
pub fn to_canonical(weights: Weights) -> Result<Weights, WeightsError> {
    let mut weights = rename(weights, |name| {
        let name = without_base(name);
        let unused = name.starts_with("pooler.") || name == "embeddings.mask_token";
        (!unused).then(|| canonical_name(name).unwrap_or_else(|| name.into()))
    })?;

    let layers: Vec<String> =
        weights.tensors.keys().filter_map(|name| name.strip_suffix(".attn.query.weight").map(String::from)).collect();
    for layer in layers {
        for kind in ["weight", "bias"] {
            let parts: Vec<Tensor> = APART
                .iter()
                .filter_map(|part| weights.tensors.remove(&format!("{layer}.attn.{part}.{kind}")))
                .collect();
            let name = format!("{layer}.attn.qkv.{kind}");
            match parts.len() {
                0 => {}
                3 => {
                    let stacked = concat(&name, parts)?;
                    weights.insert(name, stacked)?;
                }
                _ => return Err(WeightsError::Missing { name }),
            }
        }
    }
    Ok(weights)
}

/// transformers' names for canonical ones: DeiT's if there is a distillation token, else ViT's; the class token's head has
/// another name if the distillation token has one too. A tensor that these classes do not have is an error.
pub fn from_canonical(weights: &Weights) -> Result<Weights, WeightsError> {
    let base = if weights.tensors.contains_key("dist_token") { "deit." } else { "vit." };
    let head = if weights.tensors.contains_key("head_dist.weight") { "cls_classifier" } else { "classifier" };
    let mut theirs = Weights { metadata: weights.metadata.clone(), ..Weights::default() };
    for (name, tensor) in &weights.tensors {
        if let Some((layer, kind)) = qkv(name) {
            for (part, values) in QKV.iter().zip(thirds(name, tensor)?) {
                theirs.insert(format!("{base}encoder.layer.{layer}.{part}.{kind}"), values)?;
            }
            continue;
        }
        let Some(renamed) = hugging_face_name(name, base, head) else {
            return Err(WeightsError::tensor(
                name,
                "transformers' ViT and DeiT have no such tensor; write timm's names instead",
            ));
        };
        theirs.insert(renamed, tensor.clone())?;
    }
    // Both classes always have a class token, and would initialise a missing one at random.
    weights.get("cls_token")?;
    Ok(theirs)
}

fn without_base(name: &str) -> &str {
    BASES.iter().find_map(|base| name.strip_prefix(base)).unwrap_or(name)
}

fn canonical_name(name: &str) -> Option<String> {
    let inside = name.strip_prefix("encoder.layer.").or_else(|| name.strip_prefix("layers."));
    if let Some(inside) = inside {
        let (layer, part) = inside.split_once('.')?;
        let layer: usize = layer.parse().ok()?;
        for names in [QKV, QKV_IN_MEMORY] {
            for (theirs, ours) in names.iter().zip(APART) {
                if let Some(rest) = part.strip_prefix(theirs) {
                    return Some(format!("blocks.{layer}.attn.{ours}{rest}"));
                }
            }
        }
        return INSIDE.iter().find_map(|(theirs, ours)| {
            let rest = part.strip_prefix(theirs)?;
            Some(format!("blocks.{layer}.{ours}{rest}"))
        });
    }
    OUTSIDE.iter().find_map(|(theirs, ours)| Some(format!("{ours}{}", name.strip_prefix(theirs)?)))
}

fn hugging_face_name(name: &str, base: &str, head: &str) -> Option<String> {
    if let Some(inside) = name.strip_prefix("blocks.") {
        let (layer, part) = inside.split_once('.')?;
        return INSIDE.iter().find_map(|(theirs, ours)| {
            let rest = part.strip_prefix(ours)?;
            Some(format!("{base}encoder.layer.{layer}.{theirs}{rest}"))
        });
    }
    if let Some(rest) = name.strip_prefix("head.") {
        return Some(format!("{head}.{rest}"));
    }
    if let Some(rest) = name.strip_prefix("head_dist.") {
        return Some(format!("distillation_classifier.{rest}"));
    }
    OUTSIDE.iter().find_map(|(theirs, ours)| Some(format!("{base}{theirs}{}", name.strip_prefix(ours)?)))
}

/// The layer and `weight` or `bias`, where the name is that of stacked query, key and value.
fn qkv(name: &str) -> Option<(&str, &str)> {
    let (layer, part) = name.strip_prefix("blocks.")?.split_once('.')?;
    Some((layer, part.strip_prefix("attn.qkv.")?))
}

/// Three tensors from the rows of one.
fn thirds(name: &str, stacked: &Tensor) -> Result<Vec<Tensor>, WeightsError> {
    let mut shape = stacked.shape.clone();
    match shape.first_mut() {
        Some(rows) if *rows % 3 == 0 && !stacked.data.is_empty() => *rows /= 3,
        _ => return Err(WeightsError::shape(name, &stacked.shape, "[3 × dim, …]")),
    }
    stacked.data.chunks(stacked.data.len() / 3).map(|part| Tensor::new(shape.clone(), part.into())).collect()
}
