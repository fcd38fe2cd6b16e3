//! Images to patches and back.

use vit_graph::Shape;
use vit_graph::ops::{Layout, Patchify, Unpatchify};

use super::Emitter;
use crate::compiler::{self, Variant};
use crate::fields::{Arguments, Fields};

fn cut(op: &Patchify, image: &Shape) -> Fields {
    let [_, height, width, channels] = op.extents(image);
    let [rows, columns] = op.grid(image);
    let strides = match op.layout {
        Layout::ChannelsLast => [height * width * channels, width * channels, channels, 1],
        Layout::ChannelsFirst => [height * width * channels, width, 1, height * width],
    };
    Fields::new().u32s(&[height, width, channels, op.patch[0], op.patch[1], rows, columns]).u64s(&strides)
}

pub(super) fn patchify(op: &Patchify, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = Variant::new(&compiler::PATCHIFY).with("X", x.storage.name()).with("Y", y.storage.name());
    let arguments = Arguments::new().pointer(x.address).pointer(y.address).fields(cut(op, &x.shape)).u64(count);
    e.spread(variant, "patchify", count, 1, arguments);
}

pub(super) fn unpatchify(op: &Unpatchify, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = Variant::new(&compiler::PATCHIFY).with("X", x.storage.name()).with("Y", y.storage.name());
    let first = usize::from(op.patchify.layout == Layout::ChannelsFirst);
    let arguments = Arguments::new()
        .pointer(x.address)
        .pointer(y.address)
        .fields(cut(&op.patchify, &op.image))
        .u32(first)
        .u64(count);
    e.spread(variant, "unpatchify", count, 1, arguments);
}
