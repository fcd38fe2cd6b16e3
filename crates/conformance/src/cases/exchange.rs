//! Sums over parts and processes; a device under test is the only process.

use vit_graph::ops::{AllReduce, PartSum};

use crate::build::{CaseBuilder, Outputs, Table, forward};

pub(super) fn table(t: &mut Table) {
    t.two("part_sums", part_sums);
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
