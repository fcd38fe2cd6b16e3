//! Linear layers save the derivative of their activation for the backward pass. Computing the derivative in the
//! epilogue of the matrix product costs little, and the gradient of the activation becomes a multiplication by it.

use super::GraphCopy;
use crate::ops::{Activation, Binary, LinearWithDerivative, MatMul, MatMulTimes, Op, Reshape};
use crate::{Graph, GraphError, NodeId, Value};

/// `z = linear(x)`, `y = activation(z)`, `dz = activation_grad(z, dy)` → `(y, derivative) =`
/// [`LinearWithDerivative`]`(x)`, `dz = dy · derivative`, where `z` has no other consumer. If `dy` is a matrix product
/// without another consumer, its epilogue multiplies ([`MatMulTimes`]).
pub fn save_activation_derivative(graph: &Graph) -> Result<Graph, GraphError> {
    let consumers = consumers(graph);
    let mut copy = GraphCopy::of(graph);
    let mut derivatives: Vec<Option<Value>> = vec![None; graph.nodes().len()];
    let products: Vec<Option<(NodeId, MatMul)>> =
        (0..graph.nodes().len()).map(|id| fusable_product(graph, &consumers, id)).collect();
    let fused: Vec<NodeId> = products.iter().flatten().map(|(id, _)| *id).collect();
    for (id, node) in graph.nodes().iter().enumerate() {
        if let Op::Linear(linear) = &node.op
            && let Some((activation, applied)) = only_activation(graph, &consumers, id)
        {
            let op = LinearWithDerivative { bias: linear.bias, activation };
            let inputs = copy.inputs(node);
            let added = copy.new.add_like(node, op, &inputs)?;
            applied.iter().for_each(|&a| {
                copy.replace(Value { node: a, output: 0 }, Value { node: added, output: 0 });
            });
            derivatives[id] = Some(Value { node: added, output: 1 });
            continue;
        }
        match &node.op {
            // Fused into its linear layer.
            Op::Activation(_) if derivatives[node.inputs[0].node].is_some() => {}
            // Fused with the gradient of the activation that consumes it, perhaps through a reshape.
            Op::MatMul(_) if fused.contains(&id) => {}
            Op::Reshape(_) if fused.contains(&node.inputs[0].node) => {}
            Op::ActivationGrad(_) => match (derivatives[node.inputs[0].node], products[id]) {
                (None, _) => copy.copy_node(id)?,
                (Some(derivative), None) => {
                    let inputs = [copy.lookup(node.inputs[1]), derivative];
                    let added = copy.new.add_like(node, Binary::Mul, &inputs)?;
                    copy.replace(Value { node: id, output: 0 }, Value { node: added, output: 0 });
                }
                (Some(derivative), Some((product, matmul))) => {
                    let old = graph.node(product);
                    // The product may have other leading axes (`[rows, n]` in a linear layer's gradient) than the
                    // derivative.
                    let flat = Reshape(old.outputs[0].shape.clone());
                    let factor = copy.new.add_like(old, flat, &[derivative])?;
                    let mut inputs = copy.inputs(old);
                    inputs.push(Value { node: factor, output: 0 });
                    let times = copy.new.add_like(old, MatMulTimes(matmul), &inputs)?;
                    let shape = Reshape(node.outputs[0].shape.clone());
                    let added = copy.new.add_like(old, shape, &[Value { node: times, output: 0 }])?;
                    copy.replace(Value { node: id, output: 0 }, Value { node: added, output: 0 });
                }
            },
            _ => copy.copy_node(id)?,
        }
    }
    copy.finish()
}

/// The consumers of each node. An output of the graph and a new value of an update count as their own consumers, so
/// that a node they read is never taken for one with a single consumer.
fn consumers(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut consumers = vec![Vec::new(); graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        node.inputs.iter().for_each(|v| consumers[v.node].push(id));
    }
    let results = graph.outputs().iter().map(|(_, v)| v).chain(graph.updates().iter().map(|(_, v)| v));
    results.for_each(|v| consumers[v.node].push(v.node));
    consumers
}

/// If all consumers of a linear layer are one activation, in one node or in equal ones, and its gradient: the
/// activation and its [`Op::Activation`] nodes.
fn only_activation(graph: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Option<(Activation, Vec<NodeId>)> {
    let Op::Linear(linear) = graph.node(id).op else { return None };
    if !linear.is_plain() || linear.int8 {
        return None;
    }
    let (mut kind, mut applied, mut gradients) = (None, Vec::new(), 0);
    for &consumer in &consumers[id] {
        let used = match graph.node(consumer).op {
            Op::Activation(used) => {
                applied.push(consumer);
                used
            }
            // A gradient that reads the layer's result as `dy` needs that result itself.
            Op::ActivationGrad(grad) if graph.node(consumer).inputs[1].node != id => {
                gradients += 1;
                grad.0
            }
            _ => return None,
        };
        if *kind.get_or_insert(used) != used {
            return None;
        }
    }
    (gradients > 0 && !applied.is_empty()).then_some((kind?, applied))
}

/// The matrix product whose only consumer, perhaps through a reshape, is this gradient of an activation, as its `dy`.
fn fusable_product(graph: &Graph, consumers: &[Vec<NodeId>], id: NodeId) -> Option<(NodeId, MatMul)> {
    let node = graph.node(id);
    let Op::ActivationGrad(_) = node.op else { return None };
    only_activation(graph, consumers, node.inputs[0].node)?;
    let mut value = node.inputs[1];
    if let Op::Reshape(_) = graph.node(value.node).op
        && consumers[value.node].len() == 1
    {
        value = graph.node(value.node).inputs[0];
    }
    match graph.node(value.node).op {
        Op::MatMul(matmul) if consumers[value.node].len() == 1 => Some((value.node, matmul)),
        _ => None,
    }
}
