//! Sums and means over axes, in an order that depends on the shape alone.

use vit_graph::Type;
use vit_graph::ops::{Reduce, Reduction};

use super::Lowered;
use super::movement::RowStrides;
use crate::reduce::{column_sum, column_sum_workspace};

/// Partial sums of a row: the compiler can use vectors, and rounding errors stay small.
const LANES: usize = 16;
/// Elements of the result in one task, where each is the sum of rows.
const TASK_SUMS: usize = 64;

pub(super) fn reduce(op: &Reduce, x: &Type) -> Result<Lowered, String> {
    let factor = match op.reduction {
        Reduction::Sum => 1.0,
        Reduction::Mean => 1.0 / op.count(&x.shape) as f32,
    };
    let leading = op.axes.iter().enumerate().all(|(i, &axis)| i == axis);
    if leading && !op.axes.is_empty() && op.axes.len() < x.shape.len() {
        return Ok(columns(x, [0, op.axes.len()], factor));
    }
    // Adjacent axes that end just before the last one: the pixels of a channels-last image.
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
    // A view whose `row(i)` is the offset of element `i` over some axes, and the number of elements: with a trailing
    // axis of 1, every row of the view is one element.
    let offsets_of = |(mut extents, mut strides): (Vec<usize>, Vec<usize>)| {
        extents.push(1);
        strides.push(1);
        RowStrides::new(&extents, &strides, 0).map(|view| (view, extents.iter().product::<usize>()))
    };
    let last_is_summed = op.axes.last() == Some(&(x.shape.len().wrapping_sub(1)));
    if last_is_summed {
        let row = summed.0.pop().unwrap_or(1);
        summed.1.pop();
        let ((kept, _), (summed, count)) = (offsets_of(kept)?, offsets_of(summed)?);
        return Ok(Lowered::new(move |p, inputs, outputs, _| {
            p.pool.run_chunks(&mut *outputs[0], TASK_SUMS, &|chunk, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    let start = kept.row(chunk * TASK_SUMS + i);
                    *out = factor * (0..count).map(|j| sum(&inputs[0][start + summed.row(j)..][..row])).sum::<f32>();
                }
            });
        }));
    }
    let row = kept.0.pop().unwrap_or(1);
    kept.1.pop();
    let ((kept, _), (summed, count)) = (offsets_of(kept)?, offsets_of(summed)?);
    Ok(Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], row.max(1), &|chunk, out| {
            let start = kept.row(chunk);
            out.fill(0.0);
            for j in 0..count {
                let x = &inputs[0][start + summed.row(j)..][..row];
                out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
            }
            out.iter_mut().for_each(|out| *out *= factor);
        });
    }))
}

/// Sums the axes from `first` to before `end`: column sums of a matrix for each index of the axes before them.
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
