//! Sources: inputs, parameters and constants.

use std::sync::Arc;

use super::{Operation, arity};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{DType, GraphError, Init, Shape, Type};

/// A value written by the caller before a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Its name, unique among inputs.
    pub name: String,
    /// Its type.
    pub ty: Type,
}

/// A value that stays on the device between runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its full name, e.g. `blocks.0.attn.qkv.weight`.
    pub name: String,
    /// Its shape; parameters are f32.
    pub shape: Shape,
    /// Its initialiser.
    pub init: Init,
    /// Whether optimisers update it. Running statistics are updated by the model's graph instead.
    pub trainable: bool,
}

impl Parameter {
    /// A trainable parameter.
    pub fn new(name: impl Into<String>, shape: impl Into<Shape>, init: Init) -> Self {
        Parameter { name: name.into(), shape: shape.into(), init, trainable: true }
    }
}

/// A value known when the graph is built.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// Its shape.
    pub shape: Shape,
    /// Its elements, or one element that fills the shape.
    pub data: Data,
}

/// The elements of a constant.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Data {
    F32(Arc<[f32]>),
    I32(Arc<[i32]>),
}

impl Constant {
    /// A constant filled with one value.
    pub fn filled(shape: impl Into<Shape>, value: f32) -> Self {
        Constant { shape: shape.into(), data: Data::F32(Arc::new([value])) }
    }

    /// A constant from its elements.
    pub fn f32(shape: impl Into<Shape>, data: Vec<f32>) -> Self {
        Constant { shape: shape.into(), data: Data::F32(data.into()) }
    }

    /// A constant of integers.
    pub fn i32(shape: impl Into<Shape>, data: Vec<i32>) -> Self {
        Constant { shape: shape.into(), data: Data::I32(data.into()) }
    }

    fn stored(&self) -> usize {
        match &self.data {
            Data::F32(data) => data.len(),
            Data::I32(data) => data.len(),
        }
    }
}

impl Operation for Input {
    fn name(&self) -> &'static str {
        "input"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 0)?;
        Ok(vec![self.ty.clone()])
    }
    fn gradient(&self, _: &mut Backward) -> Result<(), GraphError> {
        Ok(())
    }
    fn evaluate(&self, _: &[&Array], _: &[Type]) -> Vec<Array> {
        unreachable!("the interpreter binds inputs")
    }

    fn computes(&self) -> bool {
        false
    }
}

impl Operation for Parameter {
    fn name(&self) -> &'static str {
        "parameter"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 0)?;
        Ok(vec![Type::f32(self.shape.clone())])
    }
    fn gradient(&self, _: &mut Backward) -> Result<(), GraphError> {
        Ok(())
    }
    fn evaluate(&self, _: &[&Array], _: &[Type]) -> Vec<Array> {
        unreachable!("the interpreter binds parameters")
    }

    fn computes(&self) -> bool {
        false
    }
}

impl Operation for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 0)?;
        if self.stored() != 1 && Some(self.stored()) != self.shape.checked_elements() {
            return Err(format!("{} elements cannot fill {}", self.stored(), self.shape));
        }
        let dtype = match self.data {
            Data::F32(_) => DType::F32,
            Data::I32(_) => DType::I32,
        };
        Ok(vec![Type::new(dtype, self.shape.clone())])
    }
    fn gradient(&self, _: &mut Backward) -> Result<(), GraphError> {
        Ok(())
    }
    fn evaluate(&self, _: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let elements = outputs[0].shape.elements();
        let element = |i: usize| match &self.data {
            Data::F32(data) => f64::from(data[i % data.len()]),
            Data::I32(data) => f64::from(data[i % data.len()]),
        };
        vec![Array::new(self.shape.clone(), (0..elements).map(element).collect())]
    }

    fn computes(&self) -> bool {
        false
    }
}
