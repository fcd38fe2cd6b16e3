//! Rotary position embedding, its tables, their gradients, and random values.

use vit_graph::ops::{Rotary, RotaryExtents, RotaryGrad, RotaryPairs, Uniform};

use super::movement::index_type;
use super::{Emitter, THREADS, vector_width};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

/// `LANES` of `rotary.cu`: the pairs of a block of `rotary_grad`.
const LANES: usize = 32;

fn variant(op: &Rotary) -> KernelVariant {
    KernelVariant::new(&compile::ROTARY).with("ADJACENT", usize::from(op.pairs == RotaryPairs::Adjacent))
}

/// `RotaryExtents` of the kernels; `written` heads of each token from `first_token` on are written.
fn fields(op: &Rotary, extents: &RotaryExtents, first_token: usize, written: usize) -> CStruct {
    let heads = extents.width / extents.head_dim;
    CStruct::new()
        .u32s(&[extents.tokens, heads, op.heads, extents.prefix, extents.groups, extents.head_dim / 2])
        .u32s(&[first_token, written])
        .f32(if op.inverse { -1.0 } else { 1.0 })
}

pub(super) fn rotate(op: &Rotary, e: &mut Emitter) {
    let (x, y) = (e.inputs[0].clone(), e.outputs[0].clone());
    let extents = op.extents(&x.shape, &e.inputs[1].shape);
    let in_place = x.address == y.address && x.storage == y.storage;
    // In place, tokens and heads that are not rotated stay as they are.
    let (first_token, written) =
        if in_place { (extents.prefix, op.heads) } else { (0, extents.width / extents.head_dim) };
    let pairs = extents.head_dim / 2;
    let vec = vector_width(&[pairs]);
    let count = extents.batch * (extents.tokens - first_token) * written * (pairs / vec);
    let variant = variant(op)
        .with("VEC", vec)
        .with("INDEX", index_type(count))
        .with("X", x.storage.name())
        .with("Y", y.storage.name());
    let arguments = KernelArguments::new()
        .pointers(&[x.address, e.inputs[1].address, e.inputs[2].address, y.address])
        .fields(fields(op, &extents, first_token, written))
        .u64(count);
    e.kernel_1d(variant, "rotary", count, 1, arguments);
}

/// The gradients of the cosines and sines.
pub(super) fn cos_sin_grad(op: &RotaryGrad, e: &mut Emitter) {
    let (dy, x) = (e.inputs[0].clone(), e.inputs[1].clone());
    let extents = op.rotary.extents(&x.shape, &op.table);
    let variant = variant(&op.rotary).with("VEC", 1).with("DY", dy.storage.name()).with("X", x.storage.name());
    let arguments = KernelArguments::new()
        .pointers(&[dy.address, x.address, e.outputs[0].address, e.outputs[1].address])
        .fields(fields(&op.rotary, &extents, 0, 0))
        .u32(extents.batch);
    let grid = [extents.tokens - extents.prefix, extents.groups, (extents.head_dim / 2).div_ceil(LANES)];
    if grid.iter().all(|&extent| extent > 0) {
        e.kernel(variant, "rotary_grad", grid, THREADS, 0, arguments);
    }
}

pub(super) fn tables(e: &mut Emitter) {
    let (coordinates, frequencies) = (&e.inputs[0], &e.inputs[1]);
    let (positions, axes) = (coordinates.shape[0], coordinates.shape[1]);
    let (groups, pairs) = (frequencies.shape[1], frequencies.shape[2]);
    let addresses = [coordinates.address, frequencies.address, e.outputs[0].address, e.outputs[1].address];
    let arguments = KernelArguments::new().pointers(&addresses).u32(axes).u32(positions).u32(groups).u32(pairs);
    e.kernel_1d(tables_variant(), "rotary_tables", groups * positions * pairs, 1, arguments);
}

/// The gradient of the frequencies, through cosines and sines.
pub(super) fn frequencies_grad(e: &mut Emitter) {
    let (table, coordinates) = (&e.inputs[2].shape, &e.inputs[4].shape);
    let (groups, positions, pairs) = (table[0], table[1], table[2]);
    let mut addresses: Vec<u64> = e.inputs.iter().map(|input| input.address).collect();
    addresses.push(e.outputs[0].address);
    let grid = [coordinates[1], groups, pairs.div_ceil(LANES)];
    let arguments = KernelArguments::new().pointers(&addresses).u32(positions).u32(pairs);
    if grid.iter().all(|&extent| extent > 0) {
        e.kernel(tables_variant(), "rotary_tables_grad", grid, THREADS, 0, arguments);
    }
}

fn tables_variant() -> KernelVariant {
    KernelVariant::new(&compile::ROTARY).with("VEC", 1)
}

pub(super) fn uniform(op: &Uniform, e: &mut Emitter) {
    let count = e.outputs[0].shape.elements();
    let arguments = KernelArguments::new()
        .pointers(&[e.inputs[0].address, e.outputs[0].address])
        .u32(op.stream as usize)
        .f32(op.low)
        .f32(op.high)
        .u64(count);
    e.kernel_1d(tables_variant(), "uniform", count, 1, arguments);
}
