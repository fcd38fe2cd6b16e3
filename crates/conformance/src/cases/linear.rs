//! Linear layers and matrix products.

use vit_graph::ops::{Activation, Constant, Linear, LinearWithDerivative, MatMul, MatMulTimes};

use super::ACTIVATIONS;
use crate::build::{CaseBuilder, Outputs, Table, differentiable, first_differentiable, forward};

pub(super) fn table(t: &mut Table) {
    t.each("linear", [0, 1, 2], linear);
    t.each("fused linear", ACTIVATIONS.into_iter().map(Some).chain([None]), fused);
    t.each("linear with derivative", ACTIVATIONS, with_derivative);
    t.each("perceptron", ACTIVATIONS, perceptron);
    t.each("int8 linear", [None, Some(Activation::Gelu)], int8);
    t.each("matmul", [(false, false), (false, true), (true, false), (true, true)], matmul);
}

/// With this many axes before the rows.
fn linear(c: &mut CaseBuilder, leading: usize) -> Outputs {
    let (bias, k, n) = (c.rng.flip(), c.rng.wide(), c.rng.wide());
    let mut shape: Vec<usize> = (0..leading).map(|_| c.rng.extent()).collect();
    shape.push(k);
    let (x, w) = (c.float(shape), c.float([n, k]));
    let b = bias.then(|| c.float([n]));
    differentiable([x.linear(&w, b.as_ref())])
}

fn fused(c: &mut CaseBuilder, activation: Option<Activation>) -> Outputs {
    let op = Linear { bias: c.rng.flip(), activation, scale: c.rng.flip(), residual: c.rng.flip(), int8: false };
    let (rows, k, n) = (c.rng.extent(), c.rng.wide(), c.rng.wide());
    let mut others = vec![c.float([n, k])];
    others.extend(op.bias.then(|| c.float([n])));
    others.extend(op.scale.then(|| c.float([n])));
    others.extend(op.residual.then(|| c.float([rows, n])));
    forward([c.float([rows, k]).apply(op, &others.iter().collect::<Vec<_>>())])
}

fn with_derivative(c: &mut CaseBuilder, activation: Activation) -> Outputs {
    let (bias, rows, k, n) = (c.rng.flip(), c.rng.extent(), c.rng.wide(), c.rng.wide());
    let mut others = vec![c.float([n, k])];
    others.extend(bias.then(|| c.float([n])));
    let op = LinearWithDerivative { bias, activation };
    forward(c.float([rows, k]).apply_outputs(op, &others.iter().collect::<Vec<_>>(), 2))
}

/// Devices may keep the derivative of the activation and multiply by it in the backward pass.
fn perceptron(c: &mut CaseBuilder, activation: Activation) -> Outputs {
    let (bias, b, rows, k, n) = (c.rng.flip(), c.rng.extent(), c.rng.extent(), c.rng.wide(), c.rng.wide());
    let (x, up, down) = (c.float([b, rows, k]), c.float([n, k]), c.float([k, n]));
    let bias = bias.then(|| c.float([n]));
    let h = x.linear(&up, bias.as_ref()).activation(activation);
    differentiable([if c.rng.flip() { h.linear(&down, None) } else { h.scale(1.5) }])
}

fn int8(c: &mut CaseBuilder, activation: Option<Activation>) -> Outputs {
    let op = Linear { bias: c.rng.flip(), activation, residual: c.rng.flip(), int8: true, ..Linear::default() };
    let (rows, k, n) = (c.rng.extent(), c.rng.wide(), c.rng.wide());
    // A constant: devices may require weights that never change.
    let weight = (0..n * k).map(|_| c.rng.value() as f32).collect();
    let mut others = vec![c.seed.constant(Constant::f32([n, k], weight))];
    others.extend(op.bias.then(|| c.float([n])));
    others.extend(op.residual.then(|| c.float([rows, n])));
    forward([c.float([rows, k]).apply(op, &others.iter().collect::<Vec<_>>())])
}

fn matmul(c: &mut CaseBuilder, (transpose_a, transpose_b): (bool, bool)) -> Outputs {
    let (batched, b, i, j, k) = (c.rng.flip(), c.rng.extent(), c.rng.wide(), c.rng.wide(), c.rng.wide());
    let matrix = |transposed: bool, rows, columns| if transposed { [columns, rows] } else { [rows, columns] };
    let shape = |s: [usize; 2]| if batched { vec![b, s[0], s[1]] } else { s.to_vec() };
    let x = c.float(shape(matrix(transpose_a, i, k)));
    let y = c.float(shape(matrix(transpose_b, k, j)));
    let product = MatMul { transpose_a, transpose_b };
    let factor = c.float(shape([i, j]));
    let times = x.apply(MatMulTimes(product), &[&y, &factor]);
    first_differentiable([x.apply(product, &[&y]), times])
}
