//! Convolution in bf16 by Hopper's tensor cores, and its gradients: matrix products that fetch the pixels they need.
//!
//! Filters are brought into the order in which pixels are met. An image of few channels gets a border and channels of
//! zeros, and then a row of a filter meets one run of numbers, as if it were one pixel of many channels.

use vit_graph::ops::Conv2d;

use super::ConvGeometry;
use crate::compile::{self, KernelVariant};
use crate::lower::Emitter;
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};

/// Channels that one step of a product takes, and bytes of them in a row of a tile.
const STEP: usize = 64;
const ROW_BYTES: usize = 2 * STEP;

/// Room for the first stage to begin at a multiple of what the tensor cores ask for.
const ALIGNING: usize = 1024;

/// Threads of a warpgroup.
const WARPGROUP: usize = 128;

/// Threads of the kernels that bring operands into order.
const THREADS: usize = 256;

/// The most scratch memory for parts of a gradient.
const MOST_PART_BYTES: usize = 256 << 20;

/// Whether the kernels can do this convolution and its filters' gradient.
pub(super) fn takes(plan: &ConvGeometry, e: &Emitter) -> bool {
    let (channels, result) = (plan.image[2], plan.rows() * plan.filters);
    // An image with its border is no larger than what the filters reach.
    let reached = |axis: usize| {
        let Conv2d { stride, dilation, .. } = plan.conv;
        plan.output[axis] * stride[axis] + (plan.kernel[axis] + 1) * dilation[axis]
    };
    let image = if channels.is_multiple_of(8) { plan.image_len() } else { 8 * reached(0) * reached(1) };
    let largest = plan.batch * result.max(image);
    e.hopper
        && e.operand_storage() == Storage::Bf16
        && plan.conv.groups == 1
        && plan.filters.is_multiple_of(8)
        && (channels.is_multiple_of(8) || (channels < 8 && plan.conv.dilation[1] == 1))
        && plan.kernel.iter().all(|&k| k <= 16)
        && largest < 1 << 31
        && plan.batch * result > 0
}

/// Whether they can do the gradient of its image: taps that a pixel meets must be a regular grid.
pub(super) fn takes_grad_input(plan: &ConvGeometry, e: &Emitter) -> bool {
    takes(plan, e)
        && plan.image[2].is_multiple_of(8)
        && plan.image.iter().all(|&extent| extent > 0)
        && (0..2).all(|axis| plan.conv.stride[axis] == 1 || plan.conv.dilation[axis] == 1)
}

/// `OutputPixels` of the kernels: results of a product, and where they lie.
#[derive(Clone, Copy)]
struct OutputPixels {
    images: usize,
    size: [usize; 2],
    /// Elements from an image, a row and a place to the next.
    strides: [usize; 3],
}

impl OutputPixels {
    fn count(&self) -> usize {
        self.images * self.size[0] * self.size[1]
    }

    fn fields(&self) -> CStruct {
        let fields = CStruct::new().u32(self.count());
        self.size.iter().fold(fields, |fields, &extent| fields.u32s(&divisor(extent))).u32s(&self.strides)
    }
}

/// What a kernel divides numbers below 2^31 with: `(high word of factor · n + n) >> shift`.
fn divisor(by: usize) -> [usize; 3] {
    let shift = by.next_power_of_two().trailing_zeros();
    let factor = ((1u64 << 32) * ((1u64 << shift) - by as u64)) / by as u64 + 1;
    [by, factor as usize, shift as usize]
}

/// `InputTaps` of the kernels: the pixels that a place meets.
#[derive(Clone, Copy)]
struct InputTaps {
    size: [usize; 2],
    strides: [usize; 3],
    first: [isize; 2],
    step: [usize; 2],
    tap: [isize; 2],
    taps: [usize; 2],
    channels: usize,
}

impl InputTaps {
    fn fields(&self) -> CStruct {
        // Negative numbers keep their lower 32 bits.
        let signed = |numbers: [isize; 2]| numbers.map(|n| n as usize);
        CStruct::new()
            .u32s(&self.size)
            .u32s(&self.strides)
            .u32s(&signed(self.first))
            .u32s(&self.step)
            .u32s(&signed(self.tap))
            .u32s(&self.taps)
            .u32(self.channels)
    }

    /// Elements that a place meets.
    fn columns(&self) -> usize {
        self.taps[0] * self.taps[1] * self.channels
    }

    fn whole_steps(&self) -> bool {
        self.channels.is_multiple_of(STEP)
    }

