//! Convolution in bf16 and its gradients by implicit GEMM on Hopper's tensor cores.
//!
//! Filters are reordered to the order in which the GEMM sums ([`InputTaps::channel_blocked`]). An image of few channels
//! is padded with a border and with channels of zeros; then a row of a filter covers consecutive elements, as if it
//! were one tap of many channels.

mod operands;
mod tile;

use vit_graph::ops::Conv2d;

use operands::{FilterOrder, InputTaps, OutputPixels};
use tile::{BlockTile, STEP, steps_per_block};

use super::ConvGeometry;
use crate::compile::{self, KernelVariant};
use crate::lower::Emitter;
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};

/// Threads of a warpgroup.
const WARPGROUP: usize = 128;

/// Threads of the kernels that reorder operands.
const THREADS: usize = 256;

/// Whether the kernels support this convolution and its filters' gradient: bf16 on Hopper, one group, a multiple of
/// eight filters, channels that are a multiple of eight or padded to one (fewer than eight, undilated in width), filters
/// of up to 16 by 16, offsets of 31 bits, and a result that is not empty.
pub(super) fn supports(geometry: &ConvGeometry, e: &Emitter) -> bool {
    let (channels, result) = (geometry.image[2], geometry.pixels() * geometry.filters);
    // A bound on the extents of an image with the border of `image_view`.
    let reached = |axis: usize| {
        let Conv2d { stride, dilation, .. } = geometry.conv;
        geometry.output[axis] * stride[axis] + (geometry.kernel[axis] + 1) * dilation[axis]
    };
    let image = if channels.is_multiple_of(8) { geometry.image_len() } else { 8 * reached(0) * reached(1) };
    let largest = geometry.batch * result.max(image);
    e.hopper
        && e.operand_storage() == Storage::Bf16
        && geometry.conv.groups == 1
        && geometry.filters.is_multiple_of(8)
        && (channels.is_multiple_of(8) || (channels < 8 && geometry.conv.dilation[1] == 1))
        && geometry.kernel.iter().all(|&k| k <= 16)
        && largest < 1 << 31
        && geometry.batch * result > 0
}

/// Whether the kernels support the gradient of the convolution's image: the taps of a pixel must be a regular grid.
pub(super) fn supports_grad_input(geometry: &ConvGeometry, e: &Emitter) -> bool {
    supports(geometry, e)
        && geometry.image[2].is_multiple_of(8)
        && geometry.image.iter().all(|&extent| extent > 0)
        && (0..2).all(|axis| geometry.conv.stride[axis] == 1 || geometry.conv.dilation[axis] == 1)
}

/// The image as the kernels read it: as it is stored if its channels are a multiple of eight, else with a border and
/// padded channels, where one tap covers a row of the filter.
struct ImageView {
    address: u64,
    taps: InputTaps,
    /// Channels and filter width with their padding.
    padded_channels: usize,
    padded_width: usize,
}

