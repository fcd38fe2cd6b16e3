//! Elementwise operations: [`elementwise`] and [`elementwise2`] turn a function of elements into a kernel.

use vit_graph::Type;
use vit_graph::ops::{Binary, Unary};

use super::movement::RowStrides;
use super::{Lowered, TASK};

/// `f` of every element.
pub(super) fn elementwise(f: impl Fn(f32) -> f32 + Copy + Send + Sync + 'static) -> Lowered {
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], TASK, &|chunk, out| {
            let x = &inputs[0][chunk * TASK..][..out.len()];
            out.iter_mut().zip(x).for_each(|(out, x)| *out = f(*x));
        });
    })
}

pub(super) fn scale(factor: f32) -> Lowered {
    elementwise(move |x| factor * x)
}

pub(super) fn unary(op: Unary) -> Lowered {
    match op {
        // Hardware instructions, where `powf` is a library call. With exponents of ±0.5 they differ from it at -0 (in
        // the sign) and at -∞ (NaN), of which no model computes the root.
        Unary::Power(-0.5) => elementwise(|x| 1.0 / x.sqrt()),
        Unary::Power(0.5) => elementwise(f32::sqrt),
        Unary::Power(-1.0) => elementwise(|x| 1.0 / x),
        Unary::Power(exponent) => elementwise(move |x| x.powf(exponent)),
        Unary::Sqrt => elementwise(f32::sqrt),
        Unary::SqrtDerivative => elementwise(|x| if x == 0.0 { 0.0 } else { 0.5 / x.sqrt() }),
        Unary::Exp => elementwise(f32::exp),
        // A NaN is not greater than the limit, and is kept.
        Unary::AtMost(limit) => elementwise(move |x| if x > limit { limit } else { x }),
        Unary::AtMostDerivative(limit) => elementwise(move |x| match x {
            x if x > limit => 0.0,
            x if x.is_nan() => x,
            _ => 1.0,
        }),
    }
}

pub(super) fn binary(op: Binary, inputs: &[Type], output: &Type) -> Result<Lowered, String> {
    match op {
        Binary::Add => elementwise2(|a, b| a + b, inputs, output),
        Binary::Sub => elementwise2(|a, b| a - b, inputs, output),
        Binary::Mul => elementwise2(|a, b| a * b, inputs, output),
    }
}

/// `f` of the elements of two inputs that are broadcast to the shape of the output.
pub(super) fn elementwise2(
    f: impl Fn(f32, f32) -> f32 + Copy + Send + Sync + 'static,
    inputs: &[Type],
    output: &Type,
) -> Result<Lowered, String> {
    if inputs[0].shape == inputs[1].shape {
        return Ok(Lowered::new(move |p, inputs, outputs, _| {
            p.pool.run_chunks(&mut *outputs[0], TASK, &|chunk, out| {
                let (a, b) = (&inputs[0][chunk * TASK..][..out.len()], &inputs[1][chunk * TASK..][..out.len()]);
                out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out = f(*a, *b));
            });
        }));
    }
    let shape = &output.shape;
    let (a, b) = (RowStrides::broadcast(&inputs[0].shape, shape)?, RowStrides::broadcast(&inputs[1].shape, shape)?);
    let row = shape.last().max(1);
    let rows_per_task = TASK.div_ceil(row);
    Ok(Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], rows_per_task * row, &|chunk, out| {
            for (i, out) in out.chunks_exact_mut(row).enumerate() {
                let index = chunk * rows_per_task + i;
                let (a_at, b_at) = (a.row(index), b.row(index));
                // Along a row the stride is 1, or 0 where the element is broadcast. Both are 0 only if a row is one
                // element.
                match (a.inner(), b.inner()) {
                    (1, 1) => {
                        let (x, y) = (&inputs[0][a_at..][..row], &inputs[1][b_at..][..row]);
                        out.iter_mut().zip(x.iter().zip(y)).for_each(|(out, (x, y))| *out = f(*x, *y));
                    }
                    (1, 0) => {
                        let (x, y) = (&inputs[0][a_at..][..row], inputs[1][b_at]);
                        out.iter_mut().zip(x).for_each(|(out, x)| *out = f(*x, y));
                    }
                    (0, 1) => {
                        let (x, y) = (inputs[0][a_at], &inputs[1][b_at..][..row]);
                        out.iter_mut().zip(y).for_each(|(out, y)| *out = f(x, *y));
                    }
                    _ => out.fill(f(inputs[0][a_at], inputs[1][b_at])),
                }
            }
        });
    }))
}
