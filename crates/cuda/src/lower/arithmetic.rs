//! Elementwise operations: `arithmetic.cu`, compiled with a function of one or two elements, which has the name of the
//! graph's operation.

use super::movement::{MAX_AXES, collapse, index_type, vector};
use super::{Emitter, THREADS, VECTOR};
use crate::compile::{self, KernelVariant};
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::KernelLaunch;

/// `function` of every element and a parameter of the operation.
pub(super) fn elementwise(function: &str, parameter: f32, e: &mut Emitter) {
    let (x, y) = (&e.inputs[0], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = variant(function, x.storage, y.storage);
    let arguments = KernelArguments::new().pointer(x.address).pointer(y.address).f32(parameter).u64(count);
    e.kernel_1d(variant, "elementwise", count, VECTOR, arguments);
}

fn variant(function: &str, a: Storage, y: Storage) -> KernelVariant {
    KernelVariant::new(&compile::ARITHMETIC).with("FUNCTION", function).with("A", a.name()).with("Y", y.name())
}

/// `count` elements copied from one storage type to another.
pub(crate) fn conversion((from, a): (u64, Storage), (to, y): (u64, Storage), count: usize) -> KernelLaunch {
    KernelLaunch {
        variant: variant("scale", a, y),
        name: "elementwise",
        grid: [count.div_ceil(VECTOR * THREADS).max(1), 1, 1],
        threads: THREADS,
        shared: 0,
        maps: Vec::new(),
        arguments: KernelArguments::new().pointer(from).pointer(to).f32(1.0).u64(count),
    }
}

/// `function` of the elements of two inputs that are broadcast to the shape of the output.
pub(super) fn elementwise2(function: &str, e: &mut Emitter) -> Result<(), String> {
    let (a, b, y) = (&e.inputs[0], &e.inputs[1], &e.outputs[0]);
    let count = y.shape.elements();
    let variant = KernelVariant::new(&compile::ARITHMETIC)
        .with("FUNCTION", function)
        .with("A", a.storage.name())
        .with("B", b.storage.name())
        .with("Y", y.storage.name());
    let pointers = KernelArguments::new().pointers(&[a.address, b.address, y.address]);
    if a.shape == b.shape {
        e.kernel_1d(variant, "elementwise2", count, VECTOR, pointers.u64(count));
        return Ok(());
    }
    let strides = [a.shape.broadcast_strides(&y.shape), b.shape.broadcast_strides(&y.shape)];
    let (mut extents, mut strides) = collapse(&y.shape, strides)?;
    let inner = |strides: &[Vec<usize>; 2], i: usize| strides[i].last().copied().unwrap_or(0);
    // The elements of a vector must be consecutive or all the same.
    let vec = if strides.iter().all(|s| s.last().is_none_or(|&step| step <= 1)) {
        vector(&extents, &strides, &[])
    } else {
        1
    };
    let inners = [inner(&strides, 0), inner(&strides, 1)];
    if let (Some(extent), true) = (extents.last_mut(), vec > 1) {
        *extent /= vec;
        strides.iter_mut().filter_map(|s| s.last_mut()).for_each(|step| *step *= vec);
    }
    let vectors = count / vec;
    let axes = extents.len();
    let padded = |list: &[usize]| [list, &vec![0; MAX_AXES - list.len()]].concat();
    let broadcast = CStruct::new()
        .u32(axes)
        // A vector of one element is loaded the same way whatever its stride.
        .u32(if vec == 1 { 1 } else { inners[0] })
        .u32(if vec == 1 { 1 } else { inners[1] })
        .u32s(&padded(&extents))
        .u64s(&padded(&strides[0]))
        .u64s(&padded(&strides[1]));
    let variant = variant.with("VEC", vec).with("INDEX", index_type(vectors));
    e.kernel_1d(variant, "elementwise2_broadcast", vectors, 1, pointers.fields(broadcast).u64(vectors));
    Ok(())
}
