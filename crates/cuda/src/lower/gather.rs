//! Rows of a table by index, and their gradient.

use super::{Emitter, THREADS};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::KernelArguments;

/// The width of a row from which a block computes [`THREADS`] elements of the table's gradient, instead of one.
const WIDE: usize = 128;

pub(super) fn gather(e: &mut Emitter) {
    let (table, indices, y) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let (rows, inner) = (table.shape[0], table.shape[1..].iter().product::<usize>());
    let count = y.shape.elements();
    let variant = KernelVariant::new(&compile::GATHER).with("X", table.storage.name()).with("Y", y.storage.name());
    let arguments =
        KernelArguments::new().pointers(&[table.address, indices.address, y.address]).u32(rows).u32(inner).u64(count);
    e.kernel_1d(variant, "gather", count, 1, arguments);
}

pub(super) fn gather_grad(e: &mut Emitter) {
    let (dy, indices, dtable) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let (rows, inner) = (dtable.shape[0], dtable.shape[1..].iter().product::<usize>());
    let variant = KernelVariant::new(&compile::GATHER).with("X", dy.storage.name()).with("Y", dtable.storage.name());
    let arguments = KernelArguments::new()
        .pointers(&[dy.address, indices.address, dtable.address])
        .u32(inner)
        .u32(indices.shape.elements());
    if rows * inner == 0 {
        return;
    }
    // Tables of biases are narrow, and most of their rows are read often; those of a vocabulary are wide and sparsely read.
    if inner >= WIDE {
        e.kernel(variant, "gather_rows_grad", [rows, inner.div_ceil(THREADS), 1], THREADS, 0, arguments);
    } else {
        // A block computes one element of the table.
        e.kernel(variant, "gather_grad", [rows * inner, 1, 1], THREADS, 0, arguments);
    }
}
