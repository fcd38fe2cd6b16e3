//! Sums and means over axes.

use vit_graph::ops::{Reduce, Reduction};

use super::movement::{MAX_AXES, collapse};
use super::{Emitter, Operand, THREADS, vector_width};
use crate::compile::{self, KernelVariant};
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::Request;

/// The largest z extent of a grid.
const MAX_OUTER: usize = 65535;

/// Results of a block where a warp computes one.
const WARPS: usize = THREADS / 32;

pub(super) fn reduce(op: &Reduce, e: &mut Emitter) -> Result<(), String> {
    let (x, y) = (e.inputs[0].clone(), e.outputs[0].clone());
    let count = op.count(&x.shape);
    let results = y.shape.elements();
    let factor = match op.reduction {
        Reduction::Sum => 1.0,
        Reduction::Mean => 1.0 / count as f32,
    };
    if results == 0 {
        return Ok(());
    }
    if count == 0 {
        e.requests.push(Request::Clear { to: y.address, bytes: results * y.storage.bytes() });
        return Ok(());
    }
    // A summed axis has stride 0 in the result, so that kept and summed axes are never merged.
    let kept = op.kept(&x.shape);
    let to = kept.broadcast_strides(&x.shape);
    let (extents, [from, to]) = collapse(&x.shape, [x.shape.strides(), to])?;
    let summed: Vec<bool> = to.iter().map(|&stride| stride == 0).collect();
    match summed.iter().position(|&s| s) {
        Some(axis)
            if summed.iter().filter(|s| **s).count() == 1 && extents[..axis].iter().product::<usize>() <= MAX_OUTER =>
        {
            let outer: usize = extents[..axis].iter().product();
            let inner: usize = extents[axis + 1..].iter().product();
            if inner == 1 {
                sum_rows(e, &x, &y, outer, count, factor);
            } else {
                sum_columns(e, &x, &y, [outer, count, inner], factor);
            }
        }
        // Only axes of extent 1 are summed.
        None => sum_rows(e, &x, &y, results, 1, factor),
        _ => {
            let padded = |of_summed: bool, list: &[usize]| {
                let mut axes: Vec<usize> =
                    list.iter().zip(&summed).filter(|(_, s)| **s == of_summed).map(|(n, _)| *n).collect();
                axes.resize(MAX_AXES, 0);
                axes
            };
            let summed_axes = summed.iter().filter(|s| **s).count();
            let strides = CStruct::new()
                .u32(summed.len() - summed_axes)
                .u32(summed_axes)
                .u32s(&padded(false, &extents))
                .u32s(&padded(true, &extents))
                .u64s(&padded(false, &from))
                .u64s(&padded(true, &from));
            let arguments = KernelArguments::new()
                .pointer(x.address)
                .pointer(y.address)
                .fields(strides)
                .u64(results)
                .u64(count)
                .f32(factor);
            e.kernel(variant(&x, y.storage), "sum_strided", [results.div_ceil(WARPS), 1, 1], THREADS, 0, arguments);
        }
    }
    Ok(())
}

fn variant(x: &Operand, y: Storage) -> KernelVariant {
    KernelVariant::new(&compile::REDUCE).with("X", x.storage.name()).with("Y", y.name())
}

/// `factor` times the sum of each row of x `[rows, count]`.
fn sum_rows(e: &mut Emitter, x: &Operand, y: &Operand, rows: usize, count: usize, factor: f32) {
    let arguments = KernelArguments::new().pointer(x.address).pointer(y.address).u64(rows).u64(count).f32(factor);
    e.kernel(variant(x, y.storage), "sum_rows", [rows.div_ceil(WARPS), 1, 1], THREADS, 0, arguments);
}

/// The rows of a matrix divided among blocks for its column sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowSplits {
    pub count: usize,
    pub rows_per_split: usize,
}

impl RowSplits {
    /// For blocks of `block_columns` columns each: about eight blocks of 256 threads per multiprocessor, which is one
    /// full wave, with at least 64 rows each.
    pub fn new(e: &Emitter, rows: usize, columns: usize, block_columns: usize) -> Self {
        let splits = (8 * e.multiprocessors / columns.div_ceil(block_columns).max(1)).max(1);
        let rows_per_split = rows.div_ceil(splits).max(64);
        RowSplits { count: rows.div_ceil(rows_per_split), rows_per_split }
    }
}

/// `factor` times the sums of x `[outer, count, inner]` over the middle axis, in two stages where one would leave
/// multiprocessors idle.
fn sum_columns(e: &mut Emitter, x: &Operand, y: &Operand, extents: [usize; 3], factor: f32) {
    let [outer, count, inner] = extents;
    let splits = RowSplits::new(e, count, outer * inner, block_columns(inner));
    if splits.count == 1 {
        launch_sum_columns(e, variant(x, y.storage), [x.address, y.address], extents, splits, factor);
        return;
    }
    let partials = e.scratch(4 * splits.count * outer * inner);
    launch_sum_columns(e, variant(x, Storage::F32), [x.address, partials], extents, splits, 1.0);
    sum_splits(e, partials, y, splits.count, factor);
}

/// `factor` times the sums of the f32 partials `[count, results]` of a first stage.
pub(super) fn sum_splits(e: &mut Emitter, partials: u64, y: &Operand, count: usize, factor: f32) {
    let variant = KernelVariant::new(&compile::REDUCE).with("X", "float").with("Y", y.storage.name());
    let extents = [1, count, y.shape.elements()];
    launch_sum_columns(
        e,
        variant,
        [partials, y.address],
        extents,
        RowSplits { count: 1, rows_per_split: count },
        factor,
    );
}

/// Launches the kernel `sum_columns` of x `[outer, count, inner]`, to `[splits, outer, inner]`.
fn launch_sum_columns(
    e: &mut Emitter,
    variant: KernelVariant,
    [from, to]: [u64; 2],
    [outer, count, inner]: [usize; 3],
    splits: RowSplits,
    factor: f32,
) {
    let grid = [inner.div_ceil(block_columns(inner)), splits.count, outer];
    let arguments =
        KernelArguments::new().pointer(from).pointer(to).u32(count).u64(inner).u32(splits.rows_per_split).f32(factor);
    e.kernel(variant.with("VEC", vector_width(&[inner])), "sum_columns", grid, THREADS, 0, arguments);
}

/// The columns of a block: `COLUMNS` of the kernel.
fn block_columns(inner: usize) -> usize {
    let vec = vector_width(&[inner]);
    vec * (32 / vec).max(8)
}
