//! Optimiser updates and the norm of gradients, each for all tensors at once.

use vit_graph::ops::{AdamW, CLIP_EPSILON};

use super::Emitter;
use crate::compiler::{self, Variant};
use crate::fields::{Arguments, Fields};

/// Elements of one block, as the kernels have it.
const CHUNK: usize = 8192;

/// Which block works on which part of which tensor.
fn chunks(counts: &[usize]) -> Vec<u8> {
    let parts = counts.iter().enumerate().flat_map(|(i, count)| (0..count.div_ceil(CHUNK)).map(move |part| [i, part]));
    parts.flat_map(|numbers| Fields::new().u32s(&numbers).finish()).collect()
}

pub(super) fn global_norm(e: &mut Emitter) {
    let counts: Vec<usize> = e.inputs.iter().map(|x| x.shape.elements()).collect();
    let gradients =
        e.inputs.iter().zip(&counts).flat_map(|(x, &n)| Fields::new().u64(x.address).u64(n as u64).finish());
    let gradients = gradients.collect();
    let blocks: usize = counts.iter().map(|count| count.div_ceil(CHUNK)).sum();
    let (gradients, chunks) = (e.table(gradients), e.table(chunks(&counts)));
    let (partials, norm) = (e.scratch(4 * blocks), e.outputs[0].address);
    let variant = Variant::new(&compiler::OPTIMISE);
    if blocks > 0 {
        let arguments = Arguments::new().pointers(&[gradients, chunks, partials]);
        e.kernel(variant.clone(), "sum_squares", [blocks, 1, 1], 256, 0, arguments);
    }
    let arguments = Arguments::new().pointer(partials).u32(blocks).pointer(norm);
    e.kernel(variant, "root_of_sum", [1, 1, 1], 256, 0, arguments);
}

/// One launch for all these updates, which agree in everything but the weight decay. Each has its inputs and its three
/// outputs, one after another.
pub(super) fn adamw(ops: &[AdamW], e: &mut Emitter) {
    let Some(first) = ops.first() else { return };
    let arity = e.inputs.len() / ops.len();
    let (mut table, mut counts) = (Vec::new(), Vec::new());
    for ((op, inputs), outputs) in ops.iter().zip(e.inputs.chunks(arity)).zip(e.outputs.chunks(3)) {
        let count = inputs[0].shape.elements();
        let row = inputs[..4].iter().chain(outputs).fold(Fields::new(), |row, operand| row.u64(operand.address));
        table.extend(row.u64(outputs[0].copy).u64(count as u64).f32(op.weight_decay).u32(0).finish());
        counts.push(count);
    }
    let numbers: Vec<u64> = e.inputs[4..arity].iter().map(|number| number.address).collect();
    let blocks: usize = counts.iter().map(|count| count.div_ceil(CHUNK)).sum();
    let (table, chunks) = (e.table(table), e.table(chunks(&counts)));
    let adam = Fields::new()
        .f32(first.beta1)
        .f32(first.beta2)
        .f32(first.epsilon)
        .f32(first.clip.unwrap_or(0.0))
        .f32(CLIP_EPSILON)
        .u32(usize::from(first.clip.is_some()));
    let arguments = Arguments::new()
        .pointers(&[table, chunks, numbers[0], numbers[1], numbers.get(2).copied().unwrap_or(0)])
        .fields(adam);
    if blocks > 0 {
        e.kernel(Variant::new(&compiler::OPTIMISE), "adamw", [blocks, 1, 1], 256, 0, arguments);
    }
}
