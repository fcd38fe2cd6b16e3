//! A convolution whose windows neither overlap nor leave gaps is one matrix product over patches.

use super::GraphCopy;
use crate::ops::{Conv2d, ImageLayout, Linear, Op, Patchify, Permute, Reshape};
use crate::{Graph, GraphError, Value};

/// `conv2d` with kernel = stride, without padding, dilation and groups (patch embeddings, and 1x1 convolutions of
/// stride 1) → [`Patchify`], [`Linear`]. A permutation of a channels-first image to channels-last before the
/// convolution becomes part of the `Patchify`.
pub fn patchify(graph: &Graph) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::of(graph);
    for (id, node) in graph.nodes().iter().enumerate() {
        let Op::Conv2d(conv) = &node.op else {
            copy.copy_node(id)?;
            continue;
        };
        // `[o, c / groups, kh, kw]`
        let weight = graph.shape(node.inputs[1]);
        let (filters, kernel) = (weight[0], [weight[2], weight[3]]);
        if *conv != Conv2d::patches(kernel, conv.bias) {
            copy.copy_node(id)?;
            continue;
        }
        // `Patchify` orders the elements of a patch as a filter does: channel, row, column.
        let columns = weight[1..].iter().product();
        // The skipped permutation stays in the graph, for other consumers or for dead code elimination.
        let (image, layout) = match &graph.node(node.inputs[0].node).op {
            Op::Permute(Permute(order)) if order[..] == [0, 2, 3, 1] => {
                (graph.node(node.inputs[0].node).inputs[0], ImageLayout::ChannelsFirst)
            }
            _ => (node.inputs[0], ImageLayout::ChannelsLast),
        };
        let (new_image, new_weight) = (copy.lookup(image), copy.lookup(node.inputs[1]));
        let new_bias = node.inputs.get(2).map(|&bias| copy.lookup(bias));
        let mut add =
            |op: Op, inputs: &[Value]| copy.new.add_like(node, op, inputs).map(|node| Value { node, output: 0 });
        // A patch of one channels-last pixel is already a row.
        let patches = if kernel == [1, 1] && layout == ImageLayout::ChannelsLast {
            let [batch, height, width, channels] = [0, 1, 2, 3].map(|axis| graph.shape(image)[axis]);
            add(Reshape::to([batch, height * width, channels]).into(), &[new_image])?
        } else {
            add(Patchify { patch: kernel, layout }.into(), &[new_image])?
        };
        // `[o, c, kh, kw]` to `[o, c · kh · kw]`.
        let matrix = add(Reshape::to([filters, columns]).into(), &[new_weight])?;
        let mut inputs = vec![patches, matrix];
        inputs.extend(new_bias);
        let rows = add(Linear { bias: conv.bias, ..Linear::default() }.into(), &inputs)?;
        // `[b, h' · w', o]` to `[b, h', w', o]`.
        let grid = add(Reshape(node.outputs[0].shape.clone()).into(), &[rows])?;
        copy.replace(Value { node: id, output: 0 }, grid);
    }
    copy.finish()
}
