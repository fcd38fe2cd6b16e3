//! Operations that only move elements, or write zeros: reshape, permute, slice, pad, concat, broadcast. All but concat
//! state [`Operation::moves_elements`], which promises a single input.

use super::{Operation, arity};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// The same elements with another shape: a view, free on every device.
#[derive(Debug, Clone, PartialEq)]
pub struct Reshape(pub Shape);

impl Reshape {
    /// A reshape to these extents.
    pub fn to(shape: impl Into<Shape>) -> Self {
        Reshape(shape.into())
    }
}

impl Operation for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        if self.0.checked_elements() != Some(inputs[0].shape.elements()) {
            return Err(format!("{} elements do not fill {}", inputs[0].shape.elements(), self.0));
        }
        Ok(vec![Type::new(inputs[0].dtype, self.0.clone())])
    }
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (dy, shape) = (b.dy()?, b.graph.shape(b.input(0)).clone());
        let dx = b.graph.value(Reshape(shape), &[dy])?;
        b.set(0, dx)
    }
    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![Array::new(self.0.clone(), inputs[0].data().to_vec())]
    }

    fn computes(&self) -> bool {
        false
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

/// A permutation of axes: axis `i` of the result is axis `self.0[i]` of the input.
#[derive(Debug, Clone, PartialEq)]
pub struct Permute(pub Vec<usize>);

impl Permute {
    /// The inverse permutation.
    pub fn inverse(&self) -> Permute {
        let mut inverse = vec![0; self.0.len()];
        self.0.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
        Permute(inverse)
    }
}

impl Operation for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        let mut seen = vec![false; inputs[0].shape.len()];
        for &axis in &self.0 {
            if seen.get(axis) != Some(&false) {
                return Err(format!("{:?} is not an order of {} axes", self.0, seen.len()));
            }
            seen[axis] = true;
        }
        if self.0.len() != seen.len() {
            return Err(format!("{:?} is not an order of {} axes", self.0, seen.len()));
        }
        let extents: Vec<usize> = self.0.iter().map(|&axis| inputs[0].shape[axis]).collect();
        Ok(vec![Type::new(inputs[0].dtype, extents)])
    }
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let dy = b.dy()?;
        let dx = b.graph.value(self.inverse(), &[dy])?;
        b.set(0, dx)
    }
    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let from = Shape::from(inputs[0].shape()).strides();
        let strides: Vec<usize> = self.0.iter().map(|&axis| from[axis]).collect();
        vec![inputs[0].strided(&outputs[0].shape, &strides)]
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

/// `length` entries of one axis, from `start`.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Slice {
    pub axis: usize,
    pub start: usize,
    pub length: usize,
}

impl Operation for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        let shape = &inputs[0].shape;
        let end = self.start.checked_add(self.length);
        if self.axis >= shape.len() || end.is_none_or(|end| end > shape[self.axis]) {
            return Err(format!("axis {} has no {} entries from {} on", self.axis, self.length, self.start));
        }
        Ok(vec![Type::new(inputs[0].dtype, shape.with(self.axis, self.length))])
    }
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (dy, extent) = (b.dy()?, b.graph.shape(b.input(0))[self.axis]);
        let pad = Pad { axis: self.axis, before: self.start, after: extent - self.start - self.length };
        let dx = b.graph.value(pad, &[dy])?;
        b.set(0, dx)
    }
    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let inner: usize = inputs[0].shape()[self.axis + 1..].iter().product();
        let (extent, x) = (inputs[0].shape()[self.axis], inputs[0].data());
        let value = |i: usize| {
            let (outer, entry, rest) = (i / (self.length * inner), i / inner % self.length, i % inner);
            x[(outer * extent + self.start + entry) * inner + rest]
        };
        vec![Array::from_fn(&outputs[0].shape, value)]
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

/// Zero padding of one axis.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Pad {
    pub axis: usize,
    pub before: usize,
    pub after: usize,
}

impl Operation for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        let shape = &inputs[0].shape;
        let Some(&extent) = shape.get(self.axis) else {
            return Err(format!("there is no axis {}", self.axis));
        };
        let padded = self.before.checked_add(extent).and_then(|e| e.checked_add(self.after));
        let padded = padded.ok_or("the padding is too large")?;
        Ok(vec![Type::new(inputs[0].dtype, shape.with(self.axis, padded))])
    }
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (dy, length) = (b.dy()?, b.graph.shape(b.input(0))[self.axis]);
        let dx = b.graph.value(Slice { axis: self.axis, start: self.before, length }, &[dy])?;
        b.set(0, dx)
    }
    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let inner: usize = inputs[0].shape()[self.axis + 1..].iter().product();
        let (length, padded, x) = (inputs[0].shape()[self.axis], outputs[0].shape[self.axis], inputs[0].data());
        let value = |i: usize| {
            let (outer, entry, rest) = (i / (padded * inner), i / inner % padded, i % inner);
            match entry.checked_sub(self.before) {
                Some(entry) if entry < length => x[(outer * length + entry) * inner + rest],
                _ => 0.0,
            }
        };
        vec![Array::from_fn(&outputs[0].shape, value)]
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

/// Concatenation along an axis.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Concat {
    pub axis: usize,
}

impl Operation for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        let first = inputs.first().ok_or("there is nothing to concatenate")?;
        if self.axis >= first.shape.len() {
            return Err(format!("there is no axis {}", self.axis));
        }
        let mut extent = 0usize;
        for input in inputs {
            let differs = input.shape.len() != first.shape.len()
                || input.shape.with(self.axis, 0) != first.shape.with(self.axis, 0)
                || input.dtype != first.dtype;
            if differs {
                return Err(format!("the inputs may differ in axis {} only", self.axis));
            }
            extent = extent.checked_add(input.shape[self.axis]).ok_or("the result is too large")?;
        }
        Ok(vec![Type::new(first.dtype, first.shape.with(self.axis, extent))])
    }
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let dy = b.dy()?;
        let mut start = 0;
        for i in 0..b.inputs() {
            let length = b.graph.shape(b.input(i))[self.axis];
            if b.needs_gradient(i) {
                let dx = b.graph.value(Slice { axis: self.axis, start, length }, &[dy])?;
                b.set(i, dx)?;
            }
            start += length;
        }
        Ok(())
    }
    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let outer: usize = outputs[0].shape[..self.axis].iter().product();
        let mut data = Vec::with_capacity(outputs[0].shape.elements());
        for o in 0..outer {
            for input in inputs {
                let block = input.data().len() / outer;
                data.extend_from_slice(&input.data()[o * block..(o + 1) * block]);
            }
        }
        vec![Array::new(outputs[0].shape.clone(), data)]
    }
}

/// Broadcast to a shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Broadcast(pub Shape);

impl Operation for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }
    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        if inputs[0].shape.broadcast(&self.0).as_ref() != Some(&self.0) {
            return Err(format!("{} does not repeat to {}", inputs[0].shape, self.0));
        }
        Ok(vec![Type::new(inputs[0].dtype, self.0.clone())])
    }
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let dy = b.dy()?;
        let dx = b.sum_to_input(dy, 0)?;
        b.set(0, dx)
    }
    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![inputs[0].broadcast_to(&self.0)]
    }

    fn moves_elements(&self) -> bool {
        true
    }
}
