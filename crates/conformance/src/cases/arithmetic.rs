//! Elementwise operations.

use vit_graph::ops::{Activation, Binary, Granularity};

use super::ACTIVATIONS;
use crate::build::{CaseBuilder, Outputs, Table, differentiable};

pub(super) fn table(t: &mut Table) {
    t.each("activation", ACTIVATIONS, activation);
    t.each("broadcasting arithmetic", [Binary::Add, Binary::Sub, Binary::Mul], binary);
    t.two("power", power);
    t.each("2-norm", [1.0, 0.0], norm);
    t.two("clamped exponential", clamped_exponential);
    t.each("dropout", [Granularity::Element, Granularity::Sample], dropout);
}

fn activation(c: &mut CaseBuilder, activation: Activation) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    differentiable([c.float(shape).scale(1.5).activation(activation)])
}

fn binary(c: &mut CaseBuilder, op: Binary) -> Outputs {
    let shape = [c.rng.extent(), c.rng.extent(), c.rng.wide()];
    let ([x, same], row) = (c.floats(shape), c.float([shape[2]]));
    let (one, column) = (c.float([1, shape[1], 1]), c.float([shape[0], 1, 1]));
    differentiable([x.apply(op, &[&same]), x.apply(op, &[&row]), one.apply(op, &[&x]), column.apply(op, &[&one])])
}

fn power(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    let x = c.float(shape);
    let positive = &(&x * &x) + &c.scalar(0.5);
    differentiable([-0.5, 0.5, -1.0, 1.7].map(|p| positive.power(p)))
}

/// The norm of zeros has a gradient: 0.
fn norm(c: &mut CaseBuilder, factor: f32) -> Outputs {
    let shape = [c.rng.extent(), c.rng.extent(), c.rng.wide()];
    let x = c.float(shape).scale(factor);
    differentiable([(&x * &x).sum([1]).sqrt()])
}

/// The scale of cosine attention (Swin V2).
fn clamped_exponential(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    let x = c.float(shape);
    differentiable([x.at_most(0.25).exp(), x.exp()])
}

fn dropout(c: &mut CaseBuilder, granularity: Granularity) -> Outputs {
    let shape = [c.rng.extent(), c.rng.extent(), c.rng.wide()];
    differentiable([c.float(shape).dropout(0.4, granularity, &c.seed)])
}
