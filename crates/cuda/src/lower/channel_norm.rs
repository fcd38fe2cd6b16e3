//! Batch and group norms of channels-last images; a batch norm may be fused with a residual sum and a relu after it.

use vit_graph::ops::{BatchNorm, GroupNorm, SyncBatchNorm, SyncBatchNormGrad, VarianceAbout};

use super::{Emitter, Operand, THREADS, channel_vector};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::Request;

/// `NormShape` of the kernels, and how they divide it.
#[derive(Clone, Copy)]
struct NormShape {
    /// Whether statistics are per channel (batch norm) instead of per sample and group.
    batch: bool,
    /// Pixels of all samples.
    rows: usize,
    channels: usize,
    /// Rows of a sample.
    pixels: usize,
    groups: usize,
}

impl NormShape {
    /// Of a group norm with these groups, else of a batch norm.
    fn new(shape: &[usize], groups: Option<usize>) -> Self {
        let channels = shape[shape.len() - 1];
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let pixels = rows / shape[0].max(1);
        NormShape { batch: groups.is_none(), rows, channels, pixels, groups: groups.unwrap_or(1) }
    }

    fn fields(&self) -> CStruct {
        CStruct::new().u64(self.rows as u64).u32s(&[self.channels, self.pixels, self.groups])
    }

    /// The number of means, and of variances.
    fn statistics(&self) -> usize {
        if self.batch { self.channels } else { self.rows / self.pixels.max(1) * self.groups }
    }

    /// The elements that share a mean.
    fn size(&self) -> usize {
        if self.batch { self.rows } else { self.pixels * self.channels / self.groups }
    }

    /// Channels of a thread.
    fn vector(&self) -> usize {
        channel_vector(self.channels)
    }

    /// Threads along the channels.
    fn lanes(&self) -> usize {
        (self.channels / self.vector()).next_power_of_two().clamp(8, 32)
    }

    /// Blocks along the channels.
    fn blocks(&self) -> usize {
        self.channels.div_ceil(self.vector() * self.lanes())
    }

    /// The rows of a block, at least eight for each thread, and the blocks along the rows, for about `blocks` blocks in
    /// all.
    fn split(&self, blocks: usize) -> (usize, usize) {
        split(self.rows, blocks.div_ceil(self.blocks()), 8 * THREADS / self.lanes())
    }

    fn variant(&self) -> KernelVariant {
        KernelVariant::new(&compile::CHANNEL_NORM)
            .with("BATCH", usize::from(self.batch))
            .with("VEC", self.vector())
            .with("LANES", self.lanes())
    }
}

/// Splits `count` elements: the elements of a split, at least `min_each`, and the number of splits, at most
/// `max_splits`.
fn split(count: usize, max_splits: usize, min_each: usize) -> (usize, usize) {
    let each = count.div_ceil(max_splits.max(1)).max(min_each);
    (each, count.div_ceil(each).max(1))
}

/// Blocks of a kernel without sums: enough to fill any GPU.
const ELEMENTWISE_BLOCKS: usize = 1 << 15;

/// The address of partial sums, two f64 per split and statistic or channel, and the number of splits.
type Partials = (u64, usize);

/// Partial sums of every group, from the addresses of x, dy, gamma, mean and rstd: of dy · gamma and
/// dy · gamma · normed, or of x and x² if the other four are 0.
fn group_sums(e: &mut Emitter, variant: &KernelVariant, shape: NormShape, pointers: [u64; 5]) -> Partials {
    // About eight blocks per multiprocessor, with at least eight elements per thread.
    let (each, splits) = split(shape.size(), (8 * e.multiprocessors).div_ceil(shape.statistics()), 8 * THREADS);
    let partials = e.scratch(16 * splits * shape.statistics());
    let arguments = KernelArguments::new().pointers(&pointers).pointer(partials).fields(shape.fields()).u32(each);
    e.kernel(variant.clone(), "group_sums", [shape.statistics(), splits, 1], THREADS, 0, arguments);
    (partials, splits)
}

/// Operations after a batch norm that are fused with it.
#[derive(Default)]
struct NormEpilogue {
    relu: bool,
    residual: Option<Operand>,
}

pub(super) fn batch(op: &BatchNorm, e: &mut Emitter) {
    batch_with(op, NormEpilogue::default(), e);
}

/// relu(batch_norm(x) + residual), the first output; the residual is the sixth input, if there is one.
pub(crate) fn batch_relu(op: &BatchNorm, e: &mut Emitter) {
    let residual = e.inputs.get(5).cloned();
    batch_with(op, NormEpilogue { relu: true, residual }, e);
}

