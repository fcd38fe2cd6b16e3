//! A sum that is normalised next: one pass over memory instead of two.

use super::Copy;
use crate::ops::{AddLayerNorm, Binary, Op};
use crate::{Graph, GraphError, Value};

/// Fuses a layer norm with the sum of two values of one shape before it. The sum stays available to others.
pub fn fuse_add_norm(graph: &Graph) -> Result<Graph, GraphError> {
    let nodes = graph.nodes();
    // The sum is computed where the norm stands, so nobody may need it before: the norm must be its first user.
    let mut first_user = vec![None; nodes.len()];
    for (id, node) in nodes.iter().enumerate() {
        node.inputs.iter().for_each(|v| {
            first_user[v.node].get_or_insert(id);
        });
    }
    let fused_by = |id: usize| {
        let Op::Binary(Binary::Add) = nodes[id].op else { return None };
        let [x, y] = [nodes[id].inputs[0], nodes[id].inputs[1]];
        let user = first_user[id]?;
        let norm = matches!(nodes[user].op, Op::LayerNorm(_)) && nodes[user].inputs[0].node == id;
        (norm && graph.shape(x) == graph.shape(y)).then_some(user)
    };
    let mut copy = Copy::of(graph);
    for (id, node) in nodes.iter().enumerate() {
        if fused_by(id).is_some() {
            continue;
        }
        let sum = node.inputs.first().map(|v| v.node).filter(|&sum| fused_by(sum) == Some(id));
        match (&node.op, sum) {
            (Op::LayerNorm(norm), Some(sum)) => {
                let [x, y] = [nodes[sum].inputs[0], nodes[sum].inputs[1]];
                let inputs = [x, y, node.inputs[1], node.inputs[2]].map(|v| copy.moved(v));
                let added = copy.new.add_like(node, AddLayerNorm(*norm), &inputs)?;
                (0..3).for_each(|output| copy.place(Value { node: id, output }, Value { node: added, output }));
                copy.place(Value { node: sum, output: 0 }, Value { node: added, output: 3 });
            }
            _ => copy.keep(id)?,
        }
    }
    copy.finish()
}
