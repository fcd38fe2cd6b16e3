//! Layer and RMS norms.

use vit_graph::Shape;
use vit_graph::ops::{Dropout, LayerNorm, LayerNormGrad};

use super::{Emitter, THREADS, rows};
use crate::compile::{self, KernelVariant};
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};

/// Threads of a row, with at most 32 elements each up to 32,768: part of a warp for short rows, a warp for up to 1024
/// elements, a block for more.
fn lanes(dim: usize) -> usize {
    dim.div_ceil(32).next_power_of_two().clamp(8, 1024)
}

/// Rows of a group, which a block computes at a time, with 128 threads unless a row needs more: `ROWS` of the kernel.
fn group_rows(lanes: usize) -> usize {
    if lanes <= 32 { 128 / lanes } else { 1 }
}

/// The most groups of rows that a block of the forward pass computes one after the other, to load gamma and beta once.
const MAX_GROUPS: usize = 8;

/// Blocks of the backward pass per multiprocessor: a multiple of the two or three that are resident at a time, so that
/// the last wave is full.
const BLOCKS_PER_SM: usize = 6;

/// `StochasticDepth` of the kernels: mask, rows of a sample and address of the seed.
fn stochastic_depth(drop: Option<(Dropout, u64)>, shape: &Shape) -> CStruct {
    let rows = shape.rows() / shape.first().copied().unwrap_or(1).max(1);
    match drop {
        Some((op, seed)) => rows::mask(op).u32(rows.max(1)).u64(seed),
        None => CStruct::new().u32s(&[0, 0]).f32(1.0).u32(1).u64(0),
    }
}

/// The norm of the first input.
pub(super) fn layer_norm(op: &LayerNorm, e: &mut Emitter) {
    forward(op, false, None, e);
}

/// The norm of the sum of the first two inputs.
pub(super) fn add_layer_norm(op: &LayerNorm, e: &mut Emitter) {
    forward(op, true, None, e);
}

/// The norm of the sum of the first two inputs, the second with stochastic depth; the seed is the last input.
pub(crate) fn dropped_add_layer_norm(op: &LayerNorm, drop: Dropout, e: &mut Emitter) {
    forward(op, true, Some(drop), e);
}

fn forward(op: &LayerNorm, sum_of_two: bool, drop: Option<Dropout>, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let (rows, dim) = (y.shape.rows(), y.shape.last());
    let (lanes, gamma_index) = (lanes(dim), 1 + usize::from(sum_of_two));
    let [gamma, beta] = [e.inputs[gamma_index].address, e.inputs[gamma_index + 1].address];
    let mut variant = KernelVariant::new(&compile::NORM)
        .with("DIM", dim)
        .with("LANES", lanes)
        .with("CENTRED", usize::from(op.centred))
        .with("X", x.storage.name())
        .with("Y", y.storage.name())
        .with("DROP", usize::from(drop.is_some()));
    let depth = stochastic_depth(drop.zip(e.inputs.last().map(|seed| seed.address)), &y.shape);
    let (mut second, mut sum) = (0, 0);
    if sum_of_two {
        variant = variant.with("Z", e.inputs[1].storage.name()).with("S", e.outputs[3].storage.name());
        (second, sum) = (e.inputs[1].address, e.outputs[3].address);
    }
    let (x, y) = (x.address, y.clone());
    let [mean, rstd] = [e.outputs[1].address, e.outputs[2].address];
    // The kernel writes its result even if only the sum or the statistics have consumers.
    let result = if y.is_written() { y.address } else { e.scratch(rows * dim * y.storage.bytes()) };
    let scale = if y.storage == Storage::E4m3 { y.scales } else { 0 };
    let group_rows = group_rows(lanes);
    // Blocks have several groups only if there would be more than eight blocks per multiprocessor otherwise.
    let groups = rows.div_ceil(group_rows * 8 * e.multiprocessors).clamp(1, MAX_GROUPS);
    let arguments = KernelArguments::new()
        .pointers(&[x, second, gamma, beta])
        .f32(op.epsilon)
        .u32(rows)
        .u32(groups)
        .pointers(&[result, mean, rstd, sum, scale])
        .fields(depth);
    if rows > 0 {
        e.kernel(variant, "layer_norm", [rows.div_ceil(group_rows * groups), 1, 1], group_rows * lanes, 0, arguments);
    }
}

/// Operations that are fused with the gradient of a layer norm.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NormGradFusion {
    /// The sum of `dx` and a residual's gradient.
    pub residual: bool,
    /// The gradient of stochastic depth, applied to `dx` and written beside it.
    pub drop: Option<Dropout>,
    /// The column sums of `dx`, after stochastic depth if that is fused.
    pub sums: bool,
}

/// From `dy, x, gamma, mean, rstd`, then the residual's gradient and the seed of stochastic depth, to `dx, dgamma,
/// dbeta`, then the dropped `dx` and the column sums; those after the first five and three only with their fusions.
pub(crate) fn backward(op: LayerNormGrad, fused: NormGradFusion, e: &mut Emitter) {
    let (dy, x, dx) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let (rows, dim) = (x.shape.rows(), x.shape.last());
    let lanes = lanes(dim);
    let group_rows = group_rows(lanes);
    let residual = if fused.residual { (e.inputs[5].address, e.inputs[5].storage) } else { (0, dx.storage) };
    let seed = fused.drop.zip(e.inputs.last().map(|seed| seed.address));
    let dropped = fused.drop.map_or((0, dx.storage), |_| (e.outputs[3].address, e.outputs[3].storage));
    let sums = e.outputs.last().filter(|_| fused.sums).map_or((0, Storage::F32), |s| (s.address, s.storage));
    let sums_per_column = 2 + usize::from(fused.sums);
    let variant = KernelVariant::new(&compile::NORM)
        .with("DIM", dim)
        .with("LANES", lanes)
        .with("CENTRED", usize::from(op.centred))
        .with("DY", dy.storage.name())
        .with("X", x.storage.name())
        .with("R", residual.1.name())
        .with("DX", dx.storage.name())
        .with("DROP", usize::from(fused.drop.is_some()))
        .with("DD", dropped.1.name())
        .with("SUMS", usize::from(fused.sums))
        .with("DB", sums.1.name());
    let depth = stochastic_depth(seed, &x.shape);
    let [gamma, mean, rstd] = [2, 3, 4].map(|i| e.inputs[i].address);
    let [dx, dgamma, dbeta] = [0, 1, 2].map(|i| e.outputs[i].address);
    let sums = sums.0;
    let (dy, x) = (dy.address, x.address);
    // Few blocks with many rows each: a block's partial sums of dgamma and dbeta are written once.
    let blocks = rows.div_ceil(group_rows).clamp(1, BLOCKS_PER_SM * e.multiprocessors);
    let partials = if dgamma | dbeta | sums != 0 { e.scratch(blocks * sums_per_column * dim * 4) } else { 0 };
    let arguments = KernelArguments::new()
        .pointers(&[dy, x, gamma, mean, rstd, residual.0])
        .u32(rows)
        .pointers(&[dx, partials, dropped.0])
        .fields(depth);
    e.kernel(variant.clone(), "layer_norm_grad", [blocks, 1, 1], group_rows * lanes, 0, arguments);
    if partials != 0 {
        let arguments = KernelArguments::new().pointer(partials).u32(blocks).pointers(&[dgamma, dbeta, sums]);
        // A block sums eight columns.
        let grid = [(sums_per_column * dim).div_ceil(8), 1, 1];
        e.kernel(variant, "layer_norm_grad_parameters", grid, THREADS, 0, arguments);
    }
}
