//! Batch and group norms of channels-last images; a batch norm with the relu after it and the sum before that.

use vit_graph::ops::{BatchNorm, GroupNorm};

use super::{Emitter, Operand, THREADS};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

/// How elements share statistics.
#[derive(Clone, Copy)]
struct NormShape {
    /// Whether statistics belong to a channel of the whole batch.
    batch: bool,
    rows: usize,
    channels: usize,
    /// Rows of a sample.
    pixels: usize,
    groups: usize,
}

impl NormShape {
    /// Without groups, a batch norm's.
    fn new(shape: &[usize], groups: Option<usize>) -> Self {
        let channels = shape[shape.len() - 1];
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let pixels = rows / shape[0].max(1);
        NormShape { batch: groups.is_none(), rows, channels, pixels, groups: groups.unwrap_or(1) }
    }

    fn fields(&self) -> CStruct {
        CStruct::new().u64(self.rows as u64).u32s(&[self.channels, self.pixels, self.groups])
    }

    /// How many statistics there are.
    fn statistics(&self) -> usize {
        if self.batch { self.channels } else { self.rows / self.pixels.max(1) * self.groups }
    }

    /// How many elements have theirs in common.
    fn size(&self) -> usize {
        if self.batch { self.rows } else { self.pixels * self.channels / self.groups }
    }

    /// Neighbouring channels of a thread.
    fn pack(&self) -> usize {
        if self.channels.is_multiple_of(8) { 8 } else { 1 }
    }

    /// Threads side by side.
    fn lanes(&self) -> usize {
        (self.channels / self.pack()).next_power_of_two().clamp(8, 32)
    }

    /// Blocks side by side.
    fn blocks(&self) -> usize {
        self.channels.div_ceil(self.pack() * self.lanes())
    }

    /// The rows of a block, of which there are `wanted` or fewer, and the number of blocks.
    fn split(&self, wanted: usize) -> (usize, usize) {
        split(self.rows, wanted.div_ceil(self.blocks()), 8 * THREADS / self.lanes())
    }

    fn variant(&self) -> KernelVariant {
        KernelVariant::new(&compile::CHANNEL_NORM)
            .with("BATCH", usize::from(self.batch))
            .with("VEC", self.pack())
            .with("LANES", self.lanes())
    }
}

/// `count` things in parts of at least `least`, so that `wanted` parts or fewer come out.
fn split(count: usize, wanted: usize, least: usize) -> (usize, usize) {
    let each = count.div_ceil(wanted.max(1)).max(least);
    (each, count.div_ceil(each).max(1))
}

/// Blocks of a kernel that has nothing to add up.
const MANY: usize = 1 << 15;

/// Partial sums and their splits.
type Partials = (u64, usize);

/// Two sums for every group: of x and x², or of dy · gamma and dy · gamma · normed.
fn group_sums(e: &mut Emitter, variant: &KernelVariant, shape: NormShape, pointers: [u64; 5]) -> Partials {
    let (each, splits) = split(shape.size(), (8 * e.multiprocessors).div_ceil(shape.statistics()), 2048);
    let partials = e.scratch(16 * splits * shape.statistics());
    let arguments = KernelArguments::new().pointers(&pointers).pointer(partials).fields(shape.fields()).u32(each);
    e.kernel(variant.clone(), "group_sums", [shape.statistics(), splits, 1], THREADS, 0, arguments);
    (partials, splits)
}

/// What a batch norm's result goes through: a relu, after the sum with another value.
#[derive(Default)]
struct NormEpilogue {
    relu: bool,
    residual: Option<Operand>,
}

pub(super) fn batch(op: &BatchNorm, e: &mut Emitter) {
    batch_with(op, NormEpilogue::default(), e);
}

/// A batch norm and the relu of its result, which is the first output; with a sixth input, of its sum with that.
pub(super) fn batch_and_relu(op: &BatchNorm, e: &mut Emitter) {
    let residual = e.inputs.get(5).cloned();
    batch_with(op, NormEpilogue { relu: true, residual }, e);
}

fn batch_with(op: &BatchNorm, tail: NormEpilogue, e: &mut Emitter) {
    let places = [e.inputs[3].address, e.inputs[4].address, e.outputs[3].address, e.outputs[4].address];
    let running = places.iter().fold(CStruct::new(), |fields, &place| fields.u64(place)).f32(op.momentum);
    forward(None, op.epsilon, running, tail, e);
}

pub(super) fn group(op: &GroupNorm, e: &mut Emitter) {
    forward(Some(op.groups), op.epsilon, CStruct::new().u64s(&[0; 4]).f32(0.0), NormEpilogue::default(), e);
}

