//! One step of a run: a kernel with the addresses of its operands.

use std::collections::HashMap;
use std::ops::Range;

use vit_graph::device::StepInfo;
use vit_graph::memory::{ArenaRange, MemoryPlan, root_of};
use vit_graph::ops::Operation;
use vit_graph::{Graph, GraphError, NodeId, Type, Value};

use super::constants::StoredBuffers;
use crate::buffer::Buffer;
use crate::device::Processor;
use crate::lower::{Lowered, NodeKernel, WeightPacking};

/// Where every value is: in the arena or in a stored buffer.
pub(super) struct Addresses<'a> {
    pub graph: &'a Graph,
    pub plan: &'a MemoryPlan,
    pub arena: &'a Buffer,
    pub stored: &'a StoredBuffers,
    /// As in [`super::LoweredGraph`].
    pub in_place: &'a HashMap<Value, Value>,
}

impl Addresses<'_> {
    /// The elements of a value; an empty slice if it has no memory.
    pub fn of(&self, value: Value) -> *mut [f32] {
        let value = root_of(self.graph, value);
        match self.stored.values.get(self.in_place.get(&value).unwrap_or(&value)) {
            Some(buffer) => buffer.as_raw_slice(),
            None => self.in_arena(self.plan.range(self.graph, value)),
        }
    }

    fn in_arena(&self, range: Option<ArenaRange>) -> *mut [f32] {
        let Some(ArenaRange { offset, bytes, .. }) = range else { return empty() };
        let arena = self.arena.as_raw_slice();
        assert!(offset + bytes <= 4 * arena.len(), "a value outside the arena");
        std::ptr::slice_from_raw_parts_mut(arena.cast::<f32>().wrapping_add(offset / 4), bytes / 4)
    }
}

/// A kernel and the addresses of its operands, which are valid as long as the executable lives: the arena, the stored
/// buffers and the spares never move.
pub(super) struct KernelStep {
    kernel: NodeKernel,
    inputs: Vec<*const [f32]>,
    outputs: Vec<*mut [f32]>,
    workspace: *mut [f32],
    pub info: StepInfo,
    /// Copied before the kernel runs: inputs that it updates in place, to the output, where that has other memory.
    copies: Vec<(*const [f32], *mut [f32])>,
}

impl KernelStep {
    /// Adds to `spares` the memory of outputs that a kernel in place writes, and that have none since nothing consumes
    /// them.
    pub fn new(
        addresses: &Addresses<'_>,
        id: NodeId,
        Lowered { kernel, packing, in_place, .. }: Lowered,
        spares: &mut Vec<Buffer>,
    ) -> Result<Self, GraphError> {
        let node = addresses.graph.node(id);
        let mut inputs: Vec<*const [f32]> = node.inputs.iter().map(|&v| addresses.of(v).cast_const()).collect();
        if let Some(WeightPacking { input, .. }) = packing
            && let Some(buffer) = addresses.stored.packed.get(&(id, input))
        {
            inputs[input] = buffer.as_raw_slice().cast_const();
        }
        let mut outputs: Vec<*mut [f32]> =
            (0..node.outputs.len()).map(|output| addresses.of(Value { node: id, output })).collect();
        let mut copies = Vec::new();
        let in_place_pairs = if in_place { node.op.in_place() } else { &[] };
        for &(input, output) in in_place_pairs {
            if outputs[output].is_empty() {
                let spare = Buffer::new(node.outputs[output].shape.elements())?;
                outputs[output] = spare.as_raw_slice();
                spares.push(spare);
            }
            // The kernel finds the old value in the output; the input is emptied, since the two would alias.
            let (from, to) = (std::mem::replace(&mut inputs[input], empty()), outputs[output]);
            if from.cast::<f32>() != to.cast_const().cast::<f32>() {
                copies.push((from, to));
            }
        }
        let workspace = addresses.in_arena(addresses.plan.workspace(id));
        assert_disjoint(&inputs, &outputs, workspace);
        Ok(KernelStep { kernel, inputs, outputs, workspace, copies, info: info(addresses.graph, id) })
    }

    pub fn run(&mut self, processor: &Processor) {
        for &(from, to) in &self.copies {
            // SAFETY: both are arena ranges, stored buffers or spares, of one length, and do not overlap.
            unsafe { (*to).copy_from_slice(&*from) };
        }
        let inputs = &raw const *self.inputs as *const [&[f32]];
        let outputs = &raw mut *self.outputs as *mut [&mut [f32]];
        // SAFETY: references and raw pointers to slices have the same layout. All memory is valid as long as the
        // executable lives, which `run` borrows exclusively, and `assert_disjoint` has checked that what the kernel
        // writes overlaps nothing else that it reads or writes.
        let (inputs, outputs, workspace) = unsafe { (&*inputs, &mut *outputs, &mut *self.workspace) };
        (self.kernel)(processor, inputs, outputs, workspace);
    }
}

/// A slice without elements.
fn empty() -> *mut [f32] {
    std::ptr::slice_from_raw_parts_mut(std::ptr::NonNull::dangling().as_ptr(), 0)
}

/// Checks what makes running a kernel sound: no range that it writes overlaps another range that it reads or writes.
fn assert_disjoint(inputs: &[*const [f32]], outputs: &[*mut [f32]], workspace: *mut [f32]) {
    let range = |slice: *const [f32]| {
        let start = slice.cast::<f32>() as usize;
        start..start + 4 * slice.len()
    };
    let written: Vec<_> = outputs.iter().map(|s| range(s.cast_const())).chain([range(workspace)]).collect();
    let overlap = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
    for (i, block) in written.iter().enumerate() {
        assert!(!written[i + 1..].iter().any(|other| overlap(block, other)), "outputs of a kernel overlap");
        assert!(!inputs.iter().any(|input| overlap(block, &range(*input))), "a kernel would write its own input");
    }
}

/// The description of a node in profiles. Of several outputs, `bytes` counts only the first.
fn info(graph: &Graph, id: NodeId) -> StepInfo {
    let node = graph.node(id);
    let inputs: Vec<Type> = node.inputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let shapes: Vec<String> = inputs.iter().take(2).map(|t| t.shape.to_string()).collect();
    StepInfo {
        op: node.op.label(),
        shapes: shapes.join(" "),
        scope: node.path(),
        flops: node.op.flops(&inputs, &node.outputs),
        bytes: inputs.iter().chain(&node.outputs[..1]).map(|t| t.bytes() as u64).sum(),
    }
}
