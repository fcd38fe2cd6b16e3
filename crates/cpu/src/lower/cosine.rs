//! Normalisation of queries and keys for cosine attention (Swin V2).

use vit_graph::Type;

use super::{Lowered, consumed};
use crate::cosine::{self, QkvShape};

fn shape_of(heads: usize, qkv: &Type) -> QkvShape {
    QkvShape { heads, head_dim: qkv.shape.last() / (3 * heads) }
}

/// From `qkv` and `scale` to `qkv` with queries of length `scale` and keys of length 1.
pub(super) fn forward(heads: usize, qkv: &Type) -> Lowered {
    let shape = shape_of(heads, qkv);
    Lowered::new(move |p, inputs, outputs, _| {
        cosine::normalise(&p.pool, p.isa, shape, inputs[0], inputs[1], outputs[0]);
    })
}

/// From `dy`, `qkv` and `scale` to `dqkv` and, if consumed, `x̂ · dy` of every query and head, whose sum is the
/// gradient of the scale.
pub(super) fn backward(heads: usize, qkv: &Type) -> Lowered {
    let shape = shape_of(heads, qkv);
    Lowered::new(move |p, inputs, outputs, _| {
        let [dx, dots] = outputs else { unreachable!("two outputs") };
        cosine::normalise_grad(&p.pool, p.isa, shape, [inputs[0], inputs[1], inputs[2]], dx, consumed(dots));
    })
}
