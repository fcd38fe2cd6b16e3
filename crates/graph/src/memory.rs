//! Static memory planning: every temporary gets an offset in one arena from its live range, so that running allocates
//! nothing and peak memory is known in advance.

use std::collections::HashMap;

use crate::ops::{Op, Operation};
use crate::{Graph, NodeId, Value};

/// Offsets are multiples of this many bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// A range of bytes in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ArenaRange {
    pub offset: usize,
    pub bytes: usize,
}

/// The offsets of all temporaries of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// `[node][output]`; `None` for values outside the arena, and for reshapes, which share their input's range.
    values: Vec<Vec<Option<ArenaRange>>>,
    /// By node.
    workspaces: Vec<Option<ArenaRange>>,
    /// The size of the arena.
    pub arena_bytes: usize,
}

/// A buffer to be placed: a workspace, or one value or several that overwrite one another in place. It is live from its
/// first to its last node, both included: a node's inputs and outputs must not overlap.
struct LiveRange {
    bytes: usize,
    first: NodeId,
    last: NodeId,
    owner: Owner,
}

/// What a buffer is first used for.
#[derive(Clone, Copy)]
enum Owner {
    Value(Value),
    Workspace(NodeId),
}

/// A device's requirements for the memory of a graph.
pub struct MemoryRequirements<'a> {
    /// Bytes of a value, which a device may store in lower precision than its type.
    pub bytes: &'a dyn Fn(Value) -> usize,
    /// Bytes of a node's workspace.
    pub workspace: &'a dyn Fn(NodeId) -> usize,
    /// Values that are not in the arena: stored elsewhere, or never written.
    pub outside: &'a dyn Fn(Value) -> bool,
    /// Whether a node's kernel can update the pairs of [`Operation::in_place`] in place.
    pub in_place: &'a dyn Fn(NodeId) -> bool,
    /// The node that a node was fused into, which reads its inputs and writes its outputs; itself otherwise.
    pub runs_with: &'a dyn Fn(NodeId) -> NodeId,
    /// From this many bytes on, a buffer is placed only where another of the same size was, or in new memory; smaller
    /// buffers are placed anywhere. On CPUs with private caches, where each core works on the same range of every
    /// value, a core then overwrites cache lines that it owns instead of fetching them from another core. The arena is
    /// somewhat larger.
    pub exact_fit_from: usize,
}

impl MemoryPlan {
    /// Plans a graph. `workspace` is the size in bytes of each node's workspace; values `outside` are not in the arena,
    /// nor are parameters and constants. No node works in place.
    ///
    /// Inputs are live throughout, so that a run can be repeated; outputs are live from their node on. A reshape shares
    /// its input's memory.
    pub fn new(graph: &Graph, workspace: impl Fn(NodeId) -> usize, outside: impl Fn(Value) -> bool) -> MemoryPlan {
        MemoryPlan::with_requirements(
            graph,
            MemoryRequirements {
                bytes: &|value| graph.ty(value).bytes(),
                workspace: &workspace,
                outside: &outside,
                in_place: &|_| false,
                runs_with: &|node| node,
                exact_fit_from: usize::MAX,
            },
        )
    }

    /// Plans a graph for a device that may store values in lower precision, fuse nodes and work in place.
    pub fn with_requirements(graph: &Graph, required: MemoryRequirements) -> MemoryPlan {
        let nodes = graph.nodes();
        let uses = graph.uses();
        // The end of the live ranges of outputs and new parameters, which are read after the last node.
        let end = nodes.len();
        // The last node that reads each value.
        let mut last_read: Vec<Vec<NodeId>> = nodes.iter().map(|n| vec![0; n.outputs.len()]).collect();
        for (id, node) in nodes.iter().enumerate() {
            let read_at = (required.runs_with)(id).max(id);
            for &input in &node.inputs {
                let root = root_of(graph, input);
                last_read[root.node][root.output] = last_read[root.node][root.output].max(read_at);
            }
        }
        let outputs = graph.outputs().iter().map(|(_, value)| value);
        for value in outputs.chain(graph.updates().iter().map(|(_, value)| value)) {
            let root = root_of(graph, *value);
            last_read[root.node][root.output] = end;
        }

        let mut live: Vec<LiveRange> = Vec::new();
        // The buffer of each value in the arena, by its index in `live`.
        let mut buffers: HashMap<Value, usize> = HashMap::new();
        for (id, node) in nodes.iter().enumerate() {
            let workspace = (required.workspace)(id);
            if workspace > 0 {
                live.push(LiveRange { bytes: workspace, first: id, last: id, owner: Owner::Workspace(id) });
            }
            let is_input = matches!(node.op, Op::Input(_));
            if !node.op.computes() && !is_input {
                continue;
            }
            for output in 0..node.outputs.len() {
                let value = Value { node: id, output };
                let written = output == 0 && node.op.always_writes_first_output() && uses[id].iter().any(|&n| n > 0);
                if (uses[id][output] == 0 && !is_input && !written) || (required.outside)(value) {
                    continue;
                }
                let written_at = (required.runs_with)(id);
                let bytes = (required.bytes)(value);
                let overwritten =
                    overwritten(graph, value, &required).filter(|old| last_read[old.node][old.output] == id);
                if let Some(&buffer) = overwritten.and_then(|old| buffers.get(&old))
                    && live[buffer].bytes == bytes
                {
                    live[buffer].last = live[buffer].last.max(last_read[id][output]);
                    buffers.insert(value, buffer);
                    continue;
                }
                let (first, last) =
                    if is_input { (0, end) } else { (id.min(written_at), last_read[id][output].max(written_at)) };
                // Without an entry here no node overwrites an input.
                if !is_input {
                    buffers.insert(value, live.len());
                }
                live.push(LiveRange { bytes, first, last, owner: Owner::Value(value) });
            }
        }
        let owners: HashMap<Value, Owner> = buffers.into_iter().map(|(v, buffer)| (v, live[buffer].owner)).collect();
        let mut plan = Self::place(graph, live, required.exact_fit_from);
        for (value, owner) in owners {
            if let Owner::Value(placed) = owner {
                plan.values[value.node][value.output] = plan.values[placed.node][placed.output];
            }
        }
        plan
    }

