//! int8 quantisation of linear layers.

use super::GraphCopy;
use crate::analysis::constant_nodes;
use crate::memory::root_of;
use crate::ops::{Linear, Op, Operation};
use crate::{Graph, GraphError, NodeId, Value};

/// [`Linear`] → `Linear` with `int8`, where the weights are parameters. The first layer, which reads the image, and
/// those whose result is an output of the graph stay in f32, since quantising them costs the most accuracy; so do
/// layers that depend on parameters alone (the MLP of relative positions), which runs do not compute.
pub fn quantise_int8(graph: &Graph) -> Result<Graph, GraphError> {
    let constant = constant_nodes(graph);
    let mut copy = GraphCopy::of(graph);
    for (id, node) in graph.nodes().iter().enumerate() {
        match node.op {
            Op::Linear(linear) if !constant[id] && is_quantisable(graph, id) => {
                let op = Linear { int8: true, ..linear };
                let inputs = copy.inputs(node);
                let added = copy.new.add_like(node, op, &inputs)?;
                copy.replace(Value { node: id, output: 0 }, Value { node: added, output: 0 });
            }
            _ => copy.copy_node(id)?,
        }
    }
    copy.finish()
}

fn is_quantisable(graph: &Graph, id: NodeId) -> bool {
    let inputs = &graph.node(id).inputs;
    let weight = root_of(graph, inputs[1]);
    let is_output = graph.outputs().iter().any(|(_, v)| root_of(graph, *v).node == id);
    matches!(graph.node(weight.node).op, Op::Parameter(_)) && !is_output && !reads_input(graph, inputs[0])
}

/// Whether a value is a graph input, perhaps with its elements moved.
fn reads_input(graph: &Graph, value: Value) -> bool {
    let node = graph.node(value.node);
    match node.op {
        Op::Input(_) => true,
        ref op => op.moves_elements() && reads_input(graph, node.inputs[0]),
    }
}