fn batch_with(op: &BatchNorm, epilogue: NormEpilogue, e: &mut Emitter) {
    let addresses = [e.inputs[3].address, e.inputs[4].address, e.outputs[3].address, e.outputs[4].address];
    let running = addresses.iter().fold(CStruct::new(), |fields, &address| fields.u64(address)).f32(op.momentum);
    forward(None, op.epsilon, running, epilogue, e);
}

pub(super) fn group(op: &GroupNorm, e: &mut Emitter) {
    forward(Some(op.groups), op.epsilon, CStruct::new().u64s(&[0; 4]).f32(0.0), NormEpilogue::default(), e);
}

fn forward(groups: Option<usize>, epsilon: f32, running: CStruct, epilogue: NormEpilogue, e: &mut Emitter) {
    let (x, y) = (e.inputs[0].clone(), e.outputs[0].clone());
    let shape = NormShape::new(&x.shape, groups);
    if x.shape.elements() == 0 {
        return;
    }
    let [gamma, beta] = [e.inputs[1].address, e.inputs[2].address];
    let [mean, rstd] = [1, 2].map(|i| output_or_scratch(i, e));
    moments(e, &x, shape, epsilon, [mean, rstd, 0], running);
    if y.is_written() {
        normalise(e, &x, shape, [gamma, beta, mean, rstd], &epilogue, &y);
    }
}

/// Writes mean, rstd and, unless its address is 0, biased variance to `statistics`, and the running statistics that
/// `running`, `RunningStatistics` of the kernels, has addresses for.
fn moments(e: &mut Emitter, x: &Operand, shape: NormShape, epsilon: f32, statistics: [u64; 3], running: CStruct) {
    let variant = shape.variant().with("X", x.storage.name());
    let (partials, splits) = if shape.batch {
        // One wave: three blocks are resident (`__launch_bounds__` of the kernel).
        let (each, splits) = shape.split(3 * e.multiprocessors);
        let partials = e.scratch(16 * splits * shape.channels);
        let arguments = KernelArguments::new().pointers(&[x.address, partials]).fields(shape.fields()).u32(each);
        e.kernel(variant.clone(), "channel_moments", [shape.blocks(), splits, 1], THREADS, 0, arguments);
        (partials, splits)
    } else {
        group_sums(e, &variant, shape, [x.address, 0, 0, 0, 0])
    };
    let arguments = KernelArguments::new()
        .pointer(partials)
        .u32(splits)
        .u32(shape.statistics())
        .u64(shape.size())
        .f32(epsilon)
        .pointer(x.address)
        .pointers(&statistics)
        .fields(running);
    // A block sums eight statistics.
    e.kernel(variant, "moments", [shape.statistics().div_ceil(8), 1, 1], THREADS, 0, arguments);
}

/// relu((x - mean) · rstd · gamma + beta + residual); the residual and the relu only where the epilogue has them.
fn normalise(
    e: &mut Emitter,
    x: &Operand,
    shape: NormShape,
    [gamma, beta, mean, rstd]: [u64; 4],
    epilogue: &NormEpilogue,
    y: &Operand,
) {
    let residual = epilogue.residual.as_ref();
    let variant = shape
        .variant()
        .with("X", x.storage.name())
        .with("Y", y.storage.name())
        .with("R", residual.map_or(x.storage, |r| r.storage).name())
        .with("RELU", usize::from(epilogue.relu));
    let (each, splits) = shape.split(ELEMENTWISE_BLOCKS);
    let arguments = KernelArguments::new()
        .pointers(&[x.address, gamma, beta, mean, rstd, residual.map_or(0, |r| r.address), y.address])
        .fields(shape.fields())
        .u32(each);
    e.kernel(variant, "normalise", [shape.blocks(), splits, 1], THREADS, 0, arguments);
}

pub(super) fn batch_moments(e: &mut Emitter) {
    let x = e.inputs[0].clone();
    let shape = NormShape::new(&x.shape, None);
    let [mean, variance] = [0, 1].map(|i| output_or_scratch(i, e));
    if x.shape.elements() > 0 {
        let rstd = e.scratch(4 * shape.channels);
        moments(e, &x, shape, 0.0, [mean, rstd, variance], CStruct::new().u64s(&[0; 4]).f32(0.0));
    }
}

