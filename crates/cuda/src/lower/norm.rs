//! Layer norms.

use vit_graph::Shape;
use vit_graph::ops::{Dropout, LayerNorm};

use super::{Emitter, rows};
use crate::compile::{self, KernelVariant};
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};

/// How many threads share a row: part of a warp for short rows, a warp up to 1024 elements, a block for more.
fn lanes(dim: usize) -> usize {
    dim.div_ceil(32).next_power_of_two().clamp(8, 1024)
}

/// Rows of a block at once, as the kernel has it.
fn rows_per_block(lanes: usize) -> usize {
    if lanes <= 32 { 128 / lanes } else { 1 }
}

/// How often a block of the forward pass takes new rows: it reads the norm's weights only once.
const TURNS: usize = 8;

/// Blocks of the backward pass for each multiprocessor. Two or three have room at once, so that all end together.
const BLOCKS: usize = 6;

/// What a kernel needs to know of stochastic depth, with the seed at an address; rows of `shape` that belong to one sample
/// share a decision.
fn depth(drop: Option<(Dropout, u64)>, shape: &Shape) -> CStruct {
    let rows = shape.rows() / shape.first().copied().unwrap_or(1).max(1);
    match drop {
        Some((op, seed)) => rows::mask(op).u32(rows.max(1)).u64(seed),
        None => CStruct::new().u32s(&[0, 0]).f32(1.0).u32(1).u64(0),
    }
}

/// The norm of the first input, or of its sum with another, of which samples may be dropped: the seed is the last input
/// then.
pub(super) fn forward(op: &LayerNorm, addend: Option<usize>, drop: Option<Dropout>, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let (rows, dim) = (y.shape.rows(), y.shape.last());
    let (lanes, parameters) = (lanes(dim), 1 + addend.map_or(0, |_| 1));
    let [gamma, beta] = [e.inputs[parameters].address, e.inputs[parameters + 1].address];
    let mut variant = KernelVariant::new(&compile::NORM)
        .with("DIM", dim)
        .with("LANES", lanes)
        .with("X", x.storage.name())
        .with("Y", y.storage.name())
        .with("DROP", usize::from(drop.is_some()));
    let depth = depth(drop.zip(e.inputs.last().map(|seed| seed.address)), &y.shape);
    let (mut second, mut sum) = (0, 0);
    if let Some(addend) = addend {
        variant = variant.with("Z", e.inputs[addend].storage.name()).with("S", e.outputs[3].storage.name());
        (second, sum) = (e.inputs[addend].address, e.outputs[3].address);
    }
    // The result itself may be what nobody wants; the kernel writes it all the same.
    let result = if y.wanted() { y.address } else { 0 };
    let (x, storage, factors) = (x.address, y.storage, y.factors);
    let [mean, rstd] = [e.outputs[1].address, e.outputs[2].address];
    let result = if result != 0 { result } else { e.scratch(rows * dim * storage.bytes()) };
    let factor = if storage == Storage::E4m3 { factors } else { 0 };
    let per_block = rows_per_block(lanes);
    // A short input is spread over all multiprocessors first.
    let turns = rows.div_ceil(per_block * 8 * e.multiprocessors).clamp(1, TURNS);
    let arguments = KernelArguments::new()
        .pointers(&[x, second, gamma, beta])
        .f32(op.epsilon)
        .u32(rows)
        .u32(turns)
        .pointers(&[result, mean, rstd, sum, factor])
        .fields(depth);
    if rows > 0 {
        e.kernel(variant, "layer_norm", [rows.div_ceil(per_block * turns), 1, 1], per_block * lanes, 0, arguments);
    }
}

/// What runs with the gradient of a norm.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NormGradFusion {
    /// A term that is added to `dx`.
    pub residual: bool,
    /// The gradient of stochastic depth, which takes `dx`.
    pub drop: Option<Dropout>,
    /// The sums of that, or of `dx`, over all rows.
    pub sums: bool,
}

/// From `dy, x, gamma, mean, rstd`, and perhaps a term that is added to `dx` and the seed of what drops samples, to
/// `dx, dgamma, dbeta`, and perhaps to what is left of `dx` and to sums over all rows.
pub(super) fn backward(along: NormGradFusion, e: &mut Emitter) {
    let (dy, x, dx) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let (rows, dim) = (x.shape.rows(), x.shape.last());
    let lanes = lanes(dim);
    let per_block = rows_per_block(lanes);
    let residual = if along.residual { (e.inputs[5].address, e.inputs[5].storage) } else { (0, dx.storage) };
    let seed = along.drop.zip(e.inputs.last().map(|seed| seed.address));
    let dropped = along.drop.map_or((0, dx.storage), |_| (e.outputs[3].address, e.outputs[3].storage));
    let sums = e.outputs.last().filter(|_| along.sums).map_or((0, Storage::F32), |s| (s.address, s.storage));
    let parts = 2 + usize::from(along.sums);
    let variant = KernelVariant::new(&compile::NORM)
        .with("DIM", dim)
        .with("LANES", lanes)
        .with("DY", dy.storage.name())
        .with("X", x.storage.name())
        .with("R", residual.1.name())
        .with("DX", dx.storage.name())
        .with("DROP", usize::from(along.drop.is_some()))
        .with("DD", dropped.1.name())
        .with("SUMS", usize::from(along.sums))
        .with("DB", sums.1.name());
    let depth = depth(seed, &x.shape);
    let [gamma, mean, rstd] = [2, 3, 4].map(|i| e.inputs[i].address);
    let [dx, dgamma, dbeta] = [0, 1, 2].map(|i| e.outputs[i].address);
    let sums = sums.0;
    let (dy, x) = (dy.address, x.address);
    // Few blocks with many rows: each adds up its own share of the parameters' gradients.
    let blocks = rows.div_ceil(per_block).clamp(1, BLOCKS * e.multiprocessors);
    let partials = if dgamma | dbeta | sums != 0 { e.scratch(blocks * parts * dim * 4) } else { 0 };
    let arguments = KernelArguments::new()
        .pointers(&[dy, x, gamma, mean, rstd, residual.0])
        .u32(rows)
        .pointers(&[dx, partials, dropped.0])
        .fields(depth);
    e.kernel(variant.clone(), "layer_norm_grad", [blocks, 1, 1], per_block * lanes, 0, arguments);
    if partials != 0 {
        let arguments = KernelArguments::new().pointer(partials).u32(blocks).pointers(&[dgamma, dbeta, sums]);
        e.kernel(variant, "layer_norm_grad_parameters", [(parts * dim).div_ceil(8), 1, 1], 256, 0, arguments);
    }
}
