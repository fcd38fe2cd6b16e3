//! Rotary position embedding.

use vit_graph::ops::{Rotary, RotaryPairs};

use crate::build::{CaseBuilder, Outputs, Table, differentiable, forward};

pub(super) fn table(t: &mut Table) {
    let pairs = [RotaryPairs::Adjacent, RotaryPairs::Halves];
    t.each("rotary", pairs, rotary);
    t.each("rotary in place", pairs, in_place);
    t.each("rotary with learned frequencies", pairs, learned);
    t.one("uniform", uniform);
}

/// One group of angles for all heads, or one for each.
fn op(c: &mut CaseBuilder, pairs: RotaryPairs) -> (Rotary, usize) {
    let groups = c.rng.pick(&[1, 1, 2, 3]);
    (Rotary { heads: groups * c.rng.pick(&[1, 2, 4]), pairs, inverse: c.rng.flip() }, groups)
}

fn rotary(c: &mut CaseBuilder, pairs: RotaryPairs) -> Outputs {
    let (op, groups) = op(c, pairs);
    let r = &mut c.rng;
    let (half, others, prefix, positions) =
        (r.pick(&[1, 3, 4, 8, 12, 32, 33]), r.pick(&[0, 1, 2]), r.pick(&[0, 1, 5]), r.extent());
    let (batch, width) = (r.pick(&[1, 2, 9]), (op.heads + others) * 2 * half);
    let (x, tables) = (c.float([batch, prefix + positions, width]), c.floats([groups, positions, half]));
    differentiable([x.rotary(op, &tables)])
}

/// The rotated value has no other consumer, so that a device may overwrite it.
fn in_place(c: &mut CaseBuilder, pairs: RotaryPairs) -> Outputs {
    let (op, groups) = op(c, pairs);
    let (half, positions) = (c.rng.pick(&[2, 8, 32]), c.rng.extent());
    let width = (op.heads + 2) * 2 * half;
    let (x, coordinates) = (c.float([3, 2 + positions, width]), c.constant([positions, 2]));
    let tables = coordinates.rotary_tables(&c.constant([2, groups, half]));
    differentiable([x.scale(0.5).rotary(op, &tables).scale(2.0)])
}

fn learned(c: &mut CaseBuilder, pairs: RotaryPairs) -> Outputs {
    let (op, groups) = op(c, pairs);
    let (half, positions, axes) = (c.rng.pick(&[1, 6, 8, 32, 40]), c.rng.extent(), c.rng.pick(&[1, 2, 3]));
    let (x, frequencies) = (c.float([4, 1 + positions, op.heads * 2 * half]), c.float([axes, groups, half]));
    let tables = c.constant([positions, axes]).rotary_tables(&frequencies);
    let [cos, sin] = tables.clone();
    differentiable([x.rotary(op, &tables), cos, sin])
}

fn uniform(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    forward([c.seed.uniform(shape, -0.5, 2.0)])
}