fn forward(groups: Option<usize>, epsilon: f32, running: CStruct, tail: NormEpilogue, e: &mut Emitter) {
    let (x, y) = (e.inputs[0].clone(), e.outputs[0].clone());
    let shape = NormShape::new(&x.shape, groups);
    if x.shape.elements() == 0 {
        return;
    }
    let [gamma, beta] = [e.inputs[1].address, e.inputs[2].address];
    let [mean, rstd] = [1, 2].map(|i| wanted_or_scratch(i, e));
    let variant = shape.variant().with("X", x.storage.name());
    let (partials, splits) = if shape.batch {
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
        .pointers(&[x.address, mean, rstd])
        .fields(running);
    e.kernel(variant.clone(), "moments", [shape.statistics().div_ceil(8), 1, 1], THREADS, 0, arguments);
    if y.wanted() {
        let residual = tail.residual.as_ref();
        let variant = variant
            .with("Y", y.storage.name())
            .with("R", residual.map_or(x.storage, |r| r.storage).name())
            .with("RELU", usize::from(tail.relu));
        let (each, splits) = shape.split(MANY);
        let arguments = KernelArguments::new()
            .pointers(&[x.address, gamma, beta, mean, rstd, residual.map_or(0, |r| r.address), y.address])
            .fields(shape.fields())
            .u32(each);
        e.kernel(variant, "normalise", [shape.blocks(), splits, 1], THREADS, 0, arguments);
    }
}

/// What the gradient of a norm's result went back through on its way.
enum ReluGrad {
    Nothing,
    /// A relu of the result itself, which had this `beta`.
    Relu(u64),
    /// A relu of the result and something else: what came out of it, a second gradient to add to the first, and where
    /// the gradient before the relu goes.
    Sum {
        result: Operand,
        more: Option<Operand>,
        passed: Operand,
    },
}

/// From `dy, x, gamma, mean, rstd` to `dx, dgamma, dbeta`; groups for a group norm's.
pub(super) fn backward(groups: Option<usize>, e: &mut Emitter) {
    backward_with(groups, ReluGrad::Nothing, e);
}

/// The gradient of a batch norm whose result went through a relu; `beta` is the sixth input.
pub(super) fn backward_of_relu(e: &mut Emitter) {
    let beta = e.inputs[5].address;
    backward_with(None, ReluGrad::Relu(beta), e);
}

/// The gradient of a batch norm whose result went through a relu together with something else. The relu's result is the
/// sixth input, a gradient to be added to `dy` the seventh if there is one; the relu's gradient is the fourth output.
pub(super) fn backward_of_sum(e: &mut Emitter) {
    let (result, more, passed) = (e.inputs[5].clone(), e.inputs.get(6).cloned(), e.outputs[3].clone());
    backward_with(None, ReluGrad::Sum { result, more, passed }, e);
}

fn backward_with(groups: Option<usize>, gate: ReluGrad, e: &mut Emitter) {
    let (mut dy, x, dx) = (e.inputs[0].clone(), e.inputs[1].clone(), e.outputs[0].clone());
    let shape = NormShape::new(&x.shape, groups);
    let [gamma, mean, rstd] = [2, 3, 4].map(|i| e.inputs[i].address);
    let [dgamma, dbeta] = [1, 2].map(|i| wanted_or_scratch(i, e));
    if x.shape.elements() == 0 {
        for to in [dgamma, dbeta] {
            e.requests.push(crate::run::launch::Request::Clear { to, bytes: 4 * shape.channels });
        }
        return;
    }
    let variant = shape.variant().with("X", x.storage.name());
    let whole = |e: &mut Emitter, (partials, splits): Partials, count: usize, first: u64, second: u64| {
        let arguments = KernelArguments::new().pointer(partials).u32(splits).u32(count).pointers(&[first, second]);
        e.kernel(variant.clone(), "whole_sums", [count.div_ceil(8), 1, 1], THREADS, 0, arguments);
    };
    let mut sums = variant.clone().with("DY", dy.storage.name());
    let (mut gates, mut beta, mut relu) = ([0; 3], 0, 0);
    match &gate {
        ReluGrad::Nothing => {}
        ReluGrad::Relu(of) => (beta, relu) = (*of, 1),
        ReluGrad::Sum { result, more, passed } => {
            relu = 2;
            gates = [result.address, more.as_ref().map_or(0, |m| m.address), passed.address];
            sums = sums
                .with("R", result.storage.name())
                .with("MORE", more.as_ref().map_or(dy.storage, |m| m.storage).name())
                .with("Y", passed.storage.name());
        }
    }
    let (each, splits) = shape.split(2 * e.multiprocessors);
    let partials = e.scratch(16 * splits * shape.channels);
    let arguments = KernelArguments::new()
        .pointers(&[x.address, dy.address, gamma, beta, mean, rstd, partials])
        .fields(shape.fields())
        .u32(each)
        .fields(gates.iter().fold(CStruct::new(), |fields, &address| fields.u64(address)));
    e.kernel(sums.with("RELU", relu), "channel_dots", [shape.blocks(), splits, 1], THREADS, 0, arguments);
    whole(e, (partials, splits), shape.channels, dbeta, dgamma);
    if !dx.wanted() {
        return;
    }
    if let ReluGrad::Sum { passed, .. } = gate {
        (dy, relu) = (passed, 0);
    }
    let (sum, dot) = if shape.batch {
        (dbeta, dgamma)
    } else {
        let [sum, dot] = [e.scratch(4 * shape.statistics()), e.scratch(4 * shape.statistics())];
        let variant = variant.clone().with("DY", dy.storage.name());
        let sums = group_sums(e, &variant, shape, [x.address, dy.address, gamma, mean, rstd]);
        whole(e, sums, shape.statistics(), sum, dot);
        (sum, dot)
    };
    let (each, splits) = shape.split(MANY);
    let arguments = KernelArguments::new()
        .pointers(&[x.address, dy.address, gamma, beta, mean, rstd, sum, dot])
        .f32(1.0 / shape.size() as f32)
        .pointer(dx.address)
        .fields(shape.fields())
        .u32(each);
    let variant = variant.clone().with("DY", dy.storage.name()).with("Y", dx.storage.name()).with("RELU", relu);
    e.kernel(variant, "normalise_grad", [shape.blocks(), splits, 1], THREADS, 0, arguments);
}

/// Where an f32 output goes that other kernels of the node read.
fn wanted_or_scratch(output: usize, e: &mut Emitter) -> u64 {
    let (address, count) = (e.outputs[output].address, e.outputs[output].shape.elements());
    if address != 0 { address } else { e.scratch(4 * count) }
}
