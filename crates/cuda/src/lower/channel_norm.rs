//! Batch and group norms of channels-last images.

use vit_graph::ops::{BatchNorm, GroupNorm};

use super::{Emitter, THREADS};
use crate::compiler::{self, Variant};
use crate::fields::{Arguments, Fields};

/// How elements share statistics.
#[derive(Clone, Copy)]
struct Cut {
    /// Whether statistics belong to a channel of the whole batch.
    batch: bool,
    rows: usize,
    channels: usize,
    /// Rows of a sample.
    pixels: usize,
    groups: usize,
}

impl Cut {
    /// Without groups, a batch norm's.
    fn new(shape: &[usize], groups: Option<usize>) -> Self {
        let channels = shape[shape.len() - 1];
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let pixels = rows / shape[0].max(1);
        Cut { batch: groups.is_none(), rows, channels, pixels, groups: groups.unwrap_or(1) }
    }

    fn fields(&self) -> Fields {
        Fields::new().u64(self.rows as u64).u32s(&[self.channels, self.pixels, self.groups])
    }

    /// How many statistics there are.
    fn statistics(&self) -> usize {
        if self.batch { self.channels } else { self.rows / self.pixels.max(1) * self.groups }
    }

    /// How many elements have theirs in common.
    fn size(&self) -> usize {
        if self.batch { self.rows } else { self.pixels * self.channels / self.groups }
    }
}

/// `count` things in parts of at least `least`, so that `wanted` parts or fewer come out.
fn split(count: usize, wanted: usize, least: usize) -> (usize, usize) {
    let each = count.div_ceil(wanted.max(1)).max(least);
    (each, count.div_ceil(each).max(1))
}

/// Two sums for every channel: of x and x², or of dy and dy · normed. Gives the partial sums and their splits.
fn channel_sums(e: &mut Emitter, variant: &Variant, cut: Cut, pointers: [u64; 4]) -> (u64, usize) {
    let blocks = cut.channels.div_ceil(32);
    let (each, splits) = split(cut.rows, (8 * e.multiprocessors).div_ceil(blocks), 64);
    let partials = e.scratch(16 * splits * cut.channels);
    let arguments = Arguments::new().pointers(&pointers).pointer(partials).fields(cut.fields()).u32(each);
    e.kernel(variant.clone(), "channel_sums", [blocks, splits, 1], THREADS, 0, arguments);
    (partials, splits)
}

/// Two sums for every group: of x and x², or of dy · gamma and dy · gamma · normed.
fn group_sums(e: &mut Emitter, variant: &Variant, cut: Cut, pointers: [u64; 5]) -> (u64, usize) {
    let (each, splits) = split(cut.size(), (8 * e.multiprocessors).div_ceil(cut.statistics()), 2048);
    let partials = e.scratch(16 * splits * cut.statistics());
    let arguments = Arguments::new().pointers(&pointers).pointer(partials).fields(cut.fields()).u32(each);
    e.kernel(variant.clone(), "group_sums", [cut.statistics(), splits, 1], THREADS, 0, arguments);
    (partials, splits)
}

pub(super) fn batch(op: &BatchNorm, e: &mut Emitter) {
    let places = [e.inputs[3].address, e.inputs[4].address, e.outputs[3].address, e.outputs[4].address];
    let running = places.iter().fold(Fields::new(), |fields, &place| fields.u64(place)).f32(op.momentum);
    forward(None, op.epsilon, running, e);
}

pub(super) fn group(op: &GroupNorm, e: &mut Emitter) {
    forward(Some(op.groups), op.epsilon, Fields::new().u64s(&[0; 4]).f32(0.0), e);
}

fn forward(groups: Option<usize>, epsilon: f32, running: Fields, e: &mut Emitter) {
    let (x, y) = (e.inputs[0].clone(), e.outputs[0].clone());
    let cut = Cut::new(&x.shape, groups);
    if x.shape.elements() == 0 {
        return;
    }
    let [gamma, beta] = [e.inputs[1].address, e.inputs[2].address];
    let [mean, rstd] = [1, 2].map(|i| wanted_or_scratch(i, e));
    let variant = Variant::new(&compiler::CHANNEL_NORM)
        .with("BATCH", usize::from(cut.batch))
        .with("X", x.storage.name())
        .with("Y", y.storage.name());
    let (partials, splits) = if cut.batch {
        channel_sums(e, &variant, cut, [x.address, 0, 0, 0])
    } else {
        group_sums(e, &variant, cut, [x.address, 0, 0, 0, 0])
    };
    let arguments = Arguments::new()
        .pointer(partials)
        .u32(splits)
        .u32(cut.statistics())
        .u64(cut.size())
        .f32(epsilon)
        .pointers(&[mean, rstd])
        .fields(running);
    e.spread(variant.clone(), "moments", cut.statistics(), 1, arguments);
    if y.wanted() {
        let arguments =
            Arguments::new().pointers(&[x.address, gamma, beta, mean, rstd, y.address]).fields(cut.fields());
        e.spread(variant, "normalise", y.shape.elements(), 1, arguments);
    }
}

/// From `dy, x, gamma, mean, rstd` to `dx, dgamma, dbeta`; groups for a group norm's.
pub(super) fn backward(groups: Option<usize>, e: &mut Emitter) {
    let (dy, x, dx) = (e.inputs[0].clone(), e.inputs[1].clone(), e.outputs[0].clone());
    let cut = Cut::new(&x.shape, groups);
    let [gamma, mean, rstd] = [2, 3, 4].map(|i| e.inputs[i].address);
    let [dgamma, dbeta] = [1, 2].map(|i| wanted_or_scratch(i, e));
    if x.shape.elements() == 0 {
        for to in [dgamma, dbeta] {
            e.requests.push(crate::launch::Request::Clear { to, bytes: 4 * cut.channels });
        }
        return;
    }
    let variant = Variant::new(&compiler::CHANNEL_NORM)
        .with("BATCH", usize::from(cut.batch))
        .with("X", x.storage.name())
        .with("DY", dy.storage.name())
        .with("Y", dx.storage.name());
    let whole = |e: &mut Emitter, (partials, splits): (u64, usize), count: usize, first: u64, second: u64| {
        let arguments = Arguments::new().pointer(partials).u32(splits).u32(count).pointers(&[first, second]);
        e.spread(variant.clone(), "whole_sums", count, 1, arguments);
    };
    let sums = channel_sums(e, &variant, cut, [x.address, dy.address, mean, rstd]);
    whole(e, sums, cut.channels, dbeta, dgamma);
    if !dx.wanted() {
        return;
    }
    let (sum, dot) = if cut.batch {
        (dbeta, dgamma)
    } else {
        let [sum, dot] = [e.scratch(4 * cut.statistics()), e.scratch(4 * cut.statistics())];
        let sums = group_sums(e, &variant, cut, [x.address, dy.address, gamma, mean, rstd]);
        whole(e, sums, cut.statistics(), sum, dot);
        (sum, dot)
    };
    let arguments = Arguments::new()
        .pointers(&[x.address, dy.address, gamma, mean, rstd, sum, dot])
        .f32(1.0 / cut.size() as f32)
        .pointer(dx.address)
        .fields(cut.fields());
    e.spread(variant, "normalise_grad", dx.shape.elements(), 1, arguments);
}

/// Where an f32 output goes that other kernels of the node read.
fn wanted_or_scratch(output: usize, e: &mut Emitter) -> u64 {
    let (address, count) = (e.outputs[output].address, e.outputs[output].shape.elements());
    if address != 0 { address } else { e.scratch(4 * count) }
}
