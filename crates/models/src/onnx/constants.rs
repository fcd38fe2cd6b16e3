//! Values that depend on parameters alone: computed once, in f64, and written as tensors.

use vit_graph::ops::{Data, Op, Operation, Parameter};
use vit_graph::reference::Array;
use vit_graph::{NodeId, Value};

use super::OnnxError;
use super::batch::BatchGraph;
use crate::weights::{Tensor, Weights};

/// The constants of a graph.
pub(super) struct Constants<'a> {
    graph: &'a BatchGraph,
    weights: Weights,
    /// Which nodes are constants.
    constant: Vec<bool>,
    /// How often the value of each node is used.
    uses: Vec<Vec<usize>>,
}

impl<'a> Constants<'a> {
    pub fn new(graph: &'a BatchGraph, weights: Weights) -> Result<Self, OnnxError> {
        let nodes = graph.graph().nodes();
        let mut constant = vec![false; nodes.len()];
        for (id, node) in nodes.iter().enumerate() {
            // A parameter that is repeated for each sample depends on the batch.
            let mut fixed = true;
            for output in 0..node.outputs.len() {
                fixed &= graph.shape(Value { node: id, output })?.iter().all(|extent| extent.is_fixed());
            }
            constant[id] = fixed
                && match node.op {
                    Op::Input(_) => false,
                    Op::Constant(_) | Op::Parameter(_) => true,
                    _ => node.op.is_repeatable() && node.inputs.iter().all(|v| constant[v.node]),
                };
        }
        Ok(Constants { graph, weights, constant, uses: graph.graph().uses() })
    }

    pub fn is_constant(&self, node: NodeId) -> bool {
        self.constant[node]
    }

    /// The value of a constant. The elements of a parameter with one use are moved, since models are large.
    pub fn take(&mut self, value: Value) -> Result<Tensor, OnnxError> {
        if let Op::Parameter(parameter) = &self.graph.node(value.node).op
            && self.uses[value.node][0] == 1
            && let Some(tensor) = self.weights.tensors.remove(&parameter.name)
        {
            return fitting(tensor, parameter);
        }
        self.copied(value)
    }

    /// The same without moving it.
    pub fn copied(&self, value: Value) -> Result<Tensor, OnnxError> {
        let node = self.graph.node(value.node);
        if let Op::Parameter(parameter) = &node.op {
            let stored = self.weights.tensors.get(&parameter.name);
            return fitting(stored.ok_or_else(|| missing(parameter))?.clone(), parameter);
        }
        Ok(Tensor { shape: self.graph.graph().shape(value).to_vec(), data: self.array(value)?.to_f32() })
    }

    /// The indices of a constant of integers.
    pub fn integers(&self, value: Value) -> Option<Vec<i64>> {
        match &self.graph.node(value.node).op {
            Op::Constant(constant) => match &constant.data {
                Data::I32(data) if data.len() == constant.shape.elements() => {
                    Some(data.iter().map(|&index| index.into()).collect())
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The value of a constant in f64.
    fn array(&self, value: Value) -> Result<Array, OnnxError> {
        let node = self.graph.node(value.node);
        if let Op::Parameter(_) = &node.op {
            let Tensor { shape, data } = self.copied(value)?;
            return Ok(Array::from_f32(shape, &data));
        }
        let inputs: Vec<Array> = node.inputs.iter().map(|&input| self.array(input)).collect::<Result<_, _>>()?;
        let inputs: Vec<&Array> = inputs.iter().collect();
        Ok(node.op.evaluate(&inputs, &node.outputs).swap_remove(value.output))
    }
}

fn missing(parameter: &Parameter) -> OnnxError {
    OnnxError::Parameter { name: parameter.name.clone() }
}

/// Weights with the shape of their parameter.
fn fitting(tensor: Tensor, parameter: &Parameter) -> Result<Tensor, OnnxError> {
    if tensor.shape[..] == parameter.shape[..] { Ok(tensor) } else { Err(missing(parameter)) }
}
