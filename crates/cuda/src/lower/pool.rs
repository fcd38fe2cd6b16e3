//! Pooling over windows of an image.

use vit_graph::ops::{Pool2d, PoolMode};

use super::{Emitter, channel_vector};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

/// `PoolShape` of the kernels.
fn shape(op: &Pool2d, x: &[usize], y: &[usize]) -> CStruct {
    CStruct::new().u32s(&x[1..4]).u32s(&y[1..3]).u32s(&op.kernel).u32s(&op.stride).u32s(&[
        op.padding[0][0],
        op.padding[1][0],
        usize::from(op.count_padding),
    ])
}

fn variant(op: &Pool2d, vec: usize) -> KernelVariant {
    KernelVariant::new(&compile::POOL).with("MAX", usize::from(op.pooling == PoolMode::Max)).with("VEC", vec)
}

pub(super) fn forward(op: &Pool2d, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let vec = channel_vector(x.shape.last());
    let count = y.shape.elements() / vec;
    let variant = variant(op, vec).with("X", x.storage.name()).with("Y", y.storage.name());
    let arguments =
        KernelArguments::new().pointers(&[x.address, y.address]).fields(shape(op, &x.shape, &y.shape)).u64(count);
    e.kernel_1d(variant, "pool", count, 1, arguments);
}

pub(super) fn backward(op: &Pool2d, e: &mut Emitter) {
    let (dy, x, dx) = (e.inputs[0].clone(), e.inputs[1].clone(), e.outputs[0].clone());
    let vec = channel_vector(x.shape.last());
    let shape = shape(op, &x.shape, &dy.shape);
    // 255 is `NO_TAP` in u8.
    let small = op.kernel[0] * op.kernel[1] < usize::from(u8::MAX);
    let (tap, bytes) = if small { ("u8", 1) } else { ("u32", 4) };
    let variant = variant(op, vec).with("TAP", tap);
    let mut argmax_taps = 0;
    if op.pooling == PoolMode::Max {
        argmax_taps = e.scratch(bytes * dy.shape.elements());
        let count = dy.shape.elements() / vec;
        let arguments = KernelArguments::new().pointers(&[x.address, argmax_taps]).fields(shape.clone()).u64(count);
        e.kernel_1d(variant.clone().with("X", x.storage.name()), "argmax", count, 1, arguments);
    }
    let count = dx.shape.elements() / vec;
    let variant = variant.with("DY", dy.storage.name()).with("Y", dx.storage.name());
    let arguments = KernelArguments::new().pointers(&[dy.address, argmax_taps, dx.address]).fields(shape).u64(count);
    e.kernel_1d(variant, "pool_grad", count, 1, arguments);
}
