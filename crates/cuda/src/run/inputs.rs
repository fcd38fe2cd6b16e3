//! The inputs of a graph: their addresses, and the step of a run after which the next run's input may overwrite them.

use std::collections::HashMap;

use vit_graph::memory::root_of;
use vit_graph::{GraphError, NodeId, Type, Value};

use crate::driver::Event;
use crate::driver::memory::ALIGNMENT;
use crate::plan::prepare::{Bases, Prepared};

pub(crate) struct DeviceInput {
    pub ty: Type,
    pub address: u64,
    /// Its offset in the staging buffer of the host.
    pub staging_offset: usize,
    /// For an input that is copied on a second stream while the previous run executes. `None` for one that is small or
    /// never read: its copies are in the stream of the runs.
    pub last_read: Option<LastRead>,
    /// Recorded after the latest copy from the staging buffer.
    pub copied: Event,
    /// Whether the next run must wait for that copy, which was made on the second stream.
    pub pending: bool,
}

/// The last read of an input within a run. The input's memory holds nothing else in the rest of the run, so the input
/// of the next run may be copied there.
pub(crate) struct LastRead {
    /// The last step that reads it; one past the last step stands for the updates, after which the run ends.
    pub step: usize,
    /// Recorded after that step.
    pub done: Event,
}

/// An input of at least so many bytes is copied while the previous run executes. The copy of a smaller one delays the
/// next run by at most some tens of microseconds (over PCIe); overlapping it would take events between two streams and
/// split the captured CUDA graph once more.
const WORTH_OVERLAPPING: usize = 1 << 20;

/// The graph's inputs by name, and the bytes of the staging buffer for all of them. `steps` are the nodes in the order
/// in which they run.
pub(crate) fn inputs(
    p: &Prepared,
    bases: &Bases,
    steps: &[NodeId],
) -> Result<(HashMap<String, DeviceInput>, usize), GraphError> {
    let (mut inputs, mut staging_offset) = (HashMap::new(), 0);
    let last_reads = last_reads(p, steps);
    for (node, input) in p.graph.inputs() {
        let value = Value { node, output: 0 };
        let address = p.operand(value, Some(bases)).address;
        let ty = input.ty.clone();
        let bytes = ty.bytes();
        let last_read = match last_reads.get(&node) {
            Some(&step) if bytes >= WORTH_OVERLAPPING => Some(LastRead { step, done: Event::new()? }),
            _ => None,
        };
        let copied = Event::new()?;
        inputs
            .insert(input.name.clone(), DeviceInput { ty, address, staging_offset, last_read, copied, pending: false });
        staging_offset += bytes.next_multiple_of(ALIGNMENT);
    }
    Ok((inputs, staging_offset))
}

/// For each node whose memory is read, the last step that reads it; callers look up inputs, which have one output. An
/// output or an update of the graph is read until the end.
fn last_reads(p: &Prepared, steps: &[NodeId]) -> HashMap<NodeId, usize> {
    let position: HashMap<NodeId, usize> = steps.iter().enumerate().map(|(i, &node)| (node, i)).collect();
    let mut last: HashMap<NodeId, usize> = HashMap::new();
    let mut read = |value: Value, step: usize| {
        let last_step = last.entry(root_of(&p.graph, value).node).or_default();
        *last_step = step.max(*last_step);
    };
    for (id, node) in p.graph.nodes().iter().enumerate() {
        // Sources, reshapes and constant nodes have no step.
        if let Some(&step) = position.get(&p.groups.runs_with(id)) {
            node.inputs.iter().for_each(|&value| read(value, step));
        }
    }
    let results = p.graph.outputs().iter().map(|(_, v)| *v).chain(p.graph.updates().iter().map(|(_, v)| *v));
    results.for_each(|value| read(value, steps.len()));
    last
}
