//! The memory plan: every temporary gets an offset in one arena from its lifetime, so that running allocates
//! nothing and peak memory is known before.

use crate::ops::{Op, Operation};
use crate::{Graph, NodeId, Value};

/// Offsets are multiples of this, a cache line and the widest vector.
pub const ALIGNMENT: usize = 64;

/// A stretch of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ArenaRange {
    pub offset: usize,
    pub bytes: usize,
}

/// Where everything lies while a graph runs.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    values: Vec<Vec<Option<ArenaRange>>>,
    workspaces: Vec<Option<ArenaRange>>,
    /// The size of the arena.
    pub arena_bytes: usize,
}

/// One stretch to be placed, alive from the first to the last of these nodes.
struct LiveRange {
    bytes: usize,
    first: NodeId,
    last: NodeId,
    owner: Owner,
}

#[derive(Clone, Copy)]
enum Owner {
    Value(Value),
    Workspace(NodeId),
}

/// What a device says about its memory when a graph is planned.
pub struct Needs<'a> {
    /// Bytes of a value, which may be stored in fewer bits than its type says.
    pub bytes: &'a dyn Fn(Value) -> usize,
    /// Bytes of scratch memory that a node wants.
    pub workspace: &'a dyn Fn(NodeId) -> usize,
    /// Values that are kept elsewhere, or never written.
    pub outside: &'a dyn Fn(Value) -> bool,
    /// The node with which a node runs: itself, or another that it was fused into, which reads its inputs and writes its
    /// outputs then.
    pub runs_with: &'a dyn Fn(NodeId) -> NodeId,
    /// From how many bytes on a value shares memory only with what is equally long.
    pub large: usize,
}

impl MemoryPlan {
    /// Plans a graph; `workspace` says how many bytes of scratch memory a device wants for a node, `outside` which
    /// values it keeps elsewhere.
    ///
    /// Inputs keep their memory for good, so that a run can be repeated; outputs keep it from their node on.
    /// Parameters and constants live outside the arena. A reshape shares its input's memory.
    pub fn new(graph: &Graph, workspace: impl Fn(NodeId) -> usize, outside: impl Fn(Value) -> bool) -> MemoryPlan {
        Self::with_places(graph, workspace, outside, usize::MAX)
    }

    /// As [`MemoryPlan::new`], but what takes `large` bytes or more shares memory only with what is equally long.
    ///
    /// Where cores have caches of their own and each works on its part of every value, a part then stays with its core:
    /// writing over what another core wrote last means fetching it from there. It takes somewhat more memory.
    pub fn with_places(
        graph: &Graph,
        workspace: impl Fn(NodeId) -> usize,
        outside: impl Fn(Value) -> bool,
        large: usize,
    ) -> MemoryPlan {
        MemoryPlan::with_needs(
            graph,
            Needs {
                bytes: &|value| graph.ty(value).bytes(),
                workspace: &workspace,
                outside: &outside,
                runs_with: &|node| node,
                large,
            },
        )
    }

    /// Plans a graph for a device with storage types and fusions of its own.
    pub fn with_needs(graph: &Graph, needs: Needs) -> MemoryPlan {
        let nodes = graph.nodes();
        let uses = graph.uses();
        let end = nodes.len();
        let mut last: Vec<Vec<NodeId>> = nodes.iter().map(|n| vec![0; n.outputs.len()]).collect();
        for (id, node) in nodes.iter().enumerate() {
            let runs = (needs.runs_with)(id).max(id);
            for &input in &node.inputs {
                let root = storage(graph, input);
                last[root.node][root.output] = last[root.node][root.output].max(runs);
            }
        }
        let outputs = graph.outputs().iter().map(|(_, value)| value);
        for value in outputs.chain(graph.updates().iter().map(|(_, value)| value)) {
            let root = storage(graph, *value);
            last[root.node][root.output] = end;
        }

        let mut requests = Vec::new();
        for (id, node) in nodes.iter().enumerate() {
            let scratch = (needs.workspace)(id);
            if scratch > 0 {
                requests.push(LiveRange { bytes: scratch, first: id, last: id, owner: Owner::Workspace(id) });
            }
            if matches!(node.op, Op::Parameter(_) | Op::Constant(_) | Op::Reshape(_)) {
                continue;
            }
            let input = matches!(node.op, Op::Input(_));
            for output in 0..node.outputs.len() {
                let value = Value { node: id, output };
                let written = output == 0 && node.op.always_writes_first_output() && uses[id].iter().any(|&n| n > 0);
                if (uses[id][output] == 0 && !input && !written) || (needs.outside)(value) {
                    continue;
                }
                let runs = (needs.runs_with)(id);
                let (first, last) = if input { (0, end) } else { (id.min(runs), last[id][output].max(runs)) };
                requests.push(LiveRange { bytes: (needs.bytes)(value), first, last, owner: Owner::Value(value) });
            }
        }
        Self::place(graph, requests, needs.large)
    }

    /// Largest first, each at the lowest offset where nothing alive at the same time lies; for a large one only places
    /// of its own length count, or a new one at the end.
    fn place(graph: &Graph, mut requests: Vec<LiveRange>, large: usize) -> MemoryPlan {
        requests.sort_by_key(|r| (std::cmp::Reverse(r.bytes), r.first));
        let mut plan = MemoryPlan {
            values: graph.nodes().iter().map(|n| vec![None; n.outputs.len()]).collect(),
            workspaces: vec![None; graph.nodes().len()],
            arena_bytes: 0,
        };
        let mut placed: Vec<(NodeId, NodeId, ArenaRange)> = Vec::with_capacity(requests.len());
        for request in requests {
            let bytes = request.bytes.next_multiple_of(ALIGNMENT);
            let mut neighbours: Vec<ArenaRange> = placed
                .iter()
                .filter(|(first, last, _)| *first <= request.last && request.first <= *last)
                .map(|(_, _, block)| *block)
                .collect();
            neighbours.sort_by_key(|b| b.offset);
            let offset = if bytes >= large {
                let places = placed.iter().map(|(_, _, block)| *block).filter(|block| block.bytes == bytes);
                let free = places.filter(|place| !neighbours.contains(place)).map(|place| place.offset).min();
                free.unwrap_or(plan.arena_bytes)
            } else {
                let mut offset = 0;
                for block in neighbours {
                    if offset + bytes <= block.offset {
                        break;
                    }
                    offset = offset.max(block.offset + block.bytes);
                }
                offset
            };
            placed.push((request.first, request.last, ArenaRange { offset, bytes }));
            plan.arena_bytes = plan.arena_bytes.max(offset + bytes);
            let block = Some(ArenaRange { offset, bytes: request.bytes });
            match request.owner {
                Owner::Value(value) => plan.values[value.node][value.output] = block,
                Owner::Workspace(node) => plan.workspaces[node] = block,
            }
        }
        plan
    }

    /// Where a value lies; `None` for parameters, constants, and outputs that nobody uses and no kernel must write.
    pub fn range(&self, graph: &Graph, value: Value) -> Option<ArenaRange> {
        let root = storage(graph, value);
        self.values[root.node][root.output]
    }

    /// Where a node's scratch memory lies.
    pub fn workspace(&self, node: NodeId) -> Option<ArenaRange> {
        self.workspaces[node]
    }
}

/// The value whose memory this one shares: itself, or what it is a reshape of.
pub fn storage(graph: &Graph, mut value: Value) -> Value {
    while let Op::Reshape(_) = graph.node(value.node).op {
        value = graph.node(value.node).inputs[0];
    }
    value
}