    fn steps(&self) -> usize {
        self.columns().div_ceil(STEP)
    }
}

/// `FilterOrder` of the kernel that orders filters.
struct FilterOrder {
    rows: usize,
    inner: usize,
    strides: [usize; 2],
    kernel: [usize; 2],
    taps: [usize; 2],
    first: [usize; 2],
    jump: [usize; 2],
    padded: usize,
}

/// The image of a convolution as its products read it.
struct ImageView {
    address: u64,
    reach: InputTaps,
    /// Channels and columns of a tap with those of zeros.
    padded: usize,
    padded_width: usize,
}

fn view(plan: &ConvGeometry, input: usize, e: &mut Emitter) -> ImageView {
    let ([height, width, channels], kernel, stride) = (plan.image, plan.kernel, plan.conv.stride);
    let tap = plan.conv.dilation.map(|d| d as isize);
    if channels.is_multiple_of(8) {
        let address = e.form(input, Storage::Bf16);
        let first = [0, 1].map(|axis| -(plan.conv.padding[axis][0] as isize));
        let strides = [height * width * channels, width * channels, channels];
        let reach = InputTaps { size: [height, width], strides, first, step: stride, tap, taps: kernel, channels };
        return ImageView { address, reach, padded: channels, padded_width: kernel[1] };
    }
    // Runs begin at multiples of 16 bytes.
    let padded = if channels <= 4 && stride[1].is_multiple_of(2) { 4 } else { 8 };
    let padded_width = (kernel[1] * padded).next_multiple_of(8) / padded;
    let new_height = (plan.output[0] - 1) * stride[0] + (kernel[0] - 1) * plan.conv.dilation[0] + 1;
    let new_width = ((plan.output[1] - 1) * stride[1] + padded_width).next_multiple_of(2);
    let pixels = plan.batch * new_height * new_width;
    let address = e.scratch(2 * pixels * padded);
    let (from, stored) = e.stored(input);
    let border = CStruct::new()
        .u32s(&[height, width, channels, new_height, new_width])
        .u32s(&[plan.conv.padding[0][0], plan.conv.padding[1][0]]);
    let variant = KernelVariant::new(&compile::CONV_LAYOUT).with("X", stored.name()).with("VEC", padded);
    let arguments = KernelArguments::new().pointers(&[from, address]).fields(border).u64(pixels);
    e.spread(variant, "border_image", pixels, 1, arguments);
    let reach = InputTaps {
        size: [new_height, new_width],
        strides: [new_height * new_width * padded, new_width * padded, padded],
        first: [0, 0],
        step: stride,
        tap: [tap[0], 0],
        taps: [kernel[0], 1],
        channels: padded_width * padded,
    };
    ImageView { address, reach, padded, padded_width }
}

/// Filters in the order in which a product meets them, in scratch memory.
fn ordered(filters: u64, order: &FilterOrder, reach: &InputTaps, e: &mut Emitter) -> u64 {
    let depth = reach.steps() * STEP;
    let rows = e.scratch(2 * order.rows * depth);
    let fields = CStruct::new()
        .u32s(&[order.rows, order.inner])
        .u32s(&order.strides)
        .u32s(&order.kernel)
        .u32s(&order.taps)
        .u32s(&order.first)
        .u32s(&order.jump)
        .u32s(&[order.padded, usize::from(reach.whole_steps()), depth]);
    let variant = KernelVariant::new(&compile::CONV_LAYOUT);
    let arguments = KernelArguments::new().pointers(&[filters, rows]).fields(fields);
    e.spread(variant, "order_filters", order.rows * depth, 1, arguments);
    rows
}

/// The block of a product, and the stages of shared memory that it takes turns with. Chosen by measuring on an H200.
#[derive(Debug, Clone, Copy, PartialEq)]
struct BlockTile {
    /// Rows of the left and of the right operand.
    m: usize,
    n: usize,
    stages: usize,
    /// Blocks that share a multiprocessor.
    shared_by: usize,
}

impl BlockTile {
    /// For a product of places and filters. Of two heights the one is taken that leaves fewer multiprocessors idle in
    /// the last round.
    fn of_places(places: usize, filters: usize, multiprocessors: usize) -> Self {
        if filters <= 64 {
            return BlockTile { m: 128, n: 64, stages: 4, shared_by: 2 };
        }
        let time = |m: usize| (places.div_ceil(m) * filters.div_ceil(128)).div_ceil(multiprocessors) * m;
        let m = if time(192) < time(256) { 192 } else { 256 };
        BlockTile { m, n: 128, stages: 4, shared_by: 1 }
    }

