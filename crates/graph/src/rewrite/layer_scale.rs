//! Layer scale as a factor of weights.

use super::{GraphCopy, only_consumers};
use crate::ops::{Binary, Op, Reshape};
use crate::{Graph, GraphError, NodeId, Value};

/// `scale · linear(x, W, b)` → `linear(x, scale · W, scale · b)`, where `scale [n]` is a parameter and `x` has more
/// rows than `W` has columns. Nothing of the size of the activations is multiplied, and the residual sum can be the
/// next epilogue.
///
/// Apply it before differentiating: the gradient of `scale` is then computed from that of `scale · W`, so that the
/// backward pass does not read the layer's unscaled result.
pub fn fold_layer_scale(graph: &Graph) -> Result<Graph, GraphError> {
    let consumers = only_consumers(graph);
    let mut copy = GraphCopy::of(graph);
    let scaled: Vec<Option<(NodeId, Value)>> =
        (0..graph.nodes().len()).map(|id| scale_after(graph, consumers[id], id)).collect();
    let mut folded = vec![None; graph.nodes().len()];
    for (linear, scale) in scaled.iter().enumerate() {
        if let Some((product, scale)) = *scale {
            folded[product] = Some((linear, scale));
        }
    }
    for (id, folded) in folded.iter().enumerate() {
        match folded {
            // The folded layer takes the place of the product, after the scale.
            None if scaled[id].is_some() => {}
            None => copy.copy_node(id)?,
            &Some((linear, scale)) => {
                let node = graph.node(linear);
                let mut inputs = copy.inputs(node);
                let (scale, rows) = (copy.lookup(scale), graph.shape(scale)[0]);
                let column = copy.new.add_like(node, Reshape::to([rows, 1]), &[scale])?;
                let column = Value { node: column, output: 0 };
                for (input, scale) in inputs[1..].iter_mut().zip([column, scale]) {
                    let product = copy.new.add_like(node, Binary::Mul, &[*input, scale])?;
                    *input = Value { node: product, output: 0 };
                }
                let linear = copy.new.add_like(node, node.op.clone(), &inputs)?;
                copy.replace(Value { node: id, output: 0 }, Value { node: linear, output: 0 });
            }
        }
    }
    copy.finish()
}

/// The only consumer of a linear layer if it multiplies by a parameter per channel, and that parameter.
fn scale_after(graph: &Graph, consumer: Option<NodeId>, id: NodeId) -> Option<(NodeId, Value)> {
    let (node, product) = (graph.node(id), graph.node(consumer?));
    let (Op::Linear(linear), Op::Binary(Binary::Mul)) = (&node.op, &product.op) else { return None };
    let y = Value { node: id, output: 0 };
    let scale = if product.inputs[0] == y { product.inputs[1] } else { product.inputs[0] };
    let [n, k] = graph.shape(node.inputs[1])[..] else { return None };
    let plain = linear.is_plain() && !linear.int8;
    let is_scale = matches!(graph.node(scale.node).op, Op::Parameter(_)) && *graph.shape(scale) == [n];
    (plain && is_scale && graph.shape(y).elements() > n * k).then_some((consumer?, scale))
}
