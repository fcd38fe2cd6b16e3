//! Images to patches and back.

use vit_graph::Shape;
use vit_graph::ops::{Layout, Patchify, Unpatchify};

use super::{Emitter, THREADS};
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

/// The most bytes of a row of patches: several blocks are to share a multiprocessor.
const LARGEST_RUN: usize = 64 << 10;

/// Elements of one row of patches, where a kernel can move a whole one: four pixels of a patch at a time on one side,
/// eight on the other.
fn run_of_patches(op: &Patchify, image: &Shape) -> Option<usize> {
    let [_, _, width, channels] = op.extents(image);
    let [_, columns] = op.grid(image);
    let run = columns * channels * op.patch[0] * op.patch[1];
    let whole = op.patch[1].is_multiple_of(4) && width.is_multiple_of(4) && run.is_multiple_of(8);
    (op.layout == Layout::ChannelsFirst && whole).then_some(run)
}

pub(super) fn patchify(op: &Patchify, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = Variant::new(&compiler::PATCHIFY).with("X", x.storage.name()).with("Y", y.storage.name());
    let arguments = Arguments::new().pointer(x.address).pointer(y.address).fields(cut(op, &x.shape));
    match run_of_patches(op, &x.shape) {
        Some(run) if run * y.storage.bytes() <= LARGEST_RUN && count > 0 => {
            let variant = variant.with("PATCH_HEIGHT", op.patch[0]).with("PATCH_WIDTH", op.patch[1]);
            let (blocks, shared) = (count / run, run * y.storage.bytes());
            e.kernel(variant, "patchify_rows", [blocks, 1, 1], THREADS, shared, arguments);
        }
        _ => e.spread(variant, "patchify", count, 1, arguments.u64(count)),
    }
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
