//! Operations that only move elements; permute, slice and broadcast are one strided copy.

use vit_graph::ops::{AllGather, Broadcast, Concat, Pad, Permute, Slice};
use vit_graph::{Shape, Type};

use super::{Lowered, TASK};

/// Axes of [`RowStrides`], a fixed number so that it needs no allocation.
const MAX_AXES: usize = 8;

/// A strided view `[rows, row]`: the last axis is the row, and the others are addressed as one index of a row. The
/// stride of a broadcast axis is 0.
#[derive(Clone, Copy)]
pub(super) struct RowStrides {
    axes: usize,
    extents: [usize; MAX_AXES],
    strides: [usize; MAX_AXES],
    inner: usize,
    /// The offset of the first element.
    offset: usize,
}

impl RowStrides {
    pub fn new(shape: &[usize], strides: &[usize], offset: usize) -> Result<Self, String> {
        let axes = shape.len().saturating_sub(1);
        if axes > MAX_AXES {
            return Err(format!("{} axes are more than {}", shape.len(), MAX_AXES + 1));
        }
        let mut view = RowStrides { axes, extents: [1; MAX_AXES], strides: [0; MAX_AXES], inner: 1, offset };
        view.extents[..axes].copy_from_slice(&shape[..axes]);
        view.strides[..axes].copy_from_slice(&strides[..axes]);
        view.inner = strides.last().copied().unwrap_or(1);
        Ok(view)
    }

    /// A tensor broadcast to `shape`.
    pub fn broadcast(value: &Shape, shape: &Shape) -> Result<Self, String> {
        RowStrides::new(shape, &value.broadcast_strides(shape), 0)
    }

    /// The offset of the first element of row `index`.
    pub fn row(&self, mut index: usize) -> usize {
        let mut offset = self.offset;
        for axis in (0..self.axes).rev() {
            offset += index % self.extents[axis] * self.strides[axis];
            index /= self.extents[axis];
        }
        offset
    }

    /// The stride between the elements of a row.
    pub fn inner(&self) -> usize {
        self.inner
    }
}

/// Copies this process's slice to its place in the whole value; the executable then receives the other slices.
pub(super) fn own_slice(op: &AllGather) -> Lowered {
    let own = op.shards.own();
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut outputs[0][own.clone()], TASK, &|task, to| {
            to.copy_from_slice(&inputs[0][task * TASK..][..to.len()]);
        });
    })
}

/// Copies an input, read through a view of this shape, to a dense output.
fn strided_copy(shape: &Shape, view: RowStrides) -> Lowered {
    let row = shape.last().max(1);
    let rows_per_task = TASK.div_ceil(row);
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(&mut *outputs[0], rows_per_task * row, &|chunk, out| {
            for (i, out) in out.chunks_exact_mut(row).enumerate() {
                let start = view.row(chunk * rows_per_task + i);
                match view.inner() {
                    1 => out.copy_from_slice(&inputs[0][start..][..row]),
                    0 => out.fill(inputs[0][start]),
                    step => out.iter_mut().enumerate().for_each(|(j, out)| *out = inputs[0][start + j * step]),
                }
            }
        });
    })
}

pub(super) fn permute(op: &Permute, x: &Type) -> Result<Lowered, String> {
    let strides = x.shape.strides();
    let shape: Vec<usize> = op.0.iter().map(|&axis| x.shape[axis]).collect();
    let view = RowStrides::new(&shape, &op.0.iter().map(|&axis| strides[axis]).collect::<Vec<_>>(), 0)?;
    Ok(strided_copy(&Shape::from(shape), view))
}

pub(super) fn broadcast(op: &Broadcast, x: &Type) -> Result<Lowered, String> {
    Ok(strided_copy(&op.0, RowStrides::broadcast(&x.shape, &op.0)?))
}

pub(super) fn slice(op: &Slice, x: &Type) -> Result<Lowered, String> {
    let strides = x.shape.strides();
    let shape = x.shape.with(op.axis, op.length);
    Ok(strided_copy(&shape, RowStrides::new(&shape, &strides, op.start * strides[op.axis])?))
}

/// The products of the extents before and after an axis.
fn around(shape: &Shape, axis: usize) -> (usize, usize) {
    (shape[..axis].iter().product(), shape[axis + 1..].iter().product())
}

pub(super) fn pad(op: &Pad, x: &Type, y: &Type) -> Lowered {
    let (outer, inner) = around(&y.shape, op.axis);
    let (x_block, y_block) = (x.shape[op.axis] * inner, y.shape[op.axis] * inner);
    let before = op.before * inner;
    Lowered::new(move |_, inputs, outputs, _| {
        outputs[0].fill(0.0);
        for o in 0..outer {
            outputs[0][o * y_block + before..][..x_block].copy_from_slice(&inputs[0][o * x_block..][..x_block]);
        }
    })
}

pub(super) fn concat(op: &Concat, inputs: &[Type], y: &Type) -> Lowered {
    let (outer, inner) = around(&y.shape, op.axis);
    let blocks: Vec<usize> = inputs.iter().map(|x| x.shape[op.axis] * inner).collect();
    let stride = y.shape[op.axis] * inner;
    Lowered::new(move |_, inputs, outputs, _| {
        for o in 0..outer {
            let mut offset = o * stride;
            for (input, &block) in inputs.iter().zip(&blocks) {
                outputs[0][offset..][..block].copy_from_slice(&input[o * block..][..block]);
                offset += block;
            }
        }
    })
}
