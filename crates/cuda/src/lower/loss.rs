//! Losses, and the one-hot argmax of a teacher's decision.
//!
//! `input_precision` of these operations is f32: logits and targets are stored as `float`, the default of the kernels'
//! storage types.

use super::Emitter;
use crate::compile::{self, KernelVariant};
use crate::run::arguments::KernelArguments;

/// `THREADS` of `loss.cu`.
const THREADS: usize = 128;

pub(super) fn cross_entropy(e: &mut Emitter) {
    mean_loss("cross_entropy_rows", e);
}

pub(super) fn sigmoid_cross_entropy(e: &mut Emitter) {
    mean_loss("sigmoid_cross_entropy_rows", e);
}

pub(super) fn squared_error(e: &mut Emitter) {
    mean_loss("squared_error_rows", e);
}

pub(super) fn one_hot_max(e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let (rows, columns) = (y.shape.rows(), y.shape.last());
    let variant = KernelVariant::new(&compile::LOSS).with("X", x.storage.name()).with("Y", y.storage.name());
    let arguments = KernelArguments::new().pointer(x.address).pointer(y.address).u64(rows).u32(columns);
    // A grid must not be empty. Losses need no such check: their shape rule refuses empty logits.
    if rows * columns > 0 {
        // A warp computes a row.
        e.kernel(variant, "one_hot_max", [rows.div_ceil(THREADS / 32), 1, 1], THREADS, 0, arguments);
    }
}

/// The mean over the batch of the rows' losses, which `rows_kernel` computes.
fn mean_loss(rows_kernel: &'static str, e: &mut Emitter) {
    let [logits, targets] = [e.inputs[0].address, e.inputs[1].address];
    let (rows, classes) = (e.inputs[0].shape[0], e.inputs[0].shape[1]);
    let loss = e.outputs[0].address;
    // One f64 per row.
    let losses = e.scratch(8 * rows);
    let variant = KernelVariant::new(&compile::LOSS);
    let arguments = KernelArguments::new().pointers(&[logits, targets, losses]).u32(classes);
    e.kernel(variant.clone(), rows_kernel, [rows, 1, 1], THREADS, 0, arguments);
    let arguments = KernelArguments::new().pointer(losses).pointer(loss).u32(rows);
    e.kernel(variant, "mean_loss", [1, 1, 1], THREADS, 0, arguments);
}

pub(super) fn cross_entropy_grad(e: &mut Emitter) {
    let dx = &e.outputs[0];
    let (rows, classes) = (dx.shape[0], dx.shape[1]);
    let variant = KernelVariant::new(&compile::LOSS).with("Y", dx.storage.name());
    let arguments = KernelArguments::new()
        .pointers(&[e.inputs[0].address, e.inputs[1].address, e.inputs[2].address, dx.address])
        .u32(rows)
        .u32(classes);
    e.kernel(variant, "cross_entropy_grad", [rows, 1, 1], THREADS, 0, arguments);
}