    /// For the gradient of filters. Narrow blocks fetch more for what they compute.
    fn of_filters(filters: usize, columns: usize) -> Self {
        let narrow = 5 * columns.next_multiple_of(128) < 4 * columns.next_multiple_of(192);
        match (filters <= 64, narrow) {
            (true, true) => BlockTile { m: 64, n: 128, stages: 4, shared_by: 2 },
            (true, false) => BlockTile { m: 64, n: 192, stages: 3, shared_by: 2 },
            (false, true) => BlockTile { m: 128, n: 128, stages: 3, shared_by: 2 },
            (false, false) => BlockTile { m: 128, n: 192, stages: 5, shared_by: 1 },
        }
    }

    fn shared(&self) -> usize {
        self.stages * (self.m + self.n) * ROW_BYTES + ALIGNING
    }

    fn warpgroups(&self) -> usize {
        self.m / 64
    }

    fn convolve(&self, whole_steps: bool, y: Storage) -> KernelVariant {
        KernelVariant::new(&compile::HOPPER_CONVOLVE)
            .with("WARPGROUPS", self.warpgroups())
            .with("BLOCK_N", self.n)
            .with("STAGES", self.stages)
            .with("BLOCKS_PER_SM", self.shared_by)
            .with("WHOLE_STEPS", usize::from(whole_steps))
            .with("Y", y.name())
    }

    fn correlate(&self) -> KernelVariant {
        KernelVariant::new(&compile::HOPPER_CORRELATE)
            .with("BLOCK_M", self.m)
            .with("BLOCK_N", self.n)
            .with("STAGES", self.stages)
            .with("BLOCKS_PER_SM", self.shared_by)
    }
}

/// Asks for the product itself.
fn convolve(
    e: &mut Emitter,
    [x, filters, bias, y]: [u64; 4],
    stored: Storage,
    places: OutputPixels,
    reach: &InputTaps,
    count: usize,
) {
    let block = BlockTile::of_places(places.count(), count, e.multiprocessors);
    let variant = block.convolve(reach.whole_steps(), stored);
    let arguments = KernelArguments::new()
        .pointers(&[x, filters, bias, y])
        .fields(places.fields())
        .fields(reach.fields())
        .u32(count)
        .u32(reach.steps());
    let blocks = places.count().div_ceil(block.m) * count.div_ceil(block.n);
    e.kernel(variant, "convolve", [blocks, 1, 1], WARPGROUP * block.warpgroups(), block.shared(), arguments);
}

/// The places of a convolution's results.
fn results(plan: &ConvGeometry) -> OutputPixels {
    let strides = [plan.rows() * plan.filters, plan.output[1] * plan.filters, plan.filters];
    OutputPixels { images: plan.batch, size: plan.output, strides }
}

pub(super) fn forward(plan: &ConvGeometry, e: &mut Emitter) {
    let (y, weight) = (e.outputs[0].clone(), e.form(1, Storage::Bf16));
    let bias = if plan.conv.bias { e.form(2, y.storage) } else { 0 };
    let view = view(plan, 0, e);
    let taps = plan.kernel[0] * plan.kernel[1];
    let order = FilterOrder {
        rows: plan.filters,
        inner: plan.image[2],
        strides: [plan.image[2] * taps, taps],
        kernel: plan.kernel,
        taps: [plan.kernel[0], view.padded_width],
        first: [0, 0],
        jump: [1, 1],
        padded: view.padded,
    };
    let filters = ordered(weight, &order, &view.reach, e);
    convolve(e, [view.address, filters, bias, y.address], y.storage, results(plan), &view.reach, plan.filters);
}

