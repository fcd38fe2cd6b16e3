//! What the backward pass wants of an activation is its derivative. Computed together with the value, while the linear layer's
//! sums are at hand, it costs little more than the value alone, and turns the gradient into a factor.

use super::Copy;
use crate::ops::{Activation, Binary, Linear, LinearWithDerivative, MatMulTimes, Op, Reshape};
use crate::{Graph, GraphError, NodeId, Value};

/// Where only an activation and its gradient read a linear layer, turns the three into [`LinearWithDerivative`] and a
/// multiplication, which the matrix product that gives `dy` takes in if nobody else sees that.
pub fn keep_derivative(graph: &Graph) -> Result<Graph, GraphError> {
    let users = users(graph);
    let mut copy = Copy::of(graph);
    let mut derivatives: Vec<Option<Value>> = vec![None; graph.nodes().len()];
    let products: Vec<Option<NodeId>> = (0..graph.nodes().len()).map(|id| product(graph, &users, id)).collect();
    let taken: Vec<NodeId> = products.iter().flatten().copied().collect();
    for (id, node) in graph.nodes().iter().enumerate() {
        match &node.op {
            Op::Linear(linear) if activation(graph, &users, id).is_some() => {
                let Some((activation, found)) = activation(graph, &users, id) else { continue };
                let op = LinearWithDerivative { bias: linear.bias, activation };
                let inputs = copy.inputs(node);
                let added = copy.new.add_like(node, op, &inputs)?;
                found.iter().for_each(|&a| {
                    copy.place(Value { node: a, output: 0 }, Value { node: added, output: 0 });
                });
                derivatives[id] = Some(Value { node: added, output: 1 });
            }
            // It stands with its linear layer.
            Op::Activation(_) if derivatives[node.inputs[0].node].is_some() => {}
            // It stands with the gradient that it is taken into, and so does the reshape between.
            Op::MatMul(_) if taken.contains(&id) => {}
            Op::Reshape(_) if taken.contains(&node.inputs[0].node) => {}
            Op::ActivationGrad(_) => match (derivatives[node.inputs[0].node], products[id]) {
                (None, _) => copy.keep(id)?,
                (Some(derivative), None) => {
                    let inputs = [copy.moved(node.inputs[1]), derivative];
                    let added = copy.new.add_like(node, Binary::Mul, &inputs)?;
                    copy.place(Value { node: id, output: 0 }, Value { node: added, output: 0 });
                }
                (Some(derivative), Some(product)) => {
                    let old = graph.node(product);
                    let Op::MatMul(matmul) = old.op else { continue };
                    let flat = Reshape(old.outputs[0].shape.clone());
                    let factor = copy.new.add_like(old, flat, &[derivative])?;
                    let mut inputs = copy.inputs(old);
                    inputs.push(Value { node: factor, output: 0 });
                    let times = copy.new.add_like(old, MatMulTimes(matmul), &inputs)?;
                    let shape = Reshape(node.outputs[0].shape.clone());
                    let added = copy.new.add_like(old, shape, &[Value { node: times, output: 0 }])?;
                    copy.place(Value { node: id, output: 0 }, Value { node: added, output: 0 });
                }
            },
            _ => copy.keep(id)?,
        }
    }
    copy.finish()
}

/// The nodes that read each node; itself among them if it leaves the graph.
fn users(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut users = vec![Vec::new(); graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        node.inputs.iter().for_each(|v| users[v.node].push(id));
    }
    let leaving = graph.outputs().iter().map(|(_, v)| v).chain(graph.updates().iter().map(|(_, v)| v));
    leaving.for_each(|v| users[v.node].push(v.node));
    users
}

/// The activation of a linear layer that only that activation and its gradient read, and the nodes that apply it.
fn activation(graph: &Graph, users: &[Vec<NodeId>], id: NodeId) -> Option<(Activation, Vec<NodeId>)> {
    let Op::Linear(linear) = graph.node(id).op else { return None };
    if linear != (Linear { bias: linear.bias, ..Linear::default() }) {
        return None;
    }
    let (mut kind, mut applied, mut gradients) = (None, Vec::new(), 0);
    for &user in &users[id] {
        let used = match graph.node(user).op {
            Op::Activation(used) => {
                applied.push(user);
                used
            }
            // As its `dy` a value is read for itself.
            Op::ActivationGrad(grad) if graph.node(user).inputs[1].node != id => {
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

/// The matrix product that an activation's gradient can take in: the only reader of its `dy`, but for a reshape.
fn product(graph: &Graph, users: &[Vec<NodeId>], id: NodeId) -> Option<NodeId> {
    let node = graph.node(id);
    let Op::ActivationGrad(_) = node.op else { return None };
    activation(graph, users, node.inputs[0].node)?;
    let mut value = node.inputs[1];
    if let Op::Reshape(_) = graph.node(value.node).op
        && users[value.node].len() == 1
    {
        value = graph.node(value.node).inputs[0];
    }
    (matches!(graph.node(value.node).op, Op::MatMul(_)) && users[value.node].len() == 1).then_some(value.node)
}
