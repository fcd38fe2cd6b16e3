//! Gradient of a layer norm and of the residual connection around its branch in one pass over memory.

use super::GraphCopy;
use crate::ops::{Binary, LayerNormGradAdd, Op};
use crate::{Graph, GraphError, NodeId, Value};

/// `layer_norm_grad(..).dx + residual_grad` → [`LayerNormGradAdd`], where the sum is the only consumer of `dx`. The
/// fused node takes the sum's place, so no consumer of `dgamma` or `dbeta` may precede the sum.
pub fn fuse_norm_grad_add(graph: &Graph) -> Result<Graph, GraphError> {
    let nodes = graph.nodes();
    let uses = graph.uses();
    let mut first_consumer = vec![nodes.len(); nodes.len()];
    for (id, node) in nodes.iter().enumerate() {
        node.inputs.iter().for_each(|v| first_consumer[v.node] = first_consumer[v.node].min(id));
    }
    // For a sum that is fused: the `LayerNormGrad` node and its operation, and the other term.
    let fused = |id: NodeId| {
        let Op::Binary(Binary::Add) = nodes[id].op else { return None };
        let [x, y] = [nodes[id].inputs[0], nodes[id].inputs[1]];
        let norm_grad = |v: Value| match nodes[v.node].op {
            Op::LayerNormGrad(op) if v.output == 0 && uses[v.node][0] == 1 && first_consumer[v.node] == id => Some(op),
            _ => None,
        };
        let found = match norm_grad(x) {
            Some(op) => (x.node, op, y),
            None => (y.node, norm_grad(y)?, x),
        };
        (graph.shape(x) == graph.shape(y)).then_some(found)
    };
    let mut inside = vec![false; nodes.len()];
    (0..nodes.len()).filter_map(fused).for_each(|(grad, ..)| inside[grad] = true);
    let mut copy = GraphCopy::of(graph);
    for id in (0..nodes.len()).filter(|&id| !inside[id]) {
        let Some((grad, op, residual_grad)) = fused(id) else {
            copy.copy_node(id)?;
            continue;
        };
        let mut inputs = copy.inputs(&nodes[grad]);
        inputs.push(copy.lookup(residual_grad));
        let node = copy.new.add_like(&nodes[grad], LayerNormGradAdd(op), &inputs)?;
        copy.replace(Value { node: id, output: 0 }, Value { node, output: 0 });
        for output in [1, 2] {
            copy.replace(Value { node: grad, output }, Value { node, output });
        }
    }
    copy.finish()
}