fn image_view(geometry: &ConvGeometry, input: usize, e: &mut Emitter) -> ImageView {
    let ([height, width, channels], kernel, stride) = (geometry.image, geometry.kernel, geometry.conv.stride);
    let tap_step = geometry.conv.dilation.map(|d| d as isize);
    if channels.is_multiple_of(8) {
        let address = e.input_as(input, Storage::Bf16);
        let first = [0, 1].map(|axis| -(geometry.conv.padding[axis][0] as isize));
        let strides = [height * width * channels, width * channels, channels];
        let taps = InputTaps {
            size: [height, width],
            strides,
            first,
            pixel_step: stride,
            tap_step,
            tap_counts: kernel,
            channels,
            taps_are_rows: false,
        };
        return ImageView { address, taps, padded_channels: channels, padded_width: kernel[1] };
    }
    // Rows of taps must start at multiples of 16 bytes, or 8 elements: with 4 channels at every second pixel, so that
    // rows of the image have an even width.
    let padded_channels = if channels <= 4 && stride[1].is_multiple_of(2) { 4 } else { 8 };
    let padded_width = (kernel[1] * padded_channels).next_multiple_of(8) / padded_channels;
    let new_height = (geometry.output[0] - 1) * stride[0] + (kernel[0] - 1) * geometry.conv.dilation[0] + 1;
    let new_width = ((geometry.output[1] - 1) * stride[1] + padded_width).next_multiple_of(2);
    let pixels = geometry.batch * new_height * new_width;
    let address = e.scratch(2 * pixels * padded_channels);
    let (from, stored) = e.stored(input);
    let border = CStruct::new()
        .u32s(&[height, width, channels, new_height, new_width])
        .u32s(&[geometry.conv.padding[0][0], geometry.conv.padding[1][0]]);
    let variant = KernelVariant::new(&compile::CONV_LAYOUT).with("X", stored.name()).with("VEC", padded_channels);
    let arguments = KernelArguments::new().pointers(&[from, address]).fields(border).u64(pixels);
    e.kernel_1d(variant, "border_image", pixels, 1, arguments);
    let taps = InputTaps {
        size: [new_height, new_width],
        strides: [new_height * new_width * padded_channels, new_width * padded_channels, padded_channels],
        first: [0, 0],
        pixel_step: stride,
        tap_step: [tap_step[0], 0],
        tap_counts: [kernel[0], 1],
        channels: padded_width * padded_channels,
        taps_are_rows: true,
    };
    ImageView { address, taps, padded_channels, padded_width }
}

/// Copies the filters to scratch memory in the order of the reduction over `taps`; returns the address.
fn order_filters(filters: u64, order: &FilterOrder, taps: &InputTaps, e: &mut Emitter) -> u64 {
    let depth = taps.steps() * STEP;
    let ordered = e.scratch(2 * order.rows * depth);
    let variant = KernelVariant::new(&compile::CONV_LAYOUT);
    let arguments =
        KernelArguments::new().pointers(&[filters, ordered]).fields(order.fields(taps.channel_blocked(), depth));
    e.kernel_1d(variant, "order_filters", order.rows * depth, 1, arguments);
    ordered
}

/// The implicit GEMM of `pixels` by `filter_count` filters; `stored` is the storage type of bias and result. `filters`
/// comes from [`order_filters`].
fn convolve(
    e: &mut Emitter,
    [x, filters, bias, y]: [u64; 4],
    stored: Storage,
    pixels: OutputPixels,
    taps: &InputTaps,
    filter_count: usize,
) {
    let block = BlockTile::of_pixels(pixels.count(), filter_count, e.multiprocessors);
    let variant = block.convolve(taps.channel_blocked(), stored);
    let arguments = KernelArguments::new()
        .pointers(&[x, filters, bias, y])
        .fields(pixels.fields())
        .fields(taps.fields())
        .u32(filter_count)
        .u32(taps.steps());
    let blocks = pixels.count().div_ceil(block.m) * filter_count.div_ceil(block.n);
    e.kernel(variant, "convolve", [blocks, 1, 1], WARPGROUP * block.warpgroups(), block.shared(), arguments);
}

/// The pixels of a convolution's result.
fn output_pixels(geometry: &ConvGeometry) -> OutputPixels {
    let strides = [geometry.pixels() * geometry.filters, geometry.output[1] * geometry.filters, geometry.filters];
    OutputPixels { images: geometry.batch, size: geometry.output, strides }
}

