//! The gradient of a relu from its output, so that the backward pass need not keep the relu's input.

use std::collections::HashMap;

use super::GraphCopy;
use crate::ops::{Activation, ActivationGrad, Op};
use crate::{Graph, GraphError, Value};

/// `relu_grad(x, dy)` → `relu_grad(relu(x), dy)`, where the graph computes `relu(x)`. The two are equal, since
/// `relu(x)` is positive exactly where `x` is.
pub fn relu_grad_from_output(graph: &Graph) -> Result<Graph, GraphError> {
    let mut results: HashMap<Value, Value> = HashMap::new();
    let mut copy = GraphCopy::of(graph);
    for (id, node) in graph.nodes().iter().enumerate() {
        let result = match node.op {
            Op::ActivationGrad(ActivationGrad(Activation::Relu)) => results.get(&node.inputs[0]).copied(),
            _ => None,
        };
        match result {
            Some(result) => {
                let inputs = [copy.lookup(result), copy.lookup(node.inputs[1])];
                let node = copy.new.add_like(node, node.op.clone(), &inputs)?;
                copy.replace(Value { node: id, output: 0 }, Value { node, output: 0 });
            }
            None => copy.copy_node(id)?,
        }
        if let Op::Activation(Activation::Relu) = node.op {
            results.entry(node.inputs[0]).or_insert(Value { node: id, output: 0 });
        }
    }
    copy.finish()
}
