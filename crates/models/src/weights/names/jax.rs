//! The names of Google's vision_transformer and of big_vision. Their dense kernels are `[in, out]`, their convolutions
//! `[height, width, in, out]`; query, key and value are separate and split into heads. Where the model was scanned over its
//! layers, blocks are stacked along a leading axis.

mod arrays;
mod stages;

use super::{concat, rename};
use crate::weights::{Tensor, Weights, WeightsError};
pub(super) use arrays::conv;
use arrays::{bias, dense, from_heads, positions, unstack};

/// Prefixes of a model's parameters, in files that hold more than these; the first that matches is used.
const ROOTS: [&str; 7] = ["", "params/", "params/img/", "img/", "opt/target/", "target/", "params/params/"];
const STACKED: &str = "Transformer/encoderblock/";
/// Parts of big_vision's attention pooling head, which its first files have at the top level.
const MAP_PARTS: [&str; 4] = ["probe", "LayerNorm_0/", "MultiHeadDotProductAttention_0/", "MlpBlock_0/"];

/// Whether these are the names of a vision_transformer or big_vision checkpoint.
pub fn detect(weights: &Weights) -> bool {
    root(weights).is_some()
}

/// Canonical names and shapes for vision_transformer's and big_vision's.
pub fn to_canonical(weights: Weights) -> Result<Weights, WeightsError> {
    let root = root(&weights).unwrap_or("");
    let inlined_map = weights.tensors.contains_key(&format!("{root}probe"));
    let weights = rename(weights, |name| {
        let name = name.strip_prefix(root)?;
        if inlined_map && MAP_PARTS.iter().any(|part| name.starts_with(part)) {
            return Some(format!("MAPHead_0/{name}"));
        }
        Some(name.into())
    })?;
    let mut theirs = unstacked(weights)?;
    let mut ours = Weights { metadata: std::mem::take(&mut theirs.metadata), ..Weights::default() };

    let blocks: Vec<(usize, String)> = blocks(&theirs);
    for (index, block) in blocks {
        encoder_block(&mut theirs, &mut ours, &block, &format!("blocks.{index}"))?;
    }
    if theirs.tensors.contains_key("MAPHead_0/probe") {
        map_head(&mut theirs, &mut ours)?;
    }
    let has_blocks = theirs.tensors.keys().any(|name| name.starts_with("block1/"));
    for (name, tensor) in std::mem::take(&mut theirs.tensors) {
        let (name, tensor) = match stages::canonical(&name, &tensor, has_blocks)? {
            Some(found) => found,
            None => outside(name, tensor)?,
        };
        ours.insert(name, tensor)?;
    }
    Ok(ours)
}

fn root(weights: &Weights) -> Option<&'static str> {
    ROOTS.into_iter().find(|root| {
        ["embedding/kernel", "Transformer/encoder_norm/scale"]
            .iter()
            .all(|name| weights.tensors.contains_key(&format!("{root}{name}")))
    })
}

/// Splits blocks that are stacked along a leading axis into one set of tensors per block.
fn unstacked(weights: Weights) -> Result<Weights, WeightsError> {
    let mut apart = Weights { metadata: weights.metadata, ..Weights::default() };
    for (name, tensor) in weights.tensors {
        let Some(part) = name.strip_prefix(STACKED) else {
            apart.insert(name, tensor)?;
            continue;
        };
        for (index, layer) in unstack(&name, &tensor)?.into_iter().enumerate() {
            apart.insert(format!("Transformer/encoderblock_{index}/{part}"), layer)?;
        }
    }
    Ok(apart)
}

/// The blocks in order, each with the prefix of its names.
fn blocks(weights: &Weights) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = weights
        .tensors
        .keys()
        .filter_map(|name| {
            let number = name.strip_prefix("Transformer/encoderblock_")?.split_once('/')?.0;
            let index = number.parse().ok()?;
            Some((index, format!("Transformer/encoderblock_{number}/")))
        })
        .collect();
    blocks.sort();
    blocks.dedup();
    blocks
}

fn encoder_block(theirs: &mut Weights, ours: &mut Weights, block: &str, to: &str) -> Result<(), WeightsError> {
    // Published files number all layers of a block consecutively, current Flax each kind of layer separately.
    let published = theirs.tensors.contains_key(&format!("{block}LayerNorm_2/scale"));
    let (norm2, attention, mlp) = match published {
        true => ("LayerNorm_2", "MultiHeadDotProductAttention_1", "MlpBlock_3"),
        false => ("LayerNorm_1", "MultiHeadDotProductAttention_0", "MlpBlock_0"),
    };
    layer_norm(theirs, ours, &format!("{block}LayerNorm_0"), &format!("{to}.norm1"))?;
    layer_norm(theirs, ours, &format!("{block}{norm2}"), &format!("{to}.norm2"))?;
    let attention = format!("{block}{attention}");
    let qkv = ["query", "key", "value"];
    projections(theirs, ours, &attention, &qkv, &format!("{to}.attn.qkv"))?;
    output(theirs, ours, &attention, &format!("{to}.attn.proj"))?;
    feed_forward(theirs, ours, &format!("{block}{mlp}"), &format!("{to}.mlp"))
}

