//! Cosine attention (Swin V2: Liu et al., 2022): scores are cosines of query and key times a learned factor per head, so that
//! no single pair dominates in wide models.

use vit_graph::ops::Constant;
use vit_graph::{Init, Shape, Tensor};

/// The largest logarithm of a factor: ln 100.
const LARGEST_LOGIT_SCALE: f32 = 4.605_170_2;

/// The factor per head, `[heads]`, at most 100. Its logarithm is a parameter, which starts at ln 10.
pub fn clamped_scale(x: &Tensor, heads: usize, name: &str) -> Tensor {
    let logarithm = x.parameter(name, [heads, 1, 1], Init::Constant(10f32.ln()));
    logarithm.at_most(LARGEST_LOGIT_SCALE).exp().reshape([heads])
}

/// Query, key and value for an attention whose scores are cosines times `scale [heads]`, from packed `qkv [b, n, 3·h·d]`:
/// queries have the length of their head's factor, keys have length 1.
pub fn cosine_operands(qkv: &Tensor, heads: usize, scale: &Tensor) -> [Tensor; 3] {
    let [batch, tokens, width] = [qkv.extent(0), qkv.extent(1), qkv.extent(2) / 3];
    let part = |index: usize| qkv.slice(2, index * width, width);
    let by_head = |part: Tensor| part.reshape([batch, tokens, heads, width / heads]);
    // PyTorch divides by the larger of the length and 1e-12; they differ for shorter vectors only.
    let epsilon = qkv.constant(Constant::filled(Shape::default(), 1e-24));
    let inverse_length = |x: &Tensor| ((x * x).sum([3]) + epsilon.clone()).power(-0.5);
    let times =
        |x: &Tensor, factor: Tensor| (x * &factor.reshape([batch, tokens, heads, 1])).reshape([batch, tokens, width]);
    let (q, k) = (by_head(part(0)), by_head(part(1)));
    [times(&q, inverse_length(&q) * scale.clone()), times(&k, inverse_length(&k)), part(2)]
}
