//! Elimination of reshapes that change nothing.

use super::GraphCopy;
use crate::ops::Op;
use crate::{Graph, GraphError, Value};

/// A reshape to the shape of its input → the input.
pub fn eliminate_identities(graph: &Graph) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::of(graph);
    for (id, node) in graph.nodes().iter().enumerate() {
        match &node.op {
            Op::Reshape(_) if *graph.shape(node.inputs[0]) == node.outputs[0].shape => {
                let input = copy.lookup(node.inputs[0]);
                copy.replace(Value { node: id, output: 0 }, input);
            }
            _ => copy.copy_node(id)?,
        }
    }
    copy.finish()
}
