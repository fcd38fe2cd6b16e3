//! Cosine attention (Swin V2: Liu et al., 2022): scores are cosines of query and key times a learned factor per head, so that
//! no single pair dominates in wide models.

use vit_graph::ops::CosineQkv;
use vit_graph::{Init, Tensor};

/// The largest logarithm of a factor: ln 100.
const LARGEST_LOGIT_SCALE: f32 = 4.605_170_2;

/// Packed `qkv [b, n, 3·h·d]` for an attention whose scores are cosines times a factor per head, at most 100. The factor's
/// logarithm is the parameter of this name; it starts at ln 10.
pub fn cosine_qkv(qkv: &Tensor, heads: usize, name: &str) -> Tensor {
    let logarithm = qkv.parameter(name, [heads, 1, 1], Init::Constant(10f32.ln()));
    let scale = logarithm.at_most(LARGEST_LOGIT_SCALE).exp().reshape([heads]);
    qkv.apply(CosineQkv { heads }, &[&scale])
}
