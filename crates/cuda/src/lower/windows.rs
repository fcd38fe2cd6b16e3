//! Partition of an image into attention windows, and back.

use vit_graph::ops::{Unwindows, Windows};

use super::movement::index_type;
use super::{Emitter, vector_width};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

pub(super) fn partition(op: &Windows, e: &mut Emitter) {
    let image = e.inputs[0].shape.to_vec();
    move_pixels("windows", op, &image, e);
}

pub(super) fn merge(op: &Unwindows, e: &mut Emitter) {
    move_pixels("unwindows", &op.windows, &op.image, e);
}

fn move_pixels(kernel: &'static str, op: &Windows, image: &[usize], e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let (height, width, channels) = (image[1], image[2], image[3]);
    let vec = vector_width(&[channels]);
    let vectors = y.shape.elements() / vec;
    let fields = CStruct::new()
        .u32s(&[height, width, channels / vec])
        .u32s(&op.grid(image))
        .u32s(&op.size)
        .u32s(&[op.shift[0] % height.max(1), op.shift[1] % width.max(1)]);
    let variant = KernelVariant::new(&compile::WINDOWS)
        .with("VEC", vec)
        .with("INDEX", index_type(vectors))
        .with("X", x.storage.name())
        .with("Y", y.storage.name());
    let arguments = KernelArguments::new().pointers(&[x.address, y.address]).fields(fields).u64(vectors);
    e.kernel_1d(variant, kernel, vectors, 1, arguments);
}
