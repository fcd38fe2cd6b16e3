//! Sums, differences and products with broadcasting; powers.

use vit_graph::ops::Binary;

use super::movement::{MAX_AXES, collapse, index_type, vector};
use super::{Emitter, PACK};
use crate::compile::{self, Variant};
use crate::run::arguments::{Arguments, Fields};

pub(super) fn scale(factor: f32, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = Variant::new(&compile::ARITHMETIC).with("A", x.storage.name()).with("Y", y.storage.name());
    let arguments = Arguments::new().pointer(x.address).pointer(y.address).f32(factor).u64(count);
    e.spread(variant, "scale", count, PACK, arguments);
}

pub(super) fn power(exponent: f32, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = Variant::new(&compile::ARITHMETIC).with("A", x.storage.name()).with("Y", y.storage.name());
    let arguments = Arguments::new().pointer(x.address).pointer(y.address).f32(exponent).u64(count);
    e.spread(variant, "power", count, 1, arguments);
}

pub(super) fn binary(op: Binary, e: &mut Emitter) -> Result<(), String> {
    let (a, b, y) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let count = y.shape.elements();
    let kind = match op {
        Binary::Add => 0,
        Binary::Sub => 1,
        Binary::Mul => 2,
    };
    let variant = Variant::new(&compile::ARITHMETIC)
        .with("OP", kind)
        .with("A", a.storage.name())
        .with("B", b.storage.name())
        .with("Y", y.storage.name());
    let pointers = Arguments::new().pointers(&[a.address, b.address, y.address]);
    if a.shape == b.shape {
        e.spread(variant, "binary", count, PACK, pointers.u64(count));
        return Ok(());
    }
    let strides = [a.shape.broadcast_strides(&y.shape), b.shape.broadcast_strides(&y.shape)];
    let (mut extents, mut strides) = collapse(&y.shape, strides)?;
    let inner = |strides: &[Vec<usize>; 2], i: usize| strides[i].last().copied().unwrap_or(0);
    let vec = if strides.iter().all(|s| s.last().is_none_or(|&step| step <= 1)) {
        vector(&extents, &strides, &[])
    } else {
        1
    };
    let inners = [inner(&strides, 0), inner(&strides, 1)];
    if let (Some(extent), true) = (extents.last_mut(), vec > 1) {
        *extent /= vec;
        strides.iter_mut().filter_map(|s| s.last_mut()).for_each(|step| *step *= vec);
    }
    let packs = count / vec;
    let axes = extents.len();
    let padded = |list: &[usize]| [list, &vec![0; MAX_AXES - list.len()]].concat();
    let walk = Fields::new()
        .u32(axes)
        // With packs of one, an element is loaded the same way whatever its stride.
        .u32(if vec == 1 { 1 } else { inners[0] })
        .u32(if vec == 1 { 1 } else { inners[1] })
        .u32s(&padded(&extents))
        .u64s(&padded(&strides[0]))
        .u64s(&padded(&strides[1]));
    let variant = variant.with("VEC", vec).with("INDEX", index_type(packs));
    e.spread(variant, "binary_broadcast", packs, 1, pointers.fields(walk).u64(packs));
    Ok(())
}
