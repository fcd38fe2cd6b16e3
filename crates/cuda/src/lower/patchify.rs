//! Images to patches and back.

use vit_graph::Shape;
use vit_graph::ops::{ImageLayout, Patchify, Unpatchify};

use super::Emitter;
use super::movement::index_type;
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

fn cut(op: &Patchify, image: &Shape) -> CStruct {
    let [_, height, width, channels] = op.extents(image);
    let [rows, columns] = op.grid(image);
    let strides = match op.layout {
        ImageLayout::ChannelsLast => [height * width * channels, width * channels, channels, 1],
        ImageLayout::ChannelsFirst => [height * width * channels, width, 1, height * width],
    };
    CStruct::new().u32s(&[height, width, channels, op.patch[0], op.patch[1], rows, columns]).u64s(&strides)
}

/// Elements that are neighbours in the image and in a patch, and start at a multiple of their number in both.
fn pack(op: &Patchify, image: &Shape) -> usize {
    let [_, _, width, _] = op.extents(image);
    let fits = |n: &usize| width.is_multiple_of(*n) && op.patch[1].is_multiple_of(*n);
    let first = op.layout == ImageLayout::ChannelsFirst;
    [8, 4, 2].into_iter().find(|n| first && fits(n)).unwrap_or(1)
}

pub(super) fn patchify(op: &Patchify, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let vec = pack(op, &x.shape);
    let packs = y.shape.elements() / vec;
    let variant = KernelVariant::new(&compile::PATCHIFY)
        .with("X", x.storage.name())
        .with("Y", y.storage.name())
        .with("VEC", vec)
        .with("INDEX", index_type(packs));
    let arguments = KernelArguments::new().pointer(x.address).pointer(y.address).fields(cut(op, &x.shape)).u64(packs);
    e.spread(variant, "patchify", packs, 1, arguments);
}

pub(super) fn unpatchify(op: &Unpatchify, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = KernelVariant::new(&compile::PATCHIFY).with("X", x.storage.name()).with("Y", y.storage.name());
    let first = usize::from(op.patchify.layout == ImageLayout::ChannelsFirst);
    let arguments = KernelArguments::new()
        .pointer(x.address)
        .pointer(y.address)
        .fields(cut(&op.patchify, &op.image))
        .u32(first)
        .u64(count);
    e.spread(variant, "unpatchify", count, 1, arguments);
}
