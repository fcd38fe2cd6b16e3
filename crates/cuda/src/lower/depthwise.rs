//! Depthwise convolution and its gradients.

use vit_graph::ops::{Conv2d, Conv2dGradInput, Conv2dGradWeight};

use super::{Emitter, THREADS, channel_vector};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

/// Constants of `depthwise.cu`.
const OUTPUTS_PER_THREAD: usize = 4;
const CHANNEL_THREADS: usize = 8;

/// The most splits of the reduction over pixels for the filters' gradient: one thread adds them one after another.
const MAX_SPLITS: usize = 256;

/// The widest filter for which the sums of eight channels fit a thread's registers.
const MAX_VECTOR_KERNEL_WIDTH: usize = 7;

/// Whether a convolution with this weight `[filters, channels of a group, height, width]` is depthwise, with one filter
/// per channel.
pub(super) fn is_depthwise(op: &Conv2d, weight: &[usize]) -> bool {
    op.groups > 1 && weight[1] == 1 && weight[0] == op.groups
}

/// `DepthwiseShape` of the kernels.
fn shape(op: &Conv2d, x: &[usize], weight: &[usize], y: &[usize]) -> CStruct {
    CStruct::new()
        .u32s(&x[1..4])
        .u32s(&y[1..3])
        .u32s(&weight[2..4])
        .u32s(&op.stride)
        .u32s(&[op.padding[0][0], op.padding[1][0]])
        .u32s(&op.dilation)
}

/// The number of threads for a result `[batch, height, width, channels]`, each with a `PixelRun` of the kernels.
fn pixel_runs(shape: &[usize]) -> usize {
    shape[0] * shape[1] * shape[2].div_ceil(OUTPUTS_PER_THREAD) * (shape[3] / channel_vector(shape[3]))
}

/// The address of the filters as f32 `[kernel_height, kernel_width, channels]` in scratch memory.
fn transposed_filters(e: &mut Emitter) -> u64 {
    let ((from, stored), weight) = (e.stored(1), e.inputs[1].shape.clone());
    let (channels, filter_size) = (weight[0], weight[2] * weight[3]);
    let taps = e.scratch(4 * channels * filter_size);
    let variant = KernelVariant::new(&compile::DEPTHWISE).with("W", stored.name());
    let arguments = KernelArguments::new().pointers(&[from, taps]).u32(channels).u32(filter_size);
    e.kernel_1d(variant, "transpose_filters", channels * filter_size, 1, arguments);
    taps
}

pub(super) fn forward(op: &Conv2d, e: &mut Emitter) {
    let y = e.outputs[0].clone();
    let fields = shape(op, &e.inputs[0].shape, &e.inputs[1].shape, &y.shape);
    let (x, taps) = (e.stored(0), transposed_filters(e));
    let bias = if op.bias { e.input_as(2, y.storage) } else { 0 };
    let variant = KernelVariant::new(&compile::DEPTHWISE)
        .with("VEC", channel_vector(y.shape[3]))
        .with("X", x.1.name())
        .with("Y", y.storage.name());
    let count = pixel_runs(&y.shape);
    let arguments = KernelArguments::new().pointers(&[x.0, taps, bias, y.address]).fields(fields).u64(count);
    e.kernel_1d(variant, "depthwise", count, 1, arguments);
}

pub(super) fn grad_input(op: &Conv2dGradInput, e: &mut Emitter) {
    let dx = e.outputs[0].clone();
    let fields = shape(&op.conv, &op.input, &e.inputs[1].shape, &e.inputs[0].shape);
    let (dy, taps) = (e.stored(0), transposed_filters(e));
    let variant = KernelVariant::new(&compile::DEPTHWISE)
        .with("VEC", channel_vector(dx.shape[3]))
        .with("DY", dy.1.name())
        .with("Y", dx.storage.name());
    let count = pixel_runs(&dx.shape);
    let arguments = KernelArguments::new().pointers(&[dy.0, taps, dx.address]).fields(fields).u64(count);
    e.kernel_1d(variant, "depthwise_grad_input", count, 1, arguments);
}

pub(super) fn grad_weight(op: &Conv2dGradWeight, e: &mut Emitter) {
    let dw = e.outputs[0].clone();
    let (y, weight) = (e.inputs[0].shape.clone(), &op.weight);
    let fields = shape(&op.conv, &e.inputs[1].shape, weight, &y);
    let (dy, x) = (e.stored(0), e.stored(1));
    let (channels, filter_size, pixels) = (y[3], weight[2] * weight[3], y[0] * y[1] * y[2]);
    let vec = if weight[3] <= MAX_VECTOR_KERNEL_WIDTH { channel_vector(channels) } else { 1 };
    let channel_blocks = channels.div_ceil(CHANNEL_THREADS * vec);
    // About eight blocks per multiprocessor, with at least eight pixels per thread.
    let max_splits = (8 * e.multiprocessors).div_ceil((channel_blocks * weight[2]).max(1)).clamp(1, MAX_SPLITS);
    let pixels_per_split = pixels.div_ceil(max_splits).max(8 * THREADS / CHANNEL_THREADS);
    let splits = pixels.div_ceil(pixels_per_split);
    let partials = e.scratch(4 * splits * filter_size * channels);
    if splits > 0 {
        let variant = KernelVariant::new(&compile::DEPTHWISE)
            .with("DY", dy.1.name())
            .with("X", x.1.name())
            .with("VEC", vec)
            .with("KERNEL_WIDTH", weight[3]);
        let arguments =
            KernelArguments::new().pointers(&[dy.0, x.0, partials]).fields(fields).u32(pixels).u32(pixels_per_split);
        e.kernel(variant, "depthwise_grad_weight", [channel_blocks, weight[2], splits], THREADS, 0, arguments);
    }
    let variant = KernelVariant::new(&compile::DEPTHWISE).with("Y", dw.storage.name());
    let arguments = KernelArguments::new().pointers(&[partials, dw.address]).u32(splits).u32(filter_size).u32(channels);
    e.kernel_1d(variant, "depthwise_reduce_weight_grad", filter_size * channels, 1, arguments);
}