pub(super) fn forward(geometry: &ConvGeometry, e: &mut Emitter) {
    let (y, weight) = (e.outputs[0].clone(), e.input_as(1, Storage::Bf16));
    let bias = if geometry.conv.bias { e.input_as(2, y.storage) } else { 0 };
    let view = image_view(geometry, 0, e);
    let filter_len = geometry.kernel[0] * geometry.kernel[1];
    let order = FilterOrder {
        rows: geometry.filters,
        inner: geometry.image[2],
        strides: [geometry.image[2] * filter_len, filter_len],
        kernel: geometry.kernel,
        tap_counts: [geometry.kernel[0], view.padded_width],
        first_tap: [0, 0],
        tap_step: [1, 1],
        padded_inner: view.padded_channels,
    };
    let filters = order_filters(weight, &order, &view.taps, e);
    convolve(
        e,
        [view.address, filters, bias, y.address],
        y.storage,
        output_pixels(geometry),
        &view.taps,
        geometry.filters,
    );
}

/// With a stride, the taps of an input pixel depend on its position modulo the stride; each residue class is a separate
/// GEMM. `dy` has the role of the image, and taps run backwards.
pub(super) fn grad_input(geometry: &ConvGeometry, e: &mut Emitter) {
    let (dx, dy, weight) = (e.outputs[0].clone(), e.input_as(0, Storage::Bf16), e.input_as(1, Storage::Bf16));
    let ([height, width, channels], stride) = (geometry.image, geometry.conv.stride);
    let filter_len = geometry.kernel[0] * geometry.kernel[1];
    for class in (0..stride[0]).flat_map(|y| (0..stride[1]).map(move |x| [y, x])) {
        let size = [0, 1].map(|axis| [height, width][axis].saturating_sub(class[axis]).div_ceil(stride[axis]));
        if size.contains(&0) {
            continue;
        }
        let position_in_padded = [0, 1].map(|axis| class[axis] + geometry.conv.padding[axis][0]);
        let first_tap = [0, 1].map(|axis| position_in_padded[axis] % stride[axis]);
        let tap_counts =
            [0, 1].map(|axis| geometry.kernel[axis].saturating_sub(first_tap[axis]).div_ceil(stride[axis]));
        // Without taps the gradient is zero; kernels divide by the second count.
        let tap_counts = if tap_counts.contains(&0) { [0, 1] } else { tap_counts };
        let taps = InputTaps {
            size: geometry.output,
            strides: output_pixels(geometry).strides,
            first: [0, 1].map(|axis| (position_in_padded[axis] / stride[axis]) as isize),
            pixel_step: [1, 1],
            tap_step: geometry.conv.dilation.map(|d| -(d as isize)),
            tap_counts,
            channels: geometry.filters,
            taps_are_rows: false,
        };
        let order = FilterOrder {
            rows: channels,
            inner: geometry.filters,
            strides: [filter_len, channels * filter_len],
            kernel: geometry.kernel,
            tap_counts,
            first_tap,
            tap_step: stride,
            padded_inner: geometry.filters,
        };
        let filters = order_filters(weight, &order, &taps, e);
        let strides = [height * width * channels, stride[0] * width * channels, stride[1] * channels];
        let pixels = OutputPixels { images: geometry.batch, size, strides };
        let to = dx.address + ((class[0] * width + class[1]) * channels * dx.storage.bytes()) as u64;
        convolve(e, [dy, filters, 0, to], dx.storage, pixels, &taps, channels);
    }
}