/// With a stride, pixels fall into classes by the taps that reach them; each class is a product of its own.
pub(super) fn grad_input(plan: &ConvGeometry, e: &mut Emitter) {
    let (dx, dy, weight) = (e.outputs[0].clone(), e.form(0, Storage::Bf16), e.form(1, Storage::Bf16));
    let ([height, width, channels], stride) = (plan.image, plan.conv.stride);
    let taps = plan.kernel[0] * plan.kernel[1];
    for class in (0..stride[0]).flat_map(|y| (0..stride[1]).map(move |x| [y, x])) {
        let size = [0, 1].map(|axis| [height, width][axis].saturating_sub(class[axis]).div_ceil(stride[axis]));
        if size.contains(&0) {
            continue;
        }
        let reached = [0, 1].map(|axis| class[axis] + plan.conv.padding[axis][0]);
        let first = [0, 1].map(|axis| reached[axis] % stride[axis]);
        let met = [0, 1].map(|axis| plan.kernel[axis].saturating_sub(first[axis]).div_ceil(stride[axis]));
        let met = if met.contains(&0) { [0, 1] } else { met };
        let reach = InputTaps {
            size: plan.output,
            strides: results(plan).strides,
            first: [0, 1].map(|axis| (reached[axis] / stride[axis]) as isize),
            step: [1, 1],
            tap: plan.conv.dilation.map(|d| -(d as isize)),
            taps: met,
            channels: plan.filters,
        };
        let order = FilterOrder {
            rows: channels,
            inner: plan.filters,
            strides: [taps, channels * taps],
            kernel: plan.kernel,
            taps: met,
            first,
            jump: stride,
            padded: plan.filters,
        };
        let filters = ordered(weight, &order, &reach, e);
        let strides = [height * width * channels, stride[0] * width * channels, stride[1] * channels];
        let places = OutputPixels { images: plan.batch, size, strides };
        let to = dx.address + ((class[0] * width + class[1]) * channels * dx.storage.bytes()) as u64;
        convolve(e, [dy, filters, 0, to], dx.storage, places, &reach, channels);
    }
}

pub(super) fn grad_weight(plan: &ConvGeometry, e: &mut Emitter) {
    let (dw, dy) = (e.outputs[0].clone(), e.form(0, Storage::Bf16));
    let view = view(plan, 1, e);
    let (places, columns) = (results(plan), view.reach.columns());
    let block = BlockTile::of_filters(plan.filters, columns);
    let tiles = plan.filters.div_ceil(block.m) * columns.div_ceil(block.n);
    let part_bytes = 4 * plan.filters * columns;
    let steps = places.count().div_ceil(STEP);
    let each = steps_of_a_part(steps, tiles, block.shared_by * e.multiprocessors, part_bytes);
    let blocks = steps.div_ceil(each);
    // With 64 filters every block writes two parts.
    let parts = blocks * 128 / block.m;
    let partials = e.scratch(parts * part_bytes);
    let arguments = KernelArguments::new()
        .pointers(&[dy, view.address, partials])
        .fields(places.fields())
        .fields(view.reach.fields())
        .u32(plan.filters)
        .u32(columns)
        .u32(each);
    e.kernel(block.correlate(), "correlate", [tiles, blocks, 1], 2 * WARPGROUP, block.shared(), arguments);
    let variant = KernelVariant::new(&compile::CONV_LAYOUT).with("Y", dw.storage.name());
    let arguments = [parts, plan.filters, columns, plan.image[2], plan.kernel[0], plan.kernel[1]]
        .iter()
        .chain(&[view.padded, view.padded_width])
        .fold(KernelArguments::new().pointers(&[partials, dw.address]), |arguments, &n| arguments.u32(n));
    e.kernel(variant, "sum_split_k", [(plan.filters * columns).div_ceil(THREADS), 1, 1], THREADS, 0, arguments);
}

/// Into how large parts a sum over `steps` is divided: all slots should be busy to the end, but every part is written
/// and read again. Times are in steps of a block.
fn steps_of_a_part(steps: usize, tiles: usize, slots: usize, part_bytes: usize) -> usize {
    /// What a block takes to begin and to end, and bytes that are written and read in the time of a step.
    const BLOCK: f64 = 4.0;
    const BYTES_PER_STEP: f64 = 3e6;
    let most = (MOST_PART_BYTES / (2 * part_bytes)).clamp(1, steps);
    let time = |parts: usize| {
        let rounds = (tiles * parts).div_ceil(slots) as f64;
        rounds * (steps.div_ceil(parts) as f64 + BLOCK) + (parts * part_bytes) as f64 / BYTES_PER_STEP
    };
    let best = (1..=most.min(1024)).min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(1);
    steps.div_ceil(best)
}

/// What is compiled to see that it can be.
pub(crate) fn convolution_variants() -> Vec<KernelVariant> {
    let blocks = [(1000, 64), (50176, 256), (12544, 512)].map(|(m, n)| BlockTile::of_places(m, n, 132));
    let convolve = blocks.iter().flat_map(|block| {
        [false, true].into_iter().flat_map(|whole| [Storage::F32, Storage::Bf16].map(|y| block.convolve(whole, y)))
    });
    let correlate =
        [(64, 224), (64, 576), (128, 256), (128, 1152)].map(|(m, n)| BlockTile::of_filters(m, n).correlate());
    convolve.chain(correlate).collect()
}

