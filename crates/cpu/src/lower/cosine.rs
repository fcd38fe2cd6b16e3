//! Queries and keys of cosine attention.

use vit_graph::Type;

use super::{Lowered, consumed};
use crate::cosine::{self, QkvShape};

fn shape_of(heads: usize, qkv: &Type) -> QkvShape {
    QkvShape { heads, head_dim: qkv.shape.last() / (3 * heads) }
}

pub(super) fn forward(heads: usize, qkv: &Type) -> Lowered {
    let shape = shape_of(heads, qkv);
    Lowered::new(move |p, inputs, outputs, _| {
        cosine::normalise(&p.pool, p.isa, shape, inputs[0], inputs[1], outputs[0]);
    })
}

/// From `dy`, `qkv` and `scale` to `dqkv` and the dot products of queries. A `dqkv` without consumers goes to the workspace.
pub(super) fn backward(heads: usize, qkv: &Type) -> Lowered {
    let (shape, dx_len) = (shape_of(heads, qkv), qkv.shape.elements());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [dx, dots] = outputs else { unreachable!("two outputs") };
        let dx = consumed(dx).unwrap_or(&mut workspace[..dx_len]);
        cosine::normalise_grad(&p.pool, p.isa, shape, [inputs[0], inputs[1], inputs[2]], dx, consumed(dots));
    })
    .with_workspace(dx_len)
}
