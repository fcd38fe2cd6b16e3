//! A relu's derivative follows from its output, so that the backward pass need not keep its input.

use std::collections::HashMap;

use super::GraphCopy;
use crate::ops::{Activation, ActivationGrad, Op};
use crate::{Graph, GraphError, Value};

/// Lets the gradient of every relu read the relu's output instead of its input.
pub fn relu_by_result(graph: &Graph) -> Result<Graph, GraphError> {
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
