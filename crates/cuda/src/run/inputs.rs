//! The inputs of a graph: where they lie, and when the next run's may take their place.

use std::collections::HashMap;

use vit_graph::memory::storage;
use vit_graph::{GraphError, NodeId, Type, Value};

use crate::driver::memory::ALIGNMENT;
use crate::gemm::tuning::Event;
use crate::plan::prepare::{Bases, Prepared};

/// An input: its place on the GPU and in the host's buffer.
pub(crate) struct DeviceInput {
    pub ty: Type,
    pub address: u64,
    pub staged_at: usize,
    /// Where it may be written again; `None` for what is copied between runs.
    pub free: Option<LastRead>,
    /// When the last copy from the host's buffer is done.
    pub copied: Event,
    /// Whether the next run must wait for that copy.
    pub pending: bool,
}

/// Until when a run reads an input: the next one is copied while the run goes on.
pub(crate) struct LastRead {
    /// The last step that reads it; the number of steps where what follows them does.
    pub after: usize,
    /// When the last run had come past that step.
    pub reached: Event,
}

/// Smaller inputs are copied between runs: it takes less time than waiting for another stream.
const WORTH_OVERLAPPING: usize = 1 << 20;

/// The graph's inputs, and the bytes that they take in the host's buffer; `steps` says which node runs when.
pub(crate) fn inputs(
    p: &Prepared,
    bases: &Bases,
    steps: &[NodeId],
) -> Result<(HashMap<String, DeviceInput>, usize), GraphError> {
    let (mut inputs, mut staged) = (HashMap::new(), 0);
    let last_reads = last_reads(p, steps);
    for (node, input) in p.graph.inputs() {
        let value = Value { node, output: 0 };
        debug_assert_eq!(storage(&p.graph, value), value);
        let address = p.operand(value, Some(bases)).address;
        let ty = input.ty.clone();
        let bytes = ty.bytes();
        let after = last_reads.get(&node).copied().filter(|_| bytes >= WORTH_OVERLAPPING);
        let free = after.map(|after| Ok::<_, GraphError>(LastRead { after, reached: Event::new()? })).transpose()?;
        let place = DeviceInput { ty, address, staged_at: staged, free, copied: Event::new()?, pending: false };
        inputs.insert(input.name.clone(), place);
        staged += bytes.next_multiple_of(ALIGNMENT);
    }
    Ok((inputs, staged))
}

/// The last step that reads each input. One that leaves the graph, or becomes a parameter, is read until the end.
fn last_reads(p: &Prepared, steps: &[NodeId]) -> HashMap<NodeId, usize> {
    let position: HashMap<NodeId, usize> = steps.iter().enumerate().map(|(i, &node)| (node, i)).collect();
    let mut last: HashMap<NodeId, usize> = HashMap::new();
    let mut read = |value: Value, step: usize| {
        let at = last.entry(storage(&p.graph, value).node).or_default();
        *at = step.max(*at);
    };
    for (id, node) in p.graph.nodes().iter().enumerate() {
        if let Some(&step) = position.get(&p.groups.runs_with(id)) {
            node.inputs.iter().for_each(|&value| read(value, step));
        }
    }
    let leaving = p.graph.outputs().iter().map(|(_, v)| *v).chain(p.graph.updates().iter().map(|(_, v)| *v));
    leaving.for_each(|value| read(value, steps.len()));
    last
}