#[cfg(test)]
mod tests {
    use vit_models::variant;
    use vit_train::{Optimiser, TrainingStep};

    use super::*;
    use crate::Precision;
    use crate::plan::prepare::{Prepared, Profile};

    /// The operations of a training step.
    fn operations(model: &str, precision: Precision) -> Vec<String> {
        let architecture = variant(model).unwrap().architecture;
        let step = TrainingStep::new(&architecture, 2, Optimiser::default()).unwrap();
        let graph = crate::device::rewritten(&step.graph).unwrap();
        let prepared = Prepared::new(graph, Profile { precision, multiprocessors: 132, hopper: true }).unwrap();
        (0..prepared.graph.nodes().len())
            .filter_map(|id| prepared.emit(id, None).unwrap().map(|emitter| prepared.info(id, &emitter).op))
            .collect()
    }

    #[test]
    fn a_resnet_is_trained_by_tensor_cores_and_joined_norms() {
        let all = operations("resnet50", Precision::Bf16);
        let count = |wanted: &[&str]| all.iter().filter(|op| wanted.contains(&op.as_str())).count();
        // 16 of 3x3, three that halve the resolution, and the first, whose image has no gradient.
        assert_eq!(count(&["conv2d+wgmma", "conv2d_grad_weight+wgmma", "conv2d_grad_input+wgmma"]), 20 + 20 + 19);
        assert_eq!(count(&["conv2d", "conv2d_grad_weight", "conv2d_grad_input"]), 0);
        // Four shortcuts have a norm without a relu.
        assert_eq!([count(&["batch_norm+relu"]), count(&["batch_norm+add+relu"]), count(&["batch_norm"])], [33, 16, 4]);
        assert_eq!(count(&["relu", "activation_grad"]), 0);
        assert_eq!([count(&["relu_grad+batch_norm_grad"]), count(&["batch_norm_grad"])], [49, 4]);
        let plain = operations("resnet50", Precision::F32);
        assert!(!plain.iter().any(|op| op.ends_with("+wgmma")));
    }

    #[test]
    fn divisions_by_factors_are_exact() {
        for by in (1..300).chain([1000, 3136, 50176, 65535, 65536, (1 << 30) - 1]) {
            let [by, factor, shift] = divisor(by).map(|n| n as u64);
            for n in (0..2000).chain((1 << 31) - 2000..1 << 31).chain((1..40).flat_map(|k| [k * by - 1, k * by])) {
                let n = n & ((1 << 31) - 1);
                assert_eq!((((factor * n) >> 32) + n) >> shift, n / by, "{n} / {by}");
            }
        }
    }

    #[test]
    fn parts_of_a_sum_keep_all_multiprocessors_busy() {
        // Filters' gradients of ResNet-50 at a batch of 256: filters, columns, steps.
        for (filters, columns, steps) in [(64, 576, 12544), (128, 1152, 3136), (256, 2304, 784), (512, 4608, 196)] {
            let block = BlockTile::of_filters(filters, columns);
            let (tiles, slots) = (filters.div_ceil(block.m) * columns.div_ceil(block.n), 132 * block.shared_by);
            let each = steps_of_a_part(steps, tiles, slots, 4 * filters * columns);
            let blocks = tiles * steps.div_ceil(each);
            let busy = blocks as f64 / (blocks.div_ceil(slots) * slots) as f64;
            assert!(busy > 0.85, "{filters} by {columns} in {steps} steps, {each} each: {busy}");
        }
    }

    #[test]
    fn blocks_fit_into_a_multiprocessor() {
        let of_places = [64, 128].map(|filters| BlockTile::of_places(1 << 20, filters, 132));
        let lower = BlockTile::of_places(12544, 512, 132);
        assert_eq!(lower.m, 192);
        let of_filters = [(64, 128), (64, 192), (128, 128), (128, 192)].map(|(m, n)| BlockTile::of_filters(m, n));
        for block in of_places.into_iter().chain([lower]).chain(of_filters) {
            // What a multiprocessor of Hopper has, less what it keeps for itself.
            assert!(block.shared_by * (block.shared() + 1024) <= 228 << 10, "{block:?}");
        }
    }
}
