//! Reductions over axes.

use super::{Broadcast, Operation, Reshape, Scale, arity};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// The reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Mean,
}

/// Reduces some axes, which are removed from the shape.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Reduce {
    pub reduction: Reduction,
    /// Ascending.
    pub axes: Vec<usize>,
}

impl Reduce {
    /// A sum over these axes.
    pub fn sum(axes: impl Into<Vec<usize>>) -> Self {
        Reduce { reduction: Reduction::Sum, axes: axes.into() }
    }

    /// A mean over these axes.
    pub fn mean(axes: impl Into<Vec<usize>>) -> Self {
        Reduce { reduction: Reduction::Mean, axes: axes.into() }
    }

    /// The shape with reduced axes of extent 1, as with `keepdim`.
    pub fn kept(&self, shape: &Shape) -> Shape {
        self.axes.iter().fold(shape.clone(), |s, &axis| s.with(axis, 1))
    }

    /// The number of elements that are reduced to one.
    pub fn count(&self, shape: &[usize]) -> usize {
        self.axes.iter().map(|&axis| shape[axis]).product()
    }
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        match self.reduction {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
        }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        let shape = &inputs[0].shape;
        if !self.axes.is_sorted_by(|a, b| a < b) || self.axes.last().is_some_and(|&axis| axis >= shape.len()) {
            return Err(format!("{:?} are not ascending axes of {shape}", self.axes));
        }
        if self.reduction == Reduction::Mean && self.count(shape) == 0 {
            return Err(format!("the mean over axes {:?} of {shape} has no elements", self.axes));
        }
        let left: Vec<usize> =
            shape.iter().enumerate().filter(|(axis, _)| !self.axes.contains(axis)).map(|(_, &e)| e).collect();
        Ok(vec![Type::new(inputs[0].dtype, left)])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (mut dy, shape) = (b.dy()?, b.graph.shape(b.input(0)).clone());
        if self.reduction == Reduction::Mean {
            dy = b.graph.value(Scale(1.0 / self.count(&shape) as f32), &[dy])?;
        }
        let dy = b.graph.value(Reshape(self.kept(&shape)), &[dy])?;
        let dx = b.graph.value(Broadcast(shape), &[dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let shape = Shape::from(inputs[0].shape());
        let kept = self.kept(&shape);
        // The index of the result that each element is reduced into.
        let positions = Array::from_fn(&kept, |i| i as f64).broadcast_to(&shape);
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        for (x, &position) in inputs[0].data().iter().zip(positions.data()) {
            y.data_mut()[position as usize] += x;
        }
        if self.reduction == Reduction::Mean {
            let count = self.count(&shape) as f64;
            y.data_mut().iter_mut().for_each(|v| *v /= count);
        }
        vec![y]
    }
}