pub(super) fn variance_about(op: &VarianceAbout, e: &mut Emitter) {
    let (count, to) = (e.inputs[0].shape.elements(), e.outputs[0].address);
    let addresses: Vec<u64> = e.inputs.iter().map(|input| input.address).collect();
    let arguments = KernelArguments::new().pointers(&addresses).f32(op.parts as f32).u32(count).pointer(to);
    let variant = KernelVariant::new(&compile::CHANNEL_NORM);
    e.kernel(variant, "variance_about", [count.div_ceil(THREADS), 1, 1], THREADS, 0, arguments);
}

/// From x, gamma and beta of each of this process's parts of the batch, the sums over all parts of means and of
/// variances, and the running statistics, to y of each part, mean, rstd and the new running statistics.
pub(super) fn sync_batch(op: &SyncBatchNorm, e: &mut Emitter) {
    let own = op.synced.own;
    let shape = NormShape::new(&e.inputs[0].shape, None);
    if shape.rows == 0 {
        return;
    }
    let [mean_sum, variance_sum, old_mean, old_variance] = [0, 1, 2, 3].map(|i| e.inputs[3 * own + i].address);
    let [mean, rstd] = [own, own + 1].map(|i| output_or_scratch(i, e));
    let [new_mean, new_variance] = [own + 2, own + 3].map(|i| e.outputs[i].address);
    let running = [old_mean, old_variance, new_mean, new_variance];
    let running = running.iter().fold(CStruct::new(), |fields, &address| fields.u64(address)).f32(op.norm.momentum);
    let arguments = KernelArguments::new()
        .pointers(&[mean_sum, variance_sum])
        .f32(op.synced.parts as f32)
        .u32(shape.channels)
        .u64(shape.rows * op.synced.parts)
        .f32(op.norm.epsilon)
        .pointers(&[mean, rstd])
        .fields(running);
    let variant = KernelVariant::new(&compile::CHANNEL_NORM);
    e.kernel(variant, "synced_moments", [shape.channels.div_ceil(THREADS), 1, 1], THREADS, 0, arguments);
    for part in 0..own {
        let (x, y) = (e.inputs[part].clone(), e.outputs[part].clone());
        let [gamma, beta] = [own + part, 2 * own + part].map(|i| e.inputs[i].address);
        if y.is_written() {
            normalise(e, &x, shape, [gamma, beta, mean, rstd], &NormEpilogue::default(), &y);
        }
    }
}

pub(super) fn sync_batch_grad(op: &SyncBatchNormGrad, e: &mut Emitter) {
    let (dy, x, dx) = (e.inputs[0].clone(), e.inputs[1].clone(), e.outputs[0].clone());
    let shape = NormShape::new(&x.shape, None);
    if shape.rows == 0 {
        return;
    }
    let [gamma, mean, rstd, dgamma, dbeta] = [2, 3, 4, 5, 6].map(|i| e.inputs[i].address);
    normalise_grad(e, shape, [&dy, &x, &dx], [gamma, 0, mean, rstd, dbeta, dgamma], op.count, 0);
}

/// The gradient of a relu after a norm, which the kernels of the norm's gradient compute.
enum ReluGrad {
    None,
    /// Of relu(norm(x)); its derivative is computed from x, with the norm's `beta` at this address.
    OfNorm(u64),
    /// Of relu(norm(x) + residual): from its result and up to two gradients of it to the gradient `dx` of the sum.
    OfSum {
        result: Operand,
        dy2: Option<Operand>,
        dx: Operand,
    },
}

/// From `dy, x, gamma, mean, rstd` to `dx, dgamma, dbeta`; with groups, of a group norm.
pub(super) fn backward(groups: Option<usize>, e: &mut Emitter) {
    backward_with(groups, ReluGrad::None, e);
}

/// The gradient of relu(batch_norm(x)); `beta` is the sixth input.
pub(crate) fn batch_relu_grad(e: &mut Emitter) {
    let beta = e.inputs[5].address;
    backward_with(None, ReluGrad::OfNorm(beta), e);
}

/// The gradient of relu(batch_norm(x) + residual). The relu's result is the sixth input, a second gradient of it the
/// seventh, if there is one; the gradient of the sum is the fourth output.
pub(crate) fn batch_add_relu_grad(e: &mut Emitter) {
    let (result, dy2, dx) = (e.inputs[5].clone(), e.inputs.get(6).cloned(), e.outputs[3].clone());
    backward_with(None, ReluGrad::OfSum { result, dy2, dx }, e);
}

