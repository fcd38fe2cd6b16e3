//! Residual sum and layer norm in one pass over memory.

use super::GraphCopy;
use crate::ops::{AddLayerNorm, Binary, Op};
use crate::{Graph, GraphError, Value};

/// `layer_norm(x + y)` → [`AddLayerNorm`]`(x, y)`, for `x` and `y` of one shape, where the norm is the sum's first
/// consumer. The sum is an output of the fused node, for the sum's other consumers.
pub fn fuse_add_norm(graph: &Graph) -> Result<Graph, GraphError> {
    let nodes = graph.nodes();
    // The fused node takes the norm's place, so no other consumer of the sum may precede it.
    let mut first_consumer = vec![None; nodes.len()];
    for (id, node) in nodes.iter().enumerate() {
        node.inputs.iter().for_each(|v| {
            first_consumer[v.node].get_or_insert(id);
        });
    }
    // The norm that a sum is fused into.
    let fused_by = |id: usize| {
        let Op::Binary(Binary::Add) = nodes[id].op else { return None };
        let [x, y] = [nodes[id].inputs[0], nodes[id].inputs[1]];
        let consumer = first_consumer[id]?;
        let norm = matches!(nodes[consumer].op, Op::LayerNorm(_)) && nodes[consumer].inputs[0].node == id;
        (norm && graph.shape(x) == graph.shape(y)).then_some(consumer)
    };
    let mut copy = GraphCopy::of(graph);
    for (id, node) in nodes.iter().enumerate() {
        if fused_by(id).is_some() {
            continue;
        }
        let sum = node.inputs.first().map(|v| v.node).filter(|&sum| fused_by(sum) == Some(id));
        match (&node.op, sum) {
            (Op::LayerNorm(norm), Some(sum)) => {
                let [x, y] = [nodes[sum].inputs[0], nodes[sum].inputs[1]];
                let inputs = [x, y, node.inputs[1], node.inputs[2]].map(|v| copy.lookup(v));
                let added = copy.new.add_like(node, AddLayerNorm(*norm), &inputs)?;
                (0..3).for_each(|output| copy.replace(Value { node: id, output }, Value { node: added, output }));
                copy.replace(Value { node: sum, output: 0 }, Value { node: added, output: 3 });
            }
            _ => copy.copy_node(id)?,
        }
    }
    copy.finish()
}
