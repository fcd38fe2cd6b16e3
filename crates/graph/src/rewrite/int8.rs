//! Linear layers in eight bits, where it costs little accuracy.

use super::Copy;
use crate::memory::storage;
use crate::ops::{Linear, Op};
use crate::{Graph, GraphError, NodeId, Value};

/// Quantises the linear layers whose weights are parameters, but for the first, which sees the picture, and the last,
/// whose result leaves the graph. Norms, softmax, attention and residual sums stay as they are.
pub fn int8(graph: &Graph) -> Result<Graph, GraphError> {
    let mut copy = Copy::of(graph);
    for (id, node) in graph.nodes().iter().enumerate() {
        match node.op {
            Op::Linear(linear) if suits(graph, id) => {
                let op = Linear { int8: true, ..linear };
                let inputs = copy.inputs(node);
                let added = copy.new.add_like(node, op, &inputs)?;
                copy.place(Value { node: id, output: 0 }, Value { node: added, output: 0 });
            }
            _ => copy.keep(id)?,
        }
    }
    copy.finish()
}

fn suits(graph: &Graph, id: NodeId) -> bool {
    let inputs = &graph.node(id).inputs;
    let weight = storage(graph, inputs[1]);
    let leaves = graph.outputs().iter().any(|(_, v)| storage(graph, *v).node == id);
    matches!(graph.node(weight.node).op, Op::Parameter(_)) && !leaves && !sees_input(graph, inputs[0])
}

/// Whether a value is an input whose elements were only moved.
fn sees_input(graph: &Graph, value: Value) -> bool {
    let node = graph.node(value.node);
    match node.op {
        Op::Input(_) => true,
        Op::Reshape(_) | Op::Permute(_) | Op::Patchify(_) | Op::Slice(_) => sees_input(graph, node.inputs[0]),
        _ => false,
    }
}
