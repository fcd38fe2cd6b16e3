//! Dead code elimination.

use super::GraphCopy;
use crate::ops::Op;
use crate::{Graph, GraphError};

/// Removes the nodes that no output or update depends on. Inputs stay, so that callers can write all of them.
pub fn eliminate_dead_code(graph: &Graph) -> Result<Graph, GraphError> {
    let mut needed = vec![false; graph.nodes().len()];
    graph.outputs().iter().for_each(|(_, v)| needed[v.node] = true);
    for (parameter, new) in graph.updates() {
        // The new value need not depend on the old one.
        (needed[parameter.node], needed[new.node]) = (true, true);
    }
    for id in (0..needed.len()).rev() {
        needed[id] |= matches!(graph.node(id).op, Op::Input(_));
        if needed[id] {
            graph.node(id).inputs.iter().for_each(|v| needed[v.node] = true);
        }
    }
    let mut copy = GraphCopy::of(graph);
    for id in (0..needed.len()).filter(|&id| needed[id]) {
        copy.copy_node(id)?;
    }
    copy.finish()
}
