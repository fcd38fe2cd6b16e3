//! Convolution where every channel has one filter of its own, and its gradients.

use vit_graph::ops::{Conv2d, Conv2dGradInput, Conv2dGradWeight};

use super::{Emitter, THREADS};
use crate::compiler::{self, Variant};
use crate::fields::{Arguments, Fields};

/// The most splits of a sum over results.
const MOST_SPLITS: usize = 1024;

/// Whether a convolution with this weight is one.
pub(super) fn is_depthwise(op: &Conv2d, weight: &[usize]) -> bool {
    op.groups > 1 && weight[1] == 1 && weight[0] == op.groups
}

fn shape(op: &Conv2d, x: &[usize], weight: &[usize], y: &[usize]) -> Fields {
    Fields::new()
        .u32s(&x[1..4])
        .u32s(&y[1..3])
        .u32s(&weight[2..4])
        .u32s(&op.stride)
        .u32s(&[op.padding[0][0], op.padding[1][0]])
        .u32s(&op.dilation)
}

pub(super) fn forward(op: &Conv2d, e: &mut Emitter) {
    let (y, operand) = (e.outputs[0].clone(), e.operand_storage());
    let fields = shape(op, &e.inputs[0].shape, &e.inputs[1].shape, &y.shape);
    let (x, weight) = (e.kept(0), e.form(1, operand));
    let bias = if op.bias { e.form(2, y.storage) } else { 0 };
    let variant =
        Variant::new(&compiler::DEPTHWISE).with("X", x.1.name()).with("W", operand.name()).with("Y", y.storage.name());
    let count = y.shape.elements();
    let arguments = Arguments::new().pointers(&[x.0, weight, bias, y.address]).fields(fields).u64(count);
    e.spread(variant, "depthwise", count, 1, arguments);
}

pub(super) fn grad_input(op: &Conv2dGradInput, e: &mut Emitter) {
    let (dx, operand) = (e.outputs[0].clone(), e.operand_storage());
    let fields = shape(&op.conv, &op.input, &e.inputs[1].shape, &e.inputs[0].shape);
    let (dy, weight) = (e.kept(0), e.form(1, operand));
    let variant = Variant::new(&compiler::DEPTHWISE)
        .with("DY", dy.1.name())
        .with("W", operand.name())
        .with("Y", dx.storage.name());
    let count = dx.shape.elements();
    let arguments = Arguments::new().pointers(&[dy.0, weight, dx.address]).fields(fields).u64(count);
    e.spread(variant, "depthwise_grad_input", count, 1, arguments);
}

pub(super) fn grad_weight(op: &Conv2dGradWeight, e: &mut Emitter) {
    let dw = e.outputs[0].clone();
    let (y, weight) = (e.inputs[0].shape.clone(), &op.weight);
    let fields = shape(&op.conv, &e.inputs[1].shape, weight, &y);
    let (dy, x) = (e.kept(0), e.kept(1));
    let (channels, taps, places) = (y[3], weight[2] * weight[3], y[0] * y[1] * y[2]);
    let blocks = channels.div_ceil(32) * taps;
    let wanted = (8 * e.multiprocessors).div_ceil(blocks.max(1)).clamp(1, MOST_SPLITS);
    let per_split = places.div_ceil(wanted).max(64);
    let splits = places.div_ceil(per_split);
    let partials = e.scratch(4 * splits * taps * channels);
    let variant =
        Variant::new(&compiler::DEPTHWISE).with("DY", dy.1.name()).with("X", x.1.name()).with("Y", dw.storage.name());
    if splits > 0 {
        let arguments = Arguments::new().pointers(&[dy.0, x.0, partials]).fields(fields).u64(places).u32(per_split);
        let grid = [channels.div_ceil(32), taps, splits];
        e.kernel(variant.clone(), "depthwise_grad_weight", grid, THREADS, 0, arguments);
    }
    let arguments = Arguments::new().pointers(&[partials, dw.address]).u32(splits).u32(taps).u32(channels);
    e.spread(variant, "depthwise_weight", taps * channels, 1, arguments);
}
