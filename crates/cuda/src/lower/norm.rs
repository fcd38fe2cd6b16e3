//! Layer norms.

use vit_graph::ops::LayerNorm;

use super::Emitter;
use crate::compiler::{self, Variant};
use crate::fields::Arguments;
use crate::storage::Storage;

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

/// The norm of the first input, or of its sum with another.
pub(super) fn forward(op: &LayerNorm, addend: Option<usize>, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let (rows, dim) = (y.shape.rows(), y.shape.last());
    let (lanes, parameters) = (lanes(dim), 1 + addend.map_or(0, |_| 1));
    let [gamma, beta] = [e.inputs[parameters].address, e.inputs[parameters + 1].address];
    let mut variant = Variant::new(&compiler::NORM)
        .with("DIM", dim)
        .with("LANES", lanes)
        .with("X", x.storage.name())
        .with("Y", y.storage.name());
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
    let arguments = Arguments::new()
        .pointers(&[x, second, gamma, beta])
        .f32(op.epsilon)
        .u32(rows)
        .u32(turns)
        .pointers(&[result, mean, rstd, sum, factor]);
    if rows > 0 {
        e.kernel(variant, "layer_norm", [rows.div_ceil(per_block * turns), 1, 1], per_block * lanes, 0, arguments);
    }
}

/// From `dy, x, gamma, mean, rstd`, and perhaps a term that is added to `dx`, to `dx, dgamma, dbeta`, and perhaps to the
/// sums of `dx` over all rows.
pub(super) fn backward(e: &mut Emitter) {
    let (dy, x, dx) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let (rows, dim) = (x.shape.rows(), x.shape.last());
    let lanes = lanes(dim);
    let per_block = rows_per_block(lanes);
    let residual = e.inputs.get(5).map_or((0, dx.storage), |r| (r.address, r.storage));
    let parts = e.outputs.len() - 1;
    let variant = Variant::new(&compiler::NORM)
        .with("DIM", dim)
        .with("LANES", lanes)
        .with("DY", dy.storage.name())
        .with("X", x.storage.name())
        .with("R", residual.1.name())
        .with("DX", dx.storage.name())
        .with("SUMS", parts - 2)
        .with("DB", e.outputs.get(3).map_or(Storage::F32, |sums| sums.storage).name());
    let [gamma, mean, rstd] = [2, 3, 4].map(|i| e.inputs[i].address);
    let [dx, dgamma, dbeta] = [0, 1, 2].map(|i| e.outputs[i].address);
    let sums = e.outputs.get(3).map_or(0, |sums| sums.address);
    let (dy, x) = (dy.address, x.address);
    // Few blocks with many rows: each adds up its own share of the parameters' gradients.
    let blocks = rows.div_ceil(per_block).clamp(1, BLOCKS * e.multiprocessors);
    let partials = if dgamma | dbeta | sums != 0 { e.scratch(blocks * parts * dim * 4) } else { 0 };
    let arguments =
        Arguments::new().pointers(&[dy, x, gamma, mean, rstd, residual.0]).u32(rows).pointer(dx).pointer(partials);
    e.kernel(variant.clone(), "layer_norm_grad", [blocks, 1, 1], per_block * lanes, 0, arguments);
    if partials != 0 {
        let arguments = Arguments::new().pointer(partials).u32(blocks).pointers(&[dgamma, dbeta, sums]);
        e.kernel(variant, "layer_norm_grad_parameters", [(parts * dim).div_ceil(8), 1, 1], 256, 0, arguments);
    }
}
