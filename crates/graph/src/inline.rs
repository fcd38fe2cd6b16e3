//! Inlining one graph into another, as training steps do with the forward pass of each micro-batch.

use std::collections::HashMap;

use crate::ops::{Op, Operation};
use crate::{Graph, GraphError, Node, Value};

/// Maps the values of an inlined graph to those of the graph that it was inlined into, by the first output of each
/// node.
pub struct Inlined(Vec<Value>);

impl Inlined {
    /// The new value of an old one.
    pub fn value(&self, old: Value) -> Value {
        let first = self.0[old.node];
        Value { output: first.output + old.output, ..first }
    }
}

impl Graph {
    /// Appends the nodes of another graph. The inputs and parameters in `given` are replaced by values of this graph,
    /// other parameters are shared by name, and the indices of random streams are increased by `streams`. Outputs,
    /// updates and taps are not copied.
    pub fn inline(&mut self, part: &Graph, given: &[(&str, Value)], streams: u32) -> Result<Inlined, GraphError> {
        let shared: HashMap<String, Value> =
            self.parameters().map(|(node, p)| (p.name.clone(), Value { node, output: 0 })).collect();
        let mut moved = Inlined(Vec::with_capacity(part.nodes().len()));
        for node in part.nodes() {
            let given = |name: &str| given.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
            let known = match &node.op {
                Op::Input(input) => given(&input.name),
                Op::Parameter(p) => given(&p.name).or_else(|| shared.get(&p.name).copied()),
                _ => None,
            };
            if let Some(value) = known {
                if *self.ty(value) != node.outputs[0] {
                    return Err(GraphError::Shape {
                        op: "inline",
                        scope: node.scope.clone(),
                        inputs: self.ty(value).to_string(),
                        reason: format!("it should be {}", node.outputs[0]),
                    });
                }
                moved.0.push(value);
                continue;
            }
            let mut op = node.op.clone();
            if let Some(stream) = op.random_stream() {
                *stream += streams;
            }
            let inputs: Vec<Value> = node.inputs.iter().map(|&v| moved.value(v)).collect();
            let added = self.add_like(node, op, &inputs)?;
            moved.0.push(Value { node: added, output: 0 });
        }
        Ok(moved)
    }

    /// An exclusive upper bound of the indices of the graph's random streams.
    pub fn random_streams(&self) -> u32 {
        let stream = |node: &Node| node.op.clone().random_stream().map(|stream| *stream);
        self.nodes().iter().filter_map(stream).max().map_or(0, |stream| stream + 1)
    }
}
