//! Gathers of parameters of which each process has a slice, placed so that few whole parameters are in memory at once.

use std::collections::{BTreeSet, HashMap};

use super::GraphCopy;
use super::activation_checkpointing::block_scope;
use crate::ops::Op;
use crate::{Graph, GraphError, Node, NodeId, Phase, Value};

/// The gather of a parameter → one gather for every block that reads the parameter, forward and backward, placed where
/// the preceding block begins: the parameter is received while that block is computed, and its memory is free after its
/// last read in the block that needs it. Consecutive blocks that read the same parameter share one gather.
///
/// A block is a numbered module of the model, as in [`checkpoint_activations`](super::checkpoint_activations), or
/// whatever is between two of them, in one phase.
pub fn gather_by_block(graph: &Graph) -> Result<Graph, GraphError> {
    let is_gather = |id: NodeId| {
        let node = graph.node(id);
        matches!(node.op, Op::AllGather(_)) && matches!(graph.node(node.inputs[0].node).op, Op::Parameter(_))
    };
    let mut blocks: Vec<Block> = Vec::new();
    let mut last = None;
    for (id, node) in graph.nodes().iter().enumerate() {
        if node.inputs.is_empty() || is_gather(id) {
            continue;
        }
        let backward = matches!(node.phase, Phase::Backward | Phase::Recompute);
        let key = Some((backward, node.phase == Phase::Update, block_scope(&node.scope)));
        if key != last {
            blocks.push(Block { first: id, reads: BTreeSet::new() });
            last = key;
        }
        let reads = node.inputs.iter().map(|v| v.node).filter(|&node| is_gather(node));
        blocks.last_mut().expect("the first node begins a block").reads.extend(reads);
    }

    let mut copy = GraphCopy::of(graph);
    // The gathered parameters of the current block, and those of the next one, which are received meanwhile.
    let (mut current, mut next) = (HashMap::new(), HashMap::new());
    let mut upcoming = blocks.iter().peekable();
    for (id, node) in graph.nodes().iter().enumerate() {
        if is_gather(id) {
            continue;
        }
        if let Some(block) = upcoming.next_if(|block| block.first == id) {
            // The first block: none before it has added its gathers.
            if current.is_empty() && next.is_empty() {
                next = gather(&mut copy, graph, block, &current)?;
            }
            current = std::mem::take(&mut next);
            if let Some(block) = upcoming.peek() {
                next = gather(&mut copy, graph, block, &current)?;
            }
        }
        let inputs: Vec<Value> =
            node.inputs.iter().map(|v| current.get(&v.node).copied().unwrap_or_else(|| copy.lookup(*v))).collect();
        let added = copy.new.add_like(node, node.op.clone(), &inputs)?;
        for output in 0..node.outputs.len() {
            copy.replace(Value { node: id, output }, Value { node: added, output });
        }
    }
    copy.finish()
}

/// Consecutive nodes of one block.
struct Block {
    first: NodeId,
    /// The gathers whose results its nodes read, as nodes of the old graph.
    reads: BTreeSet<NodeId>,
}

/// The gathered parameters of a block, by the old gather: those of the block `before` again, and new gathers for the
/// others.
fn gather(
    copy: &mut GraphCopy,
    graph: &Graph,
    block: &Block,
    before: &HashMap<NodeId, Value>,
) -> Result<HashMap<NodeId, Value>, GraphError> {
    let like = Node { inputs: Vec::new(), ..graph.node(block.first).clone() };
    let mut gathered = HashMap::new();
    for &id in &block.reads {
        let node = graph.node(id);
        let value = match before.get(&id) {
            Some(value) => *value,
            None => {
                let slice = copy.lookup(node.inputs[0]);
                Value { node: copy.new.add_like(&like, node.op.clone(), &[slice])?, output: 0 }
            }
        };
        gathered.insert(id, value);
    }
    Ok(gathered)
}