fn backward_with(groups: Option<usize>, relu_grad: ReluGrad, e: &mut Emitter) {
    let (mut dy, x, dx) = (e.inputs[0].clone(), e.inputs[1].clone(), e.outputs[0].clone());
    let shape = NormShape::new(&x.shape, groups);
    let [gamma, mean, rstd] = [2, 3, 4].map(|i| e.inputs[i].address);
    let [dgamma, dbeta] = [1, 2].map(|i| output_or_scratch(i, e));
    if x.shape.elements() == 0 {
        for to in [dgamma, dbeta] {
            e.requests.push(Request::Clear { to, bytes: 4 * shape.channels });
        }
        return;
    }
    let variant = shape.variant().with("X", x.storage.name());
    let sum_splits = |e: &mut Emitter, (partials, splits): Partials, count: usize, first: u64, second: u64| {
        let arguments = KernelArguments::new().pointer(partials).u32(splits).u32(count).pointers(&[first, second]);
        e.kernel(variant.clone(), "sum_splits_f32", [count.div_ceil(8), 1, 1], THREADS, 0, arguments);
    };
    let mut sums = variant.clone().with("DY", dy.storage.name());
    // `relu` is the macro `RELU` of the kernels.
    let (mut relu_operands, mut beta, mut relu) = ([0; 3], 0, 0);
    match &relu_grad {
        ReluGrad::None => {}
        ReluGrad::OfNorm(of) => (beta, relu) = (*of, 1),
        ReluGrad::OfSum { result, dy2, dx: dx_of_sum } => {
            relu = 2;
            relu_operands = [result.address, dy2.as_ref().map_or(0, |dy2| dy2.address), dx_of_sum.address];
            sums = sums
                .with("R", result.storage.name())
                .with("DY2", dy2.as_ref().map_or(dy.storage, |dy2| dy2.storage).name())
                .with("Y", dx_of_sum.storage.name());
        }
    }
    // One wave: two blocks are resident.
    let (each, splits) = shape.split(2 * e.multiprocessors);
    let partials = e.scratch(16 * splits * shape.channels);
    let arguments = KernelArguments::new()
        .pointers(&[x.address, dy.address, gamma, beta, mean, rstd, partials])
        .fields(shape.fields())
        .u32(each)
        .fields(relu_operands.iter().fold(CStruct::new(), |fields, &address| fields.u64(address)));
    e.kernel(sums.with("RELU", relu), "channel_dots", [shape.blocks(), splits, 1], THREADS, 0, arguments);
    sum_splits(e, (partials, splits), shape.channels, dbeta, dgamma);
    if !dx.is_written() {
        return;
    }
    // `channel_dots` has written the gradient of the sum.
    if let ReluGrad::OfSum { dx, .. } = relu_grad {
        (dy, relu) = (dx, 0);
    }
    let (sum, dot) = if shape.batch {
        (dbeta, dgamma)
    } else {
        let [sum, dot] = [e.scratch(4 * shape.statistics()), e.scratch(4 * shape.statistics())];
        let variant = variant.clone().with("DY", dy.storage.name());
        let sums = group_sums(e, &variant, shape, [x.address, dy.address, gamma, mean, rstd]);
        sum_splits(e, sums, shape.statistics(), sum, dot);
        (sum, dot)
    };
    normalise_grad(e, shape, [&dy, &x, &dx], [gamma, beta, mean, rstd, sum, dot], shape.size(), relu);
}

/// The gradient of `x`; `vectors` are gamma, beta, mean, rstd, and the kernel's `sum` and `dot` (for a batch norm, dbeta
/// and dgamma), `size` the elements that share a mean, `relu` the macro `RELU`.
fn normalise_grad(
    e: &mut Emitter,
    shape: NormShape,
    [dy, x, dx]: [&Operand; 3],
    vectors: [u64; 6],
    size: usize,
    relu: usize,
) {
    let (each, splits) = shape.split(ELEMENTWISE_BLOCKS);
    let arguments = KernelArguments::new()
        .pointers(&[x.address, dy.address])
        .pointers(&vectors)
        .f32(1.0 / size as f32)
        .pointer(dx.address)
        .fields(shape.fields())
        .u32(each);
    let variant = shape
        .variant()
        .with("X", x.storage.name())
        .with("DY", dy.storage.name())
        .with("Y", dx.storage.name())
        .with("RELU", relu);
    e.kernel(variant, "normalise_grad", [shape.blocks(), splits, 1], THREADS, 0, arguments);
}

/// The address of an f32 output that other kernels of the node read, in scratch memory if it has no other consumers.
fn output_or_scratch(output: usize, e: &mut Emitter) -> u64 {
    let (address, count) = (e.outputs[output].address, e.outputs[output].shape.elements());
    if address != 0 { address } else { e.scratch(4 * count) }
}
