//! The reference interpreter: runs any graph in f64, without optimisation.
//!
//! Devices are tested against it, and gradients against its finite differences. It never runs a model for a user.

use std::collections::{BTreeMap, HashMap};

use crate::graph::unknown;
use crate::ops::{Op, Operation};
use crate::{Graph, GraphError, Shape};

/// A dense array of f64; integers are exact in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    shape: Shape,
    data: Vec<f64>,
}

impl Array {
    /// An array from its elements.
    ///
    /// # Panics
    /// If the number of elements is not the shape's.
    pub fn new(shape: impl Into<Shape>, data: Vec<f64>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.elements(), data.len(), "elements for {shape}");
        Array { shape, data }
    }

    /// An array filled with one value.
    pub fn filled(shape: impl Into<Shape>, value: f64) -> Self {
        let shape = shape.into();
        let data = vec![value; shape.elements()];
        Array { shape, data }
    }

    /// An array whose element `i`, in row-major order, is `f(i)`.
    pub fn from_fn(shape: &Shape, f: impl FnMut(usize) -> f64) -> Self {
        Array { shape: shape.clone(), data: (0..shape.elements()).map(f).collect() }
    }

    /// An array of f32 elements.
    pub fn from_f32(shape: impl Into<Shape>, data: &[f32]) -> Self {
        Array::new(shape, data.iter().map(|&v| f64::from(v)).collect())
    }

    /// The extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements.
    pub fn data(&self) -> &[f64] {
        &self.data
    }

    /// The elements, mutable.
    pub fn data_mut(&mut self) -> &mut [f64] {
        &mut self.data
    }

    /// The elements rounded to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        self.data.iter().map(|&v| v as f32).collect()
    }

    /// A strided view, copied.
    pub(crate) fn strided(&self, shape: &Shape, strides: &[usize]) -> Array {
        let dense = shape.strides();
        Array::from_fn(shape, |i| {
            let index: usize = (0..shape.len()).map(|axis| i / dense[axis] % shape[axis] * strides[axis]).sum();
            self.data[index]
        })
    }

    /// Broadcast to a shape.
    pub(crate) fn broadcast_to(&self, shape: &Shape) -> Array {
        self.strided(shape, &self.shape.broadcast_strides(shape))
    }
}

/// Values for a graph's inputs and parameters.
#[derive(Debug, Clone, Default)]
pub struct Bindings(HashMap<String, Array>);

impl Bindings {
    /// No values.
    pub fn new() -> Self {
        Bindings::default()
    }

    /// With one more value.
    pub fn with(mut self, name: &str, value: Array) -> Self {
        self.0.insert(name.into(), value);
        self
    }

    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&Array> {
        self.0.get(name)
    }

    /// The value of that name, mutable.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Array> {
        self.0.get_mut(name)
    }
}

/// Runs a graph and returns its outputs.
pub fn run(graph: &Graph, bindings: &Bindings) -> Result<BTreeMap<String, Array>, GraphError> {
    let values = values(graph, bindings)?;
    Ok(graph.outputs().iter().map(|(name, v)| (name.clone(), values[v.node][v.output].clone())).collect())
}

/// Runs a graph, returns its outputs, and updates its parameters in `bindings`.
pub fn step(graph: &Graph, bindings: &mut Bindings) -> Result<BTreeMap<String, Array>, GraphError> {
    let values = values(graph, bindings)?;
    for (parameter, new) in graph.updates() {
        if let Op::Parameter(parameter) = &graph.node(parameter.node).op {
            bindings.0.insert(parameter.name.clone(), values[new.node][new.output].clone());
        }
    }
    Ok(graph.outputs().iter().map(|(name, v)| (name.clone(), values[v.node][v.output].clone())).collect())
}

/// All values of a graph. Nodes without a used output have none, except inputs and parameters, which must be bound.
fn values(graph: &Graph, bindings: &Bindings) -> Result<Vec<Vec<Array>>, GraphError> {
    let uses = graph.uses();
    let mut values: Vec<Vec<Array>> = Vec::with_capacity(graph.nodes().len());
    for (id, node) in graph.nodes().iter().enumerate() {
        let bound = |name: &str, kind| {
            let value =
                bindings.0.get(name).ok_or_else(|| unknown(kind, name, bindings.0.keys().map(String::as_str)))?;
            if value.shape != node.outputs[0].shape {
                return Err(GraphError::Mismatch {
                    name: name.into(),
                    expected: node.outputs[0].to_string(),
                    found: value.shape.to_string(),
                });
            }
            Ok(vec![value.clone()])
        };
        values.push(match &node.op {
            Op::Input(input) => bound(&input.name, "input")?,
            Op::Parameter(parameter) => bound(&parameter.name, "parameter")?,
            _ if uses[id].iter().all(|&n| n == 0) => Vec::new(),
            op => {
                let inputs: Vec<&Array> = node.inputs.iter().map(|v| &values[v.node][v.output]).collect();
                op.evaluate(&inputs, &node.outputs)
            }
        });
    }
    Ok(values)
}
