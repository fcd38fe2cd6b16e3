//! Losses.

use vit_graph::ops::{CrossEntropy, OneHotMax, SigmoidCrossEntropy, SquaredError};

use crate::build::{CaseBuilder, Outputs, Table, differentiable, first_differentiable};

pub(super) fn table(t: &mut Table) {
    t.one("cross_entropy", cross_entropy);
    t.one("sigmoid_cross_entropy, one_hot_max", sigmoid_cross_entropy);
    t.one("squared_error", squared_error);
}

fn cross_entropy(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    let targets = c.constant(shape);
    differentiable([c.float(shape).apply(CrossEntropy, &[&targets])])
}

fn sigmoid_cross_entropy(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    let targets = c.constant(shape).apply(OneHotMax, &[]);
    // Wide enough to saturate the sigmoid.
    let logits = c.float(shape).scale(9.0);
    first_differentiable([logits.apply(SigmoidCrossEntropy, &[&targets]), targets])
}

fn squared_error(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    let targets = c.constant(shape);
    differentiable([c.float(shape).apply(SquaredError, &[&targets])])
}
