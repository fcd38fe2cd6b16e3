//! Images to patches and back.

use vit_graph::Shape;
use vit_graph::ops::{ImageLayout, Patchify, Unpatchify};

use super::movement::index_type;
use super::{Emitter, vector_width};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

/// `PatchGrid` of the kernels.
fn patch_grid(op: &Patchify, image: &Shape) -> CStruct {
    let [_, height, width, channels] = op.extents(image);
    let [rows, columns] = op.grid(image);
    let strides = match op.layout {
        ImageLayout::ChannelsLast => [height * width * channels, width * channels, channels, 1],
        ImageLayout::ChannelsFirst => [height * width * channels, width, 1, height * width],
    };
    CStruct::new().u32s(&[height, width, channels, op.patch[0], op.patch[1], rows, columns]).u64s(&strides)
}

/// The widest vector of elements that are consecutive and aligned both in the image and in a patch, which is
/// `[channels, height, width]` whatever the image's layout.
fn patch_vector(op: &Patchify, image: &Shape) -> usize {
    let [_, _, width, _] = op.extents(image);
    match op.layout {
        ImageLayout::ChannelsFirst => vector_width(&[width, op.patch[1]]),
        ImageLayout::ChannelsLast => 1,
    }
}

pub(super) fn patchify(op: &Patchify, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let vec = patch_vector(op, &x.shape);
    let vectors = y.shape.elements() / vec;
    let variant = KernelVariant::new(&compile::PATCHIFY)
        .with("X", x.storage.name())
        .with("Y", y.storage.name())
        .with("VEC", vec)
        .with("INDEX", index_type(vectors));
    let arguments =
        KernelArguments::new().pointer(x.address).pointer(y.address).fields(patch_grid(op, &x.shape)).u64(vectors);
    e.kernel_1d(variant, "patchify", vectors, 1, arguments);
}

pub(super) fn unpatchify(op: &Unpatchify, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = KernelVariant::new(&compile::PATCHIFY).with("X", x.storage.name()).with("Y", y.storage.name());
    let channels_first = usize::from(op.patchify.layout == ImageLayout::ChannelsFirst);
    let arguments = KernelArguments::new()
        .pointer(x.address)
        .pointer(y.address)
        .fields(patch_grid(&op.patchify, &op.image))
        .u32(channels_first)
        .u64(count);
    e.kernel_1d(variant, "unpatchify", count, 1, arguments);
}
