//! Batch norm folding: at inference a batch norm is a scale and a shift per channel, which fold into the weights of the
//! convolution before it.

use super::{GraphCopy, only_consumers};
use crate::analysis::constant_nodes;
use crate::ops::{Binary, Conv2d, Op, Reshape};
use crate::{Graph, GraphError, NodeId, Value};

/// `conv2d(x, w, b) · scale + shift` → `conv2d(x, w · scale, b · scale + shift)`, for constant `w`, `scale` and `shift`
/// with one element per output channel; also longer chains of such products and sums. Intermediates must have no other
/// consumer.
pub fn fold_batch_norm(graph: &Graph) -> Result<Graph, GraphError> {
    let (consumers, constant) = (only_consumers(graph), constant_nodes(graph));
    // The chain after a convolution, empty if there is none: each node with its operation and its constant operand.
    let follow = |id: NodeId| {
        let Op::Conv2d(_) = graph.node(id).op else { return Vec::new() };
        let weight = graph.node(id).inputs[1];
        let filters = graph.shape(weight)[0];
        let mut chain: Vec<(NodeId, Binary, Value)> = Vec::new();
        let mut last = id;
        while let Some(next) = consumers[last].filter(|_| constant[weight.node]) {
            let node = graph.node(next);
            let Op::Binary(op @ (Binary::Mul | Binary::Add)) = node.op else { break };
            let here = Value { node: last, output: 0 };
            let other = if node.inputs[0] == here { node.inputs[1] } else { node.inputs[0] };
            if !constant[other.node] || *graph.shape(other) != [filters] {
                break;
            }
            chain.push((next, op, other));
            last = next;
        }
        chain
    };
    // The convolution of the chain that a node is in.
    let mut inside = vec![None; graph.nodes().len()];
    let chains: Vec<Vec<(NodeId, Binary, Value)>> = (0..graph.nodes().len()).map(follow).collect();
    for (id, chain) in chains.iter().enumerate() {
        chain.iter().for_each(|(member, ..)| inside[*member] = Some(id));
        if !chain.is_empty() {
            inside[id] = Some(id);
        }
    }
    let mut copy = GraphCopy::of(graph);
    for (id, first) in inside.into_iter().enumerate() {
        let Some(first) = first else {
            copy.copy_node(id)?;
            continue;
        };
        // The folded convolution takes the place of the last node of the chain, after the operands of all of them.
        if chains[first].last().is_some_and(|(last, ..)| *last == id) {
            let folded = fold(&mut copy, graph, first, &chains[first])?;
            copy.replace(Value { node: id, output: 0 }, folded);
        }
    }
    copy.finish()
}

fn fold(
    copy: &mut GraphCopy,
    graph: &Graph,
    id: NodeId,
    chain: &[(NodeId, Binary, Value)],
) -> Result<Value, GraphError> {
    let node = graph.node(id);
    let Op::Conv2d(conv) = node.op else { unreachable!("only convolutions have chains") };
    let inputs = copy.inputs(node);
    let (mut weight, mut bias) = (inputs[1], inputs.get(2).copied());
    // `[o, c / groups, kh, kw]`
    let shape = graph.shape(node.inputs[1]).clone();
    for (_, op, other) in chain {
        let other = copy.lookup(*other);
        let mut add =
            |op: Op, inputs: &[Value]| copy.new.add_like(node, op, inputs).map(|node| Value { node, output: 0 });
        match op {
            Binary::Mul => {
                let column = add(Reshape::to([shape[0], 1, 1, 1]).into(), &[other])?;
                weight = add(Binary::Mul.into(), &[weight, column])?;
                bias = bias.map(|b| add(Binary::Mul.into(), &[b, other])).transpose()?;
            }
            Binary::Add => bias = Some(bias.map_or(Ok(other), |b| add(Binary::Add.into(), &[b, other]))?),
            Binary::Sub => unreachable!("chains hold products and sums"),
        }
    }
    let operands: Vec<Value> = [inputs[0], weight].into_iter().chain(bias).collect();
    let added = copy.new.add_like(node, Conv2d { bias: bias.is_some(), ..conv }, &operands)?;
    Ok(Value { node: added, output: 0 })
}
