//! Gathering rows of a table by index, as for relative position biases.

use super::{Operation, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{DType, GraphError, Shape, Type};

/// Inputs: `table [rows, ..]`, `indices i32 [..]`. Output: `[indices.., ..]`. An index outside the table gives zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gather;

fn gathered(table: &[usize], indices: &Shape) -> Shape {
    Shape::from([&indices[..], &table[1..]].concat())
}

fn expect_indices(indices: &Type) -> Result<(), String> {
    if indices.dtype == DType::I32 { Ok(()) } else { Err(format!("indices should be i32, not {}", indices.dtype)) }
}

impl Operation for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_indices(&inputs[1])?;
        if inputs[0].shape.is_empty() {
            return Err("the table has no rows".into());
        }
        Ok(vec![Type::new(inputs[0].dtype, gathered(&inputs[0].shape, &inputs[1].shape))])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (table, indices, dy) = (b.input(0), b.input(1), b.dy()?);
        let op = GatherGrad { table: b.graph.shape(table).clone() };
        let d = b.graph.value(op, &[dy, indices])?;
        b.set(0, d)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (rows, inner) = (inputs[0].shape()[0], inputs[0].shape()[1..].iter().product::<usize>());
        let value = |i: usize| {
            let row = inputs[1].data()[i / inner];
            if row >= 0.0 && (row as usize) < rows { inputs[0].data()[row as usize * inner + i % inner] } else { 0.0 }
        };
        vec![Array::from_fn(&outputs[0].shape, value)]
    }
}

/// The gradient of [`Gather`]'s table: a scatter-add of `dy`. Inputs: `dy`, `indices`.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherGrad {
    /// The table's shape.
    pub table: Shape,
}

impl Operation for GatherGrad {
    fn name(&self) -> &'static str {
        "gather_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_indices(&inputs[1])?;
        if self.table.is_empty() {
            return Err("the table has no rows".into());
        }
        expect_shape("dy", &inputs[0], &gathered(&self.table, &inputs[1].shape))?;
        Ok(vec![Type::new(inputs[0].dtype, self.table.clone())])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (rows, inner) = (self.table[0], self.table[1..].iter().product::<usize>());
        let mut table = Array::filled(outputs[0].shape.clone(), 0.0);
        for (i, dy) in inputs[0].data().iter().enumerate() {
            let row = inputs[1].data()[i / inner];
            if row >= 0.0 && (row as usize) < rows {
                table.data_mut()[row as usize * inner + i % inner] += dy;
            }
        }
        vec![table]
    }
}
