//! Operations that only move elements, by a kernel for strided copies.

use vit_graph::ops::{Broadcast, Concat, Pad, Permute, Slice};

use super::{Emitter, Operand, vector_width};
use crate::compile::{self, KernelVariant};
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::Request;

/// The most axes of a strided kernel.
pub(super) const MAX_AXES: usize = 8;

/// Merges adjacent axes that are contiguous in every operand, and drops axes of extent 1.
pub(super) fn collapse<const N: usize>(
    shape: &[usize],
    strides: [Vec<usize>; N],
) -> Result<(Vec<usize>, [Vec<usize>; N]), String> {
    let mut extents: Vec<usize> = Vec::new();
    let mut merged: [Vec<usize>; N] = std::array::from_fn(|_| Vec::new());
    for (axis, &extent) in shape.iter().enumerate().filter(|(_, extent)| **extent != 1) {
        let continues = !extents.is_empty()
            && merged.iter().zip(&strides).all(|(merged, strides)| merged.last() == Some(&(strides[axis] * extent)));
        if let (Some(last), true) = (extents.last_mut(), continues) {
            *last *= extent;
            merged
                .iter_mut()
                .zip(&strides)
                .filter_map(|(merged, strides)| Some((merged.last_mut()?, strides[axis])))
                .for_each(|(last, stride)| *last = stride);
        } else {
            extents.push(extent);
            merged.iter_mut().zip(&strides).for_each(|(merged, strides)| merged.push(strides[axis]));
        }
    }
    if extents.len() > MAX_AXES {
        return Err(format!("{} axes that cannot be merged are more than {MAX_AXES}", extents.len()));
    }
    Ok((extents, merged))
}

/// The widest vector that divides the innermost extent, every outer stride and every offset.
pub(super) fn vector(extents: &[usize], strides: &[Vec<usize>], offsets: &[usize]) -> usize {
    let Some((&inner, _)) = extents.split_last() else { return 1 };
    let outer = strides.iter().flat_map(|s| &s[..s.len() - 1]);
    let all: Vec<usize> = outer.chain(offsets).copied().chain([inner]).collect();
    vector_width(&all)
}

/// The narrowest type that can count to `count`: 32-bit divisions are much cheaper.
pub(super) fn index_type(count: usize) -> &'static str {
    if count <= i32::MAX as usize { "u32" } else { "u64" }
}

/// Copies the input to the result, from element `first` on; the executable then exchanges the result with other
/// processes (`run/exchange.rs`).
pub(super) fn copy_for_exchange(first: usize, e: &mut Emitter) {
    let bytes = 4 * e.inputs[0].shape.elements();
    if bytes > 0 {
        let to = e.outputs[0].address + 4 * first as u64;
        e.requests.push(Request::Copy { to, from: e.inputs[0].address, bytes });
    }
}

/// Copies elements of `shape` from strided to strided memory.
fn copy(
    e: &mut Emitter,
    (from, to): (&Operand, &Operand),
    shape: &[usize],
    [from_strides, to_strides]: [Vec<usize>; 2],
    [from_offset, to_offset]: [usize; 2],
) -> Result<(), String> {
    let count: usize = shape.iter().product();
    if count == 0 {
        return Ok(());
    }
    let (mut extents, mut strides) = collapse(shape, [from_strides, to_strides])?;
    let [from_inner, to_inner] = [0, 1].map(|i: usize| strides[i].last().copied().unwrap_or(1));
    let vec = if from_inner <= 1 && to_inner == 1 { vector(&extents, &strides, &[from_offset, to_offset]) } else { 1 };
    if let (Some(extent), true) = (extents.last_mut(), vec > 1) {
        *extent /= vec;
        strides.iter_mut().filter_map(|s| s.last_mut()).for_each(|step| *step *= vec);
    }
    let vectors = count / vec;
    let padded = |list: &[usize]| [list, &vec![0; MAX_AXES - list.len()]].concat();
    let copy_strides = CStruct::new()
        .u32(extents.len())
        .u32(if vec == 1 { 1 } else { from_inner })
        .u32s(&padded(&extents))
        .u64s(&padded(&strides[0]))
        .u64s(&padded(&strides[1]))
        .u64(from_offset as u64)
        .u64(to_offset as u64);
    let variant = KernelVariant::new(&compile::MOVEMENT)
        .with("X", from.storage.name())
        .with("Y", to.storage.name())
        .with("VEC", vec)
        .with("INDEX", index_type(vectors));
    let arguments = KernelArguments::new().pointer(from.address).pointer(to.address).fields(copy_strides).u64(vectors);
    e.kernel_1d(variant, "copy", vectors, 1, arguments);
    Ok(())
}

