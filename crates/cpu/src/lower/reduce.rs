//! Sums and means over axes, in an order that only the shape decides.

use vit_graph::Type;
use vit_graph::ops::{Reduce, Reduction};

use super::Lowered;
use super::movement::Walk;
use crate::reduce::{column_sum, column_sum_workspace};

/// Partial sums of a long row, so that rounding errors do not pile up in one place and vectors can be used.
const LANES: usize = 16;

pub(super) fn reduce(op: &Reduce, x: &Type) -> Result<Lowered, String> {
    let factor = match op.reduction {
        Reduction::Sum => 1.0,
        Reduction::Mean => 1.0 / op.count(&x.shape) as f32,
    };
    let leading = op.axes.iter().enumerate().all(|(i, &axis)| i == axis);
    if leading && !op.axes.is_empty() && op.axes.len() < x.shape.len() {
        return Ok(columns(x, [0, op.axes.len()], factor));
    }
    // All axes between the first ones and the last: the pixels of a channels-last image.
    if let Some(&first) = op.axes.first()
        && op.axes.iter().enumerate().all(|(i, &axis)| first + i == axis)
        && first + op.axes.len() + 1 == x.shape.len()
    {
        return Ok(columns(x, [first, x.shape.len() - 1], factor));
    }
    let strides = x.shape.strides();
    let (mut kept, mut summed) = ((vec![], vec![]), (vec![], vec![]));
    for (axis, (&extent, &stride)) in x.shape.iter().zip(&strides).enumerate() {
        let (extents, strides) = if op.axes.contains(&axis) { &mut summed } else { &mut kept };
        extents.push(extent);
        strides.push(stride);
    }
    // A trailing axis of 1 turns every element into a row of its own, which `Walk` then numbers.
    let walk = |(mut extents, mut steps): (Vec<usize>, Vec<usize>)| {
        extents.push(1);
        steps.push(1);
        Walk::new(&extents, &steps, 0).map(|walk| (walk, extents.iter().product::<usize>()))
    };
    let last_is_summed = op.axes.last() == Some(&(x.shape.len().wrapping_sub(1)));
    if last_is_summed {
        let row = summed.0.pop().unwrap_or(1);
        summed.1.pop();
        let ((outer, _), (inner, count)) = (walk(kept)?, walk(summed)?);
        return Ok(Lowered::new(move |p, inputs, outputs, _| {
            p.pool.run_chunks(&mut *outputs[0], 64, &|chunk, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    let start = outer.row(chunk * 64 + i);
                    *out = factor * (0..count).map(|j| sum(&inputs[0][start + inner.row(j)..][..row])).sum::<f32>();
                }
            });
        }));
    }
    let row = kept.0.pop().unwrap_or(1);
    kept.1.pop();
    let ((outer, _), (inner, count)) = (walk(kept)?, walk(summed)?);
    Ok(Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], row.max(1), &|chunk, out| {
            let start = outer.row(chunk);
            out.fill(0.0);
            for j in 0..count {
                let x = &inputs[0][start + inner.row(j)..][..row];
                out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
            }
            out.iter_mut().for_each(|out| *out *= factor);
        });
    }))
}

/// Neighbouring axes from `first` to before `end` are summed, in each of the blocks that the axes before them number:
/// sums of columns.
fn columns(x: &Type, [first, end]: [usize; 2], factor: f32) -> Lowered {
    let rows = x.shape[first..end].iter().product();
    let columns: usize = x.shape[end..].iter().product();
    Lowered::new(move |p, inputs, outputs, workspace| {
        for (block, out) in outputs[0].chunks_exact_mut(columns.max(1)).enumerate() {
            let x = &inputs[0][block * rows * columns..][..rows * columns];
            column_sum(&p.pool, p.isa, rows, columns, x, out, workspace);
        }
        outputs[0].iter_mut().for_each(|out| *out *= factor);
    })
    .with_workspace(column_sum_workspace(rows, columns))
}

fn sum(row: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x);
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane += x);
    lanes.iter().sum()
}