    /// Greedy by size: largest first, each at the lowest offset that no buffer occupies which is live at the same time.
    /// A buffer of at least `exact_fit_from` bytes reuses only ranges of its size, or extends the arena.
    fn place(graph: &Graph, mut live: Vec<LiveRange>, exact_fit_from: usize) -> MemoryPlan {
        live.sort_by_key(|r| (std::cmp::Reverse(r.bytes), r.first));
        let mut plan = MemoryPlan {
            values: graph.nodes().iter().map(|n| vec![None; n.outputs.len()]).collect(),
            workspaces: vec![None; graph.nodes().len()],
            arena_bytes: 0,
        };
        let mut placed: Vec<(NodeId, NodeId, ArenaRange)> = Vec::with_capacity(live.len());
        for buffer in live {
            let bytes = buffer.bytes.next_multiple_of(ALIGNMENT);
            let mut neighbours: Vec<ArenaRange> = placed
                .iter()
                .filter(|(first, last, _)| *first <= buffer.last && buffer.first <= *last)
                .map(|(_, _, range)| *range)
                .collect();
            neighbours.sort_by_key(|b| b.offset);
            let offset = if bytes >= exact_fit_from {
                // All buffers so far were placed like this one, so their ranges are either equal or disjoint.
                let reusable = placed.iter().map(|(_, _, range)| *range).filter(|range| range.bytes == bytes);
                let free = reusable.filter(|range| !neighbours.contains(range)).map(|range| range.offset).min();
                free.unwrap_or(plan.arena_bytes)
            } else {
                let mut offset = 0;
                for range in neighbours {
                    if offset + bytes <= range.offset {
                        break;
                    }
                    offset = offset.max(range.offset + range.bytes);
                }
                offset
            };
            placed.push((buffer.first, buffer.last, ArenaRange { offset, bytes }));
            plan.arena_bytes = plan.arena_bytes.max(offset + bytes);
            let range = Some(ArenaRange { offset, bytes: buffer.bytes });
            match buffer.owner {
                Owner::Value(value) => plan.values[value.node][value.output] = range,
                Owner::Workspace(node) => plan.workspaces[node] = range,
            }
        }
        plan
    }

    /// The range of a value; `None` if it is outside the arena or an unused output that no kernel writes.
    pub fn range(&self, graph: &Graph, value: Value) -> Option<ArenaRange> {
        let root = root_of(graph, value);
        self.values[root.node][root.output]
    }

    /// The range of a node's workspace.
    pub fn workspace(&self, node: NodeId) -> Option<ArenaRange> {
        self.workspaces[node]
    }
}

/// The value that this one may overwrite if nothing reads it later: an operand that the kernel of this value updates in
/// place and reads as no other operand.
fn overwritten(graph: &Graph, value: Value, required: &MemoryRequirements) -> Option<Value> {
    let node = graph.node(value.node);
    let (input, _) = *node.op.in_place().iter().find(|(_, output)| *output == value.output)?;
    let old = root_of(graph, *node.inputs.get(input)?);
    let reads = node.inputs.iter().filter(|&&v| root_of(graph, v) == old).count();
    let alone = (required.runs_with)(value.node) == value.node;
    ((required.in_place)(value.node) && alone && reads == 1).then_some(old)
}

/// The value whose memory this one shares: itself, or for a chain of reshapes, which are views, the input of the first.
pub fn root_of(graph: &Graph, mut value: Value) -> Value {
    while let Op::Reshape(_) = graph.node(value.node).op {
        value = graph.node(value.node).inputs[0];
    }
    value
}