/// big_vision's attention pooling: attention from a learned probe to the tokens, then a residual MLP.
fn map_head(theirs: &mut Weights, ours: &mut Weights) -> Result<(), WeightsError> {
    let probe = theirs.take("MAPHead_0/probe")?;
    ours.insert("attn_pool.latent", probe)?;
    let attention = "MAPHead_0/MultiHeadDotProductAttention_0";
    projections(theirs, ours, attention, &["query"], "attn_pool.q")?;
    projections(theirs, ours, attention, &["key", "value"], "attn_pool.kv")?;
    output(theirs, ours, attention, "attn_pool.proj")?;
    layer_norm(theirs, ours, "MAPHead_0/LayerNorm_0", "attn_pool.norm")?;
    feed_forward(theirs, ours, "MAPHead_0/MlpBlock_0", "attn_pool.mlp")
}

fn layer_norm(theirs: &mut Weights, ours: &mut Weights, from: &str, to: &str) -> Result<(), WeightsError> {
    ours.insert(format!("{to}.weight"), theirs.take(&format!("{from}/scale"))?)?;
    ours.insert(format!("{to}.bias"), theirs.take(&format!("{from}/bias"))?)
}

/// Some of query, key and value, stacked into one linear layer.
fn projections(
    theirs: &mut Weights,
    ours: &mut Weights,
    from: &str,
    parts: &[&str],
    to: &str,
) -> Result<(), WeightsError> {
    let mut kernels = Vec::new();
    let mut biases = Vec::new();
    for part in parts {
        let name = format!("{from}/{part}/kernel");
        kernels.push(dense(&name, theirs.take(&name)?, 1)?);
        if let Some(values) = theirs.tensors.remove(&format!("{from}/{part}/bias")) {
            biases.push(bias(values));
        }
    }
    let weight = format!("{to}.weight");
    let stacked = concat(&weight, kernels)?;
    ours.insert(weight, stacked)?;
    if biases.is_empty() {
        return Ok(());
    }
    let name = format!("{to}.bias");
    if biases.len() != parts.len() {
        return Err(WeightsError::Missing { name });
    }
    let stacked = concat(&name, biases)?;
    ours.insert(name, stacked)
}

fn output(theirs: &mut Weights, ours: &mut Weights, from: &str, to: &str) -> Result<(), WeightsError> {
    let name = format!("{from}/out/kernel");
    let kernel = from_heads(&name, theirs.take(&name)?)?;
    ours.insert(format!("{to}.weight"), kernel)?;
    if let Some(values) = theirs.tensors.remove(&format!("{from}/out/bias")) {
        ours.insert(format!("{to}.bias"), values)?;
    }
    Ok(())
}

fn feed_forward(theirs: &mut Weights, ours: &mut Weights, from: &str, to: &str) -> Result<(), WeightsError> {
    for (layer, number) in [("Dense_0", 1), ("Dense_1", 2)] {
        let name = format!("{from}/{layer}/kernel");
        let kernel = dense(&name, theirs.take(&name)?, 1)?;
        ours.insert(format!("{to}.fc{number}.weight"), kernel)?;
        let bias = theirs.take(&format!("{from}/{layer}/bias"))?;
        ours.insert(format!("{to}.fc{number}.bias"), bias)?;
    }
    Ok(())
}

/// Tensors outside the blocks; unknown names are kept.
fn outside(name: String, tensor: Tensor) -> Result<(String, Tensor), WeightsError> {
    let ours = match name.as_str() {
        "cls" => "cls_token",
        "pos_embedding" | "Transformer/pos_embedding" | "Transformer/posembed_input/pos_embedding" => {
            return Ok(("pos_embed".into(), positions(&name, tensor)?));
        }
        "embedding/kernel" => {
            return Ok(("patch_embed.proj.weight".into(), conv(&name, tensor)?));
        }
        "embedding/bias" => "patch_embed.proj.bias",
        "Transformer/encoder_norm/scale" => "norm.weight",
        "Transformer/encoder_norm/bias" => "norm.bias",
        "pre_logits/kernel" => {
            return Ok(("pre_logits.fc.weight".into(), dense(&name, tensor, 1)?));
        }
        "pre_logits/bias" => "pre_logits.fc.bias",
        "head/kernel" => return Ok(("head.weight".into(), dense(&name, tensor, 1)?)),
        "head/bias" => "head.bias",
        _ => return Ok((name, tensor)),
    };
    Ok((ours.into(), tensor))
}
