//! Epilogue fusion for convolutions, with filters in the order of channels-last images.

use super::{GraphCopy, only_consumers};
use crate::ops::{Activation, Binary, Conv2d, FusedConv2d, Op, Permute, Reshape, ResidualAt};
use crate::{Graph, GraphError, NodeId, Value};

/// A convolution and the chain of nodes that become its epilogue; each is the only consumer of the one before.
struct ConvChain {
    activation: Option<Activation>,
    residual: Option<(ResidualAt, Value)>,
    /// The convolution first.
    members: Vec<NodeId>,
}

/// `activation(conv2d(x) + residual)` or `activation(conv2d(x)) + residual` → [`FusedConv2d`]; activation and residual
/// are optional, and intermediates must have no other consumer. Applies to convolutions with one group and depthwise
/// ones, except patch embeddings, which [`super::patchify`] rewrites.
pub fn fuse_conv(graph: &Graph) -> Result<Graph, GraphError> {
    let consumers = only_consumers(graph);
    let mut chains: Vec<Option<(NodeId, ConvChain)>> = (0..graph.nodes().len()).map(|_| None).collect();
    let mut inside = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        let Op::Conv2d(conv) = node.op else { continue };
        if (conv.groups == 1 && !is_patch_embedding(graph, id, &conv)) || depthwise(graph, id, &conv) {
            let chain = chain_from(graph, &consumers, &inside, id);
            chain.members.iter().for_each(|&m| inside[m] = true);
            // The fused node takes the place of the last member, after the operands of all of them.
            let last = chain.members.last().copied().unwrap_or(id);
            chains[last] = Some((id, chain));
        }
    }
    let mut copy = GraphCopy::of(graph);
    for id in 0..graph.nodes().len() {
        match &chains[id] {
            None if inside[id] => {}
            None => copy.copy_node(id)?,
            Some((first, chain)) => {
                let fused = fuse(&mut copy, graph, *first, chain)?;
                copy.replace(Value { node: id, output: 0 }, fused);
            }
        }
    }
    copy.finish()
}

/// Whether a convolution is left to [`super::patchify`]: one that it rewrites, except 1x1, which is fused here.
fn is_patch_embedding(graph: &Graph, id: NodeId, conv: &Conv2d) -> bool {
    let weight = graph.shape(graph.node(id).inputs[1]);
    let kernel = [weight[2], weight[3]];
    kernel != [1, 1] && *conv == Conv2d::patches(kernel, conv.bias)
}

fn depthwise(graph: &Graph, id: NodeId, conv: &Conv2d) -> bool {
    let weight = graph.shape(graph.node(id).inputs[1]);
    weight[0] == conv.groups && weight[1] == 1
}

/// The longest chain from a convolution on. It ends before a node that is `inside` an earlier chain: the sum of two
/// convolutions is fused into the first, and the second computes its residual.
fn chain_from(graph: &Graph, consumers: &[Option<NodeId>], inside: &[bool], first: NodeId) -> ConvChain {
    let mut chain = ConvChain { activation: None, residual: None, members: vec![first] };
    let mut last = first;
    while let Some(next) = consumers[last].filter(|&next| !inside[next]) {
        let node = graph.node(next);
        let here = Value { node: last, output: 0 };
        match &node.op {
            Op::Activation(activation) if chain.activation.is_none() => match chain.residual {
                Some((ResidualAt::AfterActivation, value)) => {
                    chain.residual = Some((ResidualAt::BeforeActivation, value));
                    chain.activation = Some(*activation);
                }
                _ => chain.activation = Some(*activation),
            },
            Op::Binary(Binary::Add) if chain.residual.is_none() => {
                let other = if node.inputs[0] == here { node.inputs[1] } else { node.inputs[0] };
                if graph.shape(other) != graph.shape(here) || other == here {
                    break;
                }
                // An activation after this sum changes it to `BeforeActivation`.
                chain.residual = Some((ResidualAt::AfterActivation, other));
            }
            _ => break,
        }
        chain.members.push(next);
        last = next;
        if chain.activation.is_some() && chain.residual.is_some() {
            break;
        }
    }
    chain
}

fn fuse(copy: &mut GraphCopy, graph: &Graph, first: NodeId, chain: &ConvChain) -> Result<Value, GraphError> {
    let node = graph.node(first);
    let Op::Conv2d(conv) = node.op else { unreachable!("only convolutions have chains") };
    let mut inputs = copy.inputs(node);
    // `[o, c / groups, kh, kw]`
    let shape = graph.shape(node.inputs[1]).clone();
    let kernel = [shape[2], shape[3]];
    let mut add = |op: Op, inputs: &[Value]| copy.new.add_like(node, op, inputs).map(|node| Value { node, output: 0 });
    inputs[1] = if conv.groups > 1 {
        // Depthwise: `[o, 1, kh, kw]` to `[kh · kw, o]`.
        let matrix = add(Reshape::to([shape[0], kernel[0] * kernel[1]]).into(), &[inputs[1]])?;
        add(Permute(vec![1, 0]).into(), &[matrix])?
    } else {
        // `[o, c, kh, kw]` to `[o, kh · kw · c]`.
        let channels_last =
            if kernel == [1, 1] { inputs[1] } else { add(Permute(vec![0, 2, 3, 1]).into(), &[inputs[1]])? };
        add(Reshape::to([shape[0], kernel[0] * kernel[1] * shape[1]]).into(), &[channels_last])?
    };
    let residual = chain.residual.map(|(at, _)| at);
    let op = FusedConv2d { conv, kernel, activation: chain.activation, residual };
    inputs.extend(chain.residual.map(|(_, value)| copy.lookup(value)));
    let node = copy.new.add_like(node, op, &inputs)?;
    Ok(Value { node, output: 0 })
}
