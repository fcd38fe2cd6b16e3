//! Operations that move elements, and reductions.

use vit_graph::ops::{Constant, Pad};
use vit_graph::{Shape, Tensor};

use crate::build::{CaseBuilder, Outputs, Table, differentiable};

pub(super) fn table(t: &mut Table) {
    t.two("permute", permute);
    t.two("slice, pad, concat", slice_pad_concat);
    t.two("gather", gather);
    t.two("sum, mean, broadcast, reshape", reduce_broadcast);
    t.two("gather, wide rows", gather_wide);
}

fn permute(c: &mut CaseBuilder) -> Outputs {
    let shape = [(); 4].map(|()| c.rng.extent());
    let order = c.rng.pick(&[[0, 2, 3, 1], [3, 1, 0, 2], [0, 2, 1, 3], [1, 0, 2, 3]]);
    differentiable([c.float(shape).permute(order.to_vec())])
}

fn slice_pad_concat(c: &mut CaseBuilder) -> Outputs {
    let axis = c.rng.pick(&[0, 1, 2]);
    let shape = Shape::from([(); 3].map(|()| c.rng.extent())).with(axis, 5);
    let x = c.float(shape.clone());
    let slice = x.slice(axis, 1, 3);
    let padded = slice.apply(Pad { axis, before: 2, after: 1 }, &[]);
    let extra = c.float(shape.with(axis, 2));
    differentiable([Tensor::concat(&[&x, &slice, &extra], axis), padded])
}

fn gather(c: &mut CaseBuilder) -> Outputs {
    let (rows, inner, count) = (c.rng.extent(), c.rng.extent(), c.rng.wide());
    gathered(c, rows, inner, count)
}

/// As from a vocabulary: more indices than a block has threads, some rows often and some never.
fn gather_wide(c: &mut CaseBuilder) -> Outputs {
    let (rows, inner) = (c.rng.pick(&[3, 40]), c.rng.pick(&[128, 300]));
    gathered(c, rows, inner, 290)
}

fn gathered(c: &mut CaseBuilder, rows: usize, inner: usize, count: usize) -> Outputs {
    let indices = (0..count).map(|_| (c.rng.word() as usize % rows) as i32).collect();
    let indices = c.seed.constant(Constant::i32([count], indices));
    differentiable([c.float([rows, inner]).gather(&indices)])
}

fn reduce_broadcast(c: &mut CaseBuilder) -> Outputs {
    let shape = [(); 3].map(|()| c.rng.extent());
    let axes: &[usize] = c.rng.pick(&[&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[0, 1, 2], &[1, 2]]);
    let x = c.float(shape);
    let y = c.float([1, shape[1], 1]).broadcast(shape).reshape([shape[0] * shape[1], shape[2]]);
    differentiable([x.sum(axes.to_vec()), x.mean(axes.to_vec()), y])
}
