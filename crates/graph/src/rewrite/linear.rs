//! Epilogue fusion for linear layers: activation, layer scale, residual sum.

use super::{GraphCopy, only_consumers};
use crate::ops::{Binary, Linear, Op};
use crate::{Graph, GraphError, NodeId, Value};

/// A linear layer and the chain of nodes that become its epilogue; each is the only consumer of the one before.
struct LinearChain {
    linear: Linear,
    scale: Option<Value>,
    residual: Option<Value>,
    last: NodeId,
}

/// `residual + scale · activation(linear(x))` → one [`Linear`] with that epilogue. Each of the three is optional;
/// intermediates must have no other consumer.
pub fn fuse_linear(graph: &Graph) -> Result<Graph, GraphError> {
    let consumers = only_consumers(graph);
    let mut chains: Vec<Option<(NodeId, LinearChain)>> = (0..graph.nodes().len()).map(|_| None).collect();
    let mut inside = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        if let Op::Linear(linear) = node.op
            && linear.is_plain()
        {
            let (chain, members) = follow(graph, &consumers, &inside, id, linear);
            if chain.last != id {
                members.iter().for_each(|&m| inside[m] = true);
                // The fused node takes the place of the last member, after the operands of all of them.
                let last = chain.last;
                chains[last] = Some((id, chain));
            }
        }
    }
    let mut copy = GraphCopy::of(graph);
    for id in 0..graph.nodes().len() {
        match &chains[id] {
            None if inside[id] => {}
            None => copy.copy_node(id)?,
            Some((first, chain)) => {
                let mut inputs = copy.inputs(graph.node(*first));
                inputs.extend([chain.scale, chain.residual].iter().flatten().map(|&v| copy.lookup(v)));
                let node = copy.new.add_like(graph.node(*first), chain.linear, &inputs)?;
                copy.replace(Value { node: id, output: 0 }, Value { node, output: 0 });
            }
        }
    }
    copy.finish()
}

/// The longest chain from a linear layer whose nodes fit its epilogue, and the nodes of the chain.
fn follow(
    graph: &Graph,
    consumers: &[Option<NodeId>],
    inside: &[bool],
    first: NodeId,
    linear: Linear,
) -> (LinearChain, Vec<NodeId>) {
    let mut chain = LinearChain { linear, scale: None, residual: None, last: first };
    let mut members = vec![first];
    let width = graph.shape(Value { node: first, output: 0 }).last();
    while let Some(next) = consumers[chain.last].filter(|&next| !inside[next]) {
        let node = graph.node(next);
        let here = Value { node: chain.last, output: 0 };
        let other = || if node.inputs[0] == here { node.inputs[1] } else { node.inputs[0] };
        let no_scale_or_residual = chain.scale.is_none() && chain.residual.is_none();
        match &node.op {
            Op::Activation(activation) if no_scale_or_residual && chain.linear.activation.is_none() => {
                chain.linear.activation = Some(*activation);
            }
            Op::Binary(Binary::Mul) if no_scale_or_residual && *graph.shape(other()) == [width] => {
                chain.linear.scale = true;
                chain.scale = Some(other());
            }
            Op::Binary(Binary::Add) if chain.residual.is_none() && graph.shape(other()) == graph.shape(here) => {
                chain.linear.residual = true;
                chain.residual = Some(other());
            }
            _ => break,
        }
        members.push(next);
        chain.last = next;
    }
    (chain, members)
}
