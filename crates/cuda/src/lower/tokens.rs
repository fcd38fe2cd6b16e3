//! Random indices of tokens, gathering and scattering of tokens by index, and classes of colours.

use vit_graph::ops::{ColourClass, GatherTokens, RandomPartition, ScatterTokens, TokenCorruption};

use super::{Emitter, THREADS, VECTOR};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

pub(super) fn random_partition(op: RandomPartition, e: &mut Emitter) {
    let (seed, order) = (&e.inputs[0], &e.outputs[0]);
    let arguments = KernelArguments::new()
        .pointers(&[seed.address, order.address])
        .u32(op.stream as usize)
        .u32(op.tokens)
        .u32(op.chosen);
    if op.samples > 0 {
        // A block has one sample.
        e.kernel(KernelVariant::new(&compile::TOKENS), "random_partition", [op.samples, 1, 1], THREADS, 0, arguments);
    }
}

pub(super) fn token_corruption(op: TokenCorruption, e: &mut Emitter) {
    let (order, seed, sources) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let count = order.shape.elements();
    let [masked, replaced] = TokenCorruption::THRESHOLDS;
    let arguments = KernelArguments::new()
        .pointers(&[order.address, seed.address, sources.address])
        .u32(op.stream as usize)
        .u32(order.shape[1])
        .u32(op.corrupted)
        .u32(masked as usize)
        .u32(replaced as usize)
        .u64(count);
    e.kernel_1d(KernelVariant::new(&compile::TOKENS), "token_corruption", count, 1, arguments);
}

/// The variant for the storage of tokens, and the vectors of a token.
fn variant(e: &Emitter) -> (KernelVariant, usize) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let width = x.shape[2];
    let vec = if width.is_multiple_of(VECTOR) { VECTOR } else { 1 };
    let variant = KernelVariant::new(&compile::TOKENS).with("X", x.storage.name()).with("Y", y.storage.name());
    (variant.with("VEC", vec), width / vec)
}

pub(super) fn gather_tokens(op: GatherTokens, e: &mut Emitter) {
    let (variant, vectors) = variant(e);
    let (x, order, y) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let all = y.shape[0] * y.shape[1] * vectors;
    let arguments = KernelArguments::new()
        .pointers(&[x.address, order.address, y.address])
        .u32(x.shape[1])
        .u32(order.shape[1])
        .u32(op.start)
        .u32(op.count)
        .u32(vectors)
        .u64(all);
    e.kernel_1d(variant, "gather_tokens", all, 1, arguments);
}

pub(super) fn scatter_tokens(op: ScatterTokens, e: &mut Emitter) {
    let (variant, vectors) = variant(e);
    let (x, order, y) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let rows = y.shape[0] * y.shape[1];
    let arguments = KernelArguments::new()
        .pointers(&[x.address, order.address, y.address])
        .u32(op.tokens)
        .u32(order.shape[1])
        .u32(op.start)
        .u32(x.shape[1])
        .u32(vectors)
        .u64(rows);
    if rows * vectors > 0 {
        // A warp has one row.
        e.kernel(variant, "scatter_tokens", [rows.div_ceil(THREADS / 32), 1, 1], THREADS, 0, arguments);
    }
}

pub(super) fn colour_class(op: &ColourClass, e: &mut Emitter) {
    let (x, classes) = (&e.inputs[0], &e.outputs[0]);
    let count = classes.shape.elements();
    let eight = |values: &[f32]| std::array::from_fn::<f32, 8, _>(|c| values.get(c).copied().unwrap_or(0.0));
    let colours = [eight(&op.mean), eight(&op.std)].into_iter().flatten().fold(CStruct::new(), CStruct::f32);
    let arguments = KernelArguments::new()
        .pointers(&[x.address, classes.address])
        .fields(colours)
        .u32(x.shape[1])
        .u32(x.shape[2])
        .u32(x.shape[3])
        .u32(op.cell[0])
        .u32(op.cell[1])
        .u64(count);
    e.kernel_1d(KernelVariant::new(&compile::TOKENS), "colour_class", count, 1, arguments);
}
