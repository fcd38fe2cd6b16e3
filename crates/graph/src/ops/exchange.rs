//! Sums over the parts of a global batch: of the parts that one process computes, and of all processes.
//!
//! Floating-point sums depend on their order, so parts are added in one balanced binary tree that does not depend on
//! the number of processes: each process adds the parts of a whole subtree with [`PartSum`], and [`AllReduce`] adds the
//! subtrees in the same order.

use super::{InputPrecision, Operation, arity, expect_shape};
use crate::Type;
use crate::reference::Array;

/// The sum of two subtrees of parts. Unlike [`super::Binary::Add`], no rewrite fuses it into the operation that computes
/// one of its terms: a term has the same bits whether it is added here or sent to another process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartSum;

impl Operation for PartSum {
    fn name(&self) -> &'static str {
        "part_sum"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_shape("the second subtree", &inputs[1], &inputs[0].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [a, b] = [0, 1].map(|i| inputs[i].data());
        vec![Array::from_fn(&outputs[0].shape, |i| a[i] + b[i])]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// The sum of a value over all processes, by the device's [`Exchange`](crate::exchange::Exchange). Every process must
/// run the same operations of this kind in the same order. The reference implementation is that of one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllReduce;

impl Operation for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(inputs.to_vec())
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![inputs[0].clone()]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }

    /// A second one would wait for operations that other processes do not run.
    fn is_repeatable(&self) -> bool {
        false
    }
}
