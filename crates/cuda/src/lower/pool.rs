//! Pooling over windows of an image.

use vit_graph::ops::{Pool2d, Pooling};

use super::Emitter;
use crate::compiler::{self, Variant};
use crate::fields::{Arguments, Fields};

fn shape(op: &Pool2d, x: &[usize], y: &[usize]) -> Fields {
    Fields::new().u32s(&x[1..4]).u32s(&y[1..3]).u32s(&op.kernel).u32s(&op.stride).u32s(&[
        op.padding[0][0],
        op.padding[1][0],
        usize::from(op.count_padding),
    ])
}

fn variant(op: &Pool2d) -> Variant {
    Variant::new(&compiler::POOL).with("MAX", usize::from(op.pooling == Pooling::Max))
}

pub(super) fn forward(op: &Pool2d, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = variant(op).with("X", x.storage.name()).with("Y", y.storage.name());
    let arguments = Arguments::new().pointers(&[x.address, y.address]).fields(shape(op, &x.shape, &y.shape)).u64(count);
    e.spread(variant, "pool", count, 1, arguments);
}

pub(super) fn backward(op: &Pool2d, e: &mut Emitter) {
    let (dy, x, dx) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let count = dx.shape.elements();
    let variant = variant(op).with("DY", dy.storage.name()).with("X", x.storage.name()).with("Y", dx.storage.name());
    let arguments = Arguments::new()
        .pointers(&[dy.address, x.address, dx.address])
        .fields(shape(op, &x.shape, &dy.shape))
        .u64(count);
    e.spread(variant, "pool_grad", count, 1, arguments);
}
