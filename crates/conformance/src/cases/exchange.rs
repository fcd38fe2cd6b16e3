//! Sums over parts and processes; a device under test is the only process.

use vit_graph::ops::{AllGather, AllReduce, NormOfSums, PartSum, ReduceScatter, Shards, SquareSums};

use crate::build::{CaseBuilder, Outputs, Table, forward};

pub(super) fn table(t: &mut Table) {
    t.two("part_sums", part_sums);
    t.two("slices", slices);
}

/// Gradients of three parts, added and exchanged, one of them the result of a matrix product, with further consumers.
fn part_sums(c: &mut CaseBuilder) -> Outputs {
    let (rows, columns, inner) = (c.rng.extent(), c.rng.pick(&[1, 7, 33, 1500]), c.rng.extent());
    let (x, w) = (c.float([rows, inner]), c.float([columns, inner]));
    let [a, b] = c.floats([rows, columns]);
    let sum = a.apply(PartSum, &[&b]).apply(PartSum, &[&x.linear(&w, None)]);
    let all = sum.apply(AllReduce, &[]);
    let scaled = &all * &c.scalar(0.5);
    forward([all, scaled])
}

/// Sums of one process, which has the only slice of every value, and their norm.
fn slices(c: &mut CaseBuilder) -> Outputs {
    let (rows, columns) = (c.rng.extent(), c.rng.pick(&[1, 7, 33, 1500]));
    let (x, w) = (c.float([rows, columns]), c.float([columns, columns]));
    let shards = Shards { rank: 0, lengths: vec![rows * columns] };
    let sum = x.apply(ReduceScatter(shards.clone()), &[]);
    let norm = sum.apply(SquareSums, &[]).apply(NormOfSums, &[&x.apply(SquareSums, &[])]);
    let slice = sum.reshape([rows * columns]);
    let whole = slice.apply(AllGather { shape: [rows, columns].into(), shards }, &[]);
    forward([whole.linear(&w, None), whole, norm])
}
