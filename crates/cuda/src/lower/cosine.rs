//! Queries and keys of cosine attention (Swin V2), and their gradient: in packed qkv, keys are divided by their length,
//! queries too and then multiplied by a scale per head; values are copied.

use super::{Emitter, THREADS, vector_width};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

/// Threads that share the vector of one head: `LANES` of the kernels.
const LANES: usize = 8;

pub(super) fn forward(heads: usize, e: &mut Emitter) {
    let (x, scale, y) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let (dim, vectors) = extents(heads, &x.shape);
    let variant = variant(dim).with("X", x.storage.name()).with("Y", y.storage.name());
    let pointers = KernelArguments::new().pointers(&[x.address, scale.address, y.address]);
    let arguments = pointers.fields(CStruct::new().u32s(&[heads, dim])).u64(vectors);
    launch("cosine_qkv", variant, vectors, arguments, e);
}

/// From `dy`, `qkv` and `scale` to `dqkv` and the dot products of queries.
pub(super) fn backward(heads: usize, e: &mut Emitter) {
    let (dy, x, scale, dx) = (&e.inputs[0], &e.inputs[1], &e.inputs[2], &e.outputs[0]);
    let (dim, vectors) = extents(heads, &x.shape);
    let variant = variant(dim).with("X", x.storage.name()).with("DY", dy.storage.name()).with("Y", dx.storage.name());
    let (dy, x, scale, dots) = (dy.address, x.address, scale.address, e.outputs[1].address);
    // The kernel writes this result even if only the dot products have consumers.
    let result = if dx.is_written() { dx.address } else { e.scratch(vectors * dim * dx.storage.bytes()) };
    let pointers = KernelArguments::new().pointers(&[dy, x, scale, result, dots]);
    let arguments = pointers.fields(CStruct::new().u32s(&[heads, dim])).u64(vectors);
    launch("cosine_qkv_grad", variant, vectors, arguments, e);
}

/// The width of a head, and the number of vectors of this width in `qkv`: a query, a key and a value for each head of
/// each row.
fn extents(heads: usize, qkv: &vit_graph::Shape) -> (usize, usize) {
    let dim = qkv.last() / (3 * heads);
    (dim, qkv.rows() * 3 * heads)
}

/// Threads load at most 4 elements at a time: with 8, half of a vector's threads would idle in the heads of Swin V2,
/// which have 32 elements.
fn variant(dim: usize) -> KernelVariant {
    KernelVariant::new(&compile::COSINE).with("VEC", vector_width(&[dim]).min(4))
}

fn launch(kernel: &'static str, variant: KernelVariant, vectors: usize, arguments: KernelArguments, e: &mut Emitter) {
    if vectors > 0 {
        e.kernel(variant, kernel, [vectors.div_ceil(THREADS / LANES), 1, 1], THREADS, 0, arguments);
    }
}