pub(super) fn grad_weight(geometry: &ConvGeometry, e: &mut Emitter) {
    let (dw, dy) = (e.outputs[0].clone(), e.input_as(0, Storage::Bf16));
    let view = image_view(geometry, 1, e);
    let (pixels, columns) = (output_pixels(geometry), view.taps.columns());
    let block = BlockTile::of_filters(geometry.filters, columns);
    let tiles = geometry.filters.div_ceil(block.m) * columns.div_ceil(block.n);
    let split_bytes = 4 * geometry.filters * columns;
    let steps = pixels.count().div_ceil(STEP);
    let steps_per_block = steps_per_block(steps, tiles, block.blocks_per_sm * e.multiprocessors, split_bytes);
    let blocks_per_tile = steps.div_ceil(steps_per_block);
    // With block.m == 64, each of the two warpgroups writes a separate split.
    let splits = blocks_per_tile * 128 / block.m;
    let partials = e.scratch(splits * split_bytes);
    let arguments = KernelArguments::new()
        .pointers(&[dy, view.address, partials])
        .fields(pixels.fields())
        .fields(view.taps.fields())
        .u32(geometry.filters)
        .u32(columns)
        .u32(steps_per_block);
    e.kernel(block.correlate(), "correlate", [tiles, blocks_per_tile, 1], 2 * WARPGROUP, block.shared(), arguments);
    let variant = KernelVariant::new(&compile::CONV_LAYOUT).with("Y", dw.storage.name());
    let arguments = [splits, geometry.filters, columns, geometry.image[2], geometry.kernel[0], geometry.kernel[1]]
        .iter()
        .chain(&[view.padded_channels, view.padded_width])
        .fold(KernelArguments::new().pointers(&[partials, dw.address]), |arguments, &n| arguments.u32(n));
    e.kernel(variant, "sum_split_k", [(geometry.filters * columns).div_ceil(THREADS), 1, 1], THREADS, 0, arguments);
}

/// Variants with every block tile, for the test that compiles them.
pub(crate) fn convolution_variants() -> Vec<KernelVariant> {
    let blocks = [(1000, 64), (50176, 256), (12544, 512)].map(|(m, n)| BlockTile::of_pixels(m, n, 132));
    let convolve = blocks.iter().flat_map(|block| {
        [false, true].into_iter().flat_map(|blocked| [Storage::F32, Storage::Bf16].map(|y| block.convolve(blocked, y)))
    });
    let correlate =
        [(64, 224), (64, 576), (128, 256), (128, 1152)].map(|(m, n)| BlockTile::of_filters(m, n).correlate());
    convolve.chain(correlate).collect()
}

#[cfg(test)]
mod tests {
    use vit_models::variant;
    use vit_train::{Optimiser, TrainingStep};

    use crate::Precision;
    use crate::plan::prepare::{LoweringTarget, Prepared};

    /// The operations of a training step.
    fn operations(model: &str, precision: Precision) -> Vec<String> {
        let architecture = variant(model).unwrap().architecture;
        let step = TrainingStep::new(&architecture, 2, Optimiser::default()).unwrap();
        let graph = crate::device::rewritten(&step.graph).unwrap();
        let prepared = Prepared::new(graph, LoweringTarget { precision, multiprocessors: 132, hopper: true }).unwrap();
        (0..prepared.graph.nodes().len())
            .filter_map(|id| prepared.emit(id, None).unwrap().map(|emitter| prepared.info(id, &emitter).op))
            .collect()
    }

    #[test]
    fn a_resnet_is_trained_with_wgmma_and_fused_norms() {
        let all = operations("resnet50", Precision::Bf16);
        let count = |wanted: &[&str]| all.iter().filter(|op| wanted.contains(&op.as_str())).count();
        // All but the 1x1 of stride 1, which are linear layers: 16 of 3x3, three 1x1 of stride 2 on shortcuts, and the
        // first, whose image has no gradient.
        assert_eq!(count(&["conv2d+wgmma", "conv2d_grad_weight+wgmma", "conv2d_grad_input+wgmma"]), 20 + 20 + 19);
        assert_eq!(count(&["conv2d", "conv2d_grad_weight", "conv2d_grad_input"]), 0);
        // Four shortcuts have a norm without a relu.
        assert_eq!([count(&["batch_norm+relu"]), count(&["batch_norm+add+relu"]), count(&["batch_norm"])], [33, 16, 4]);
        assert_eq!(count(&["relu", "activation_grad"]), 0);
        assert_eq!([count(&["relu_grad+batch_norm_grad"]), count(&["batch_norm_grad"])], [49, 4]);
        let plain = operations("resnet50", Precision::F32);
        assert!(!plain.iter().any(|op| op.ends_with("+wgmma")));
    }
}
