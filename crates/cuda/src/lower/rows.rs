//! Softmax, activations and dropout.

use vit_graph::ops::{Activation, Dropout, Granularity, Operation};

use super::reduce::{self, RowSplits};
use super::{Emitter, THREADS, VECTOR};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};

/// `activation.cu` for an activation, whose struct there has the name that it has in the graph.
pub(super) fn activation_variant(activation: Option<Activation>) -> KernelVariant {
    KernelVariant::new(&compile::ACTIVATION)
        .with("ACTIVATION", activation.map_or("identity", |activation| activation.name()))
}

pub(super) fn activation(op: Activation, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = activation_variant(Some(op)).with("X", x.storage.name()).with("Y", y.storage.name());
    let arguments = KernelArguments::new().pointer(x.address).pointer(y.address).u64(count);
    // A thread of this kernel has two vectors.
    e.kernel_1d(variant, "activation", count, 2 * VECTOR, arguments);
}

pub(super) fn activation_grad(op: Activation, e: &mut Emitter) {
    let (x, dy, dx) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let count = dx.shape.elements();
    let variant = activation_variant(Some(op))
        .with("X", x.storage.name())
        .with("DY", dy.storage.name())
        .with("Y", dx.storage.name());
    let arguments = KernelArguments::new().pointers(&[x.address, dy.address, dx.address]).u64(count);
    e.kernel_1d(variant, "activation_grad", count, VECTOR, arguments);
}

/// The columns of a block of `activation_grad_sums`: `LANES * VEC` in `activation.cu`.
const COLUMNS: usize = 64;

/// Whether [`activation_grad_and_sums`] supports rows of this length.
pub(crate) fn supports_column_sums(columns: usize) -> bool {
    columns > 0 && columns.is_multiple_of(VECTOR)
}

/// The gradient of an activation and its column sums, which are the gradient of a bias.
pub(crate) fn activation_grad_and_sums(op: Activation, e: &mut Emitter) {
    let (x, dy, dx, sums) = (e.inputs[0].clone(), e.inputs[1].clone(), e.outputs[0].clone(), e.outputs[1].clone());
    let columns = sums.shape.elements();
    let rows = dx.shape.elements() / columns;
    let splits = RowSplits::new(e, rows, columns, COLUMNS);
    let variant = activation_variant(Some(op))
        .with("X", x.storage.name())
        .with("DY", dy.storage.name())
        .with("Y", dx.storage.name());
    let partials = e.scratch(4 * splits.count * columns);
    let arguments = KernelArguments::new()
        .pointers(&[x.address, dy.address, dx.address])
        .u32(rows)
        .u32(columns)
        .u32(splits.rows_per_split)
        .pointer(partials);
    let grid = [columns.div_ceil(COLUMNS), splits.count, 1];
    e.kernel(variant, "activation_grad_sums", grid, THREADS, 0, arguments);
    reduce::sum_splits(e, partials, &sums, splits.count, 1.0);
}

/// `THREADS` of `softmax.cu`: a block computes a row.
const ROW_THREADS: usize = 128;

pub(super) fn softmax(e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let (rows, columns) = (y.shape.rows(), y.shape.last());
    let variant = KernelVariant::new(&compile::SOFTMAX).with("X", x.storage.name()).with("Y", y.storage.name());
    let arguments = KernelArguments::new().pointer(x.address).pointer(y.address).u32(columns);
    if rows * columns > 0 {
        e.kernel(variant, "softmax", [rows, 1, 1], ROW_THREADS, 0, arguments);
    }
}

pub(super) fn softmax_grad(e: &mut Emitter) {
    let (y, dy, dx) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let (rows, columns) = (dx.shape.rows(), dx.shape.last());
    let variant = KernelVariant::new(&compile::SOFTMAX)
        .with("X", y.storage.name())
        .with("DY", dy.storage.name())
        .with("Y", dx.storage.name());
    let arguments = KernelArguments::new().pointers(&[y.address, dy.address, dx.address]).u32(columns);
    if rows * columns > 0 {
        e.kernel(variant, "softmax_grad", [rows, 1, 1], ROW_THREADS, 0, arguments);
    }
}

/// `Mask` of the kernels: an element is kept if its random word is at least `rate · 2^32`.
pub(super) fn mask(op: Dropout) -> CStruct {
    // Below 2^32, since rates are below 1.
    let keep_from = (f64::from(op.rate) * 4294967296.0).ceil() as usize;
    CStruct::new().u32(op.stream as usize).u32(keep_from).f32(1.0 / (1.0 - op.rate))
}

pub(super) fn dropout(op: Dropout, e: &mut Emitter) {
    let (x, seed, y) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let count = y.shape.elements();
    let ty = vit_graph::Type::f32(x.shape.clone());
    let per_decision = op.elements_per_decision(&ty).max(1);
    let variant = KernelVariant::new(&compile::DROPOUT).with("X", x.storage.name()).with("Y", y.storage.name());
    let arguments = KernelArguments::new().pointers(&[x.address, seed.address, y.address]).fields(mask(op));
    match op.granularity {
        // A Philox block has the random words of four elements.
        Granularity::Element => e.kernel_1d(variant, "dropout_elements", count, 4, arguments.u64(count)),
        Granularity::Sample => {
            let vec = if per_decision.is_multiple_of(VECTOR) { VECTOR } else { 1 };
            let arguments = arguments.u64(per_decision / vec).u64(count / vec);
            e.kernel_1d(variant.with("VEC", vec), "dropout_samples", count / vec, 1, arguments);
        }
    }
}