/// Copies the input, read with strides over the output's shape, to the dense output.
fn copy_from_strided(e: &mut Emitter, strides: Vec<usize>, offset: usize) -> Result<(), String> {
    let (x, y) = (e.inputs[0].clone(), e.outputs[0].clone());
    copy(e, (&x, &y), &y.shape, [strides, y.shape.strides()], [offset, 0])
}

pub(super) fn permute(op: &Permute, e: &mut Emitter) -> Result<(), String> {
    let strides = e.inputs[0].shape.strides();
    copy_from_strided(e, op.0.iter().map(|&axis| strides[axis]).collect(), 0)
}

pub(super) fn broadcast(op: &Broadcast, e: &mut Emitter) -> Result<(), String> {
    copy_from_strided(e, e.inputs[0].shape.broadcast_strides(&op.0), 0)
}

pub(super) fn slice(op: &Slice, e: &mut Emitter) -> Result<(), String> {
    let strides = e.inputs[0].shape.strides();
    let offset = op.start * strides[op.axis];
    copy_from_strided(e, strides, offset)
}

pub(super) fn pad(op: &Pad, e: &mut Emitter) -> Result<(), String> {
    let (x, y) = (e.inputs[0].clone(), e.outputs[0].clone());
    let bytes = y.shape.elements() * y.storage.bytes();
    if bytes > 0 {
        // All bits zero are the value zero in every storage type.
        e.requests.push(Request::Clear { to: y.address, bytes });
    }
    let strides = y.shape.strides();
    let offset = op.before * strides[op.axis];
    copy(e, (&x, &y), &x.shape, [x.shape.strides(), strides], [0, offset])
}

pub(super) fn concat(op: &Concat, e: &mut Emitter) -> Result<(), String> {
    let (inputs, y) = (e.inputs.clone(), e.outputs[0].clone());
    let strides = y.shape.strides();
    let mut offset = 0;
    for x in &inputs {
        copy(e, (x, &y), &x.shape, [x.shape.strides(), strides.clone()], [0, offset])?;
        offset += x.shape[op.axis] * strides[op.axis];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_axes_are_merged() {
        let (extents, strides) = collapse(&[2, 3, 1, 4], [vec![12, 4, 4, 1], vec![100, 4, 9, 1]]).unwrap();
        assert_eq!(extents, [2, 12]);
        assert_eq!(strides, [vec![12, 1], vec![100, 1]]);
        let (extents, strides) = collapse(&[5, 7], [vec![0, 0]]).unwrap();
        assert_eq!((extents, strides), (vec![35], [vec![0]]));
        let (extents, _) = collapse(&[1, 1], [vec![1, 1]]).unwrap();
        assert!(extents.is_empty());
    }

    #[test]
    fn vectors_divide_extents_strides_and_offsets() {
        assert_eq!(vector(&[3, 16], &[vec![32, 1]], &[8]), 8);
        assert_eq!(vector(&[3, 16], &[vec![20, 1]], &[8]), 4);
        assert_eq!(vector(&[3, 16], &[vec![32, 1]], &[3]), 1);
        assert_eq!(vector(&[], &[vec![]], &[]), 1);
    }
}
