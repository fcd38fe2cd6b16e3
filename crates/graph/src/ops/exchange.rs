//! Sums over the parts of a global batch, within a process and over all processes, and operations on values of which
//! each process has a slice.
//!
//! Floating-point sums depend on their order, so parts are added in one balanced binary tree that does not depend on
//! the number of processes: each process adds the parts of a whole subtree with [`PartSum`], and [`AllReduce`] adds the
//! subtrees in the same order, unless the user chose the transport's own all-reduce (`Exchange::fixed_order`).

use std::ops::Range;

use super::{InputPrecision, Operation, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// The sum of two subtrees of parts. Unlike [`super::Binary::Add`], no rewrite fuses it into the operation that
/// computes one of its terms: a term has the same bits whether it is added here or sent to another process.
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

    /// Computed again (activation checkpointing), it would wait for an exchange that other processes do not run.
    fn is_repeatable(&self) -> bool {
        false
    }
}

/// How the elements of a value are divided among processes: contiguous slices in the order of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    /// The rank of this process, from 0.
    pub rank: usize,
    /// The number of elements of each process.
    pub lengths: Vec<usize>,
}

impl Shards {
    /// The elements of a process.
    pub fn range(&self, rank: usize) -> Range<usize> {
        let start = self.lengths[..rank].iter().sum();
        start..start + self.lengths[rank]
    }

    /// The elements of this process.
    pub fn own(&self) -> Range<usize> {
        self.range(self.rank)
    }

    fn check(&self, elements: usize) -> Result<(), String> {
        let all: usize = self.lengths.iter().sum();
        if all == elements && self.rank < self.lengths.len() {
            Ok(())
        } else {
            Err(format!("slices of {:?} elements are not those of {elements}", self.lengths))
        }
    }
}

/// The sum of a value over all processes, each of which gets its own slice: the elements of the result outside
/// [`Shards::own`] are unspecified. The rules of [`AllReduce`] apply; in a fixed order the sums have the same
/// bits.
#[derive(Debug, Clone, PartialEq)]
pub struct ReduceScatter(pub Shards);

impl Operation for ReduceScatter {
    fn name(&self) -> &'static str {
        "reduce_scatter"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        self.0.check(inputs[0].shape.elements())?;
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

    fn is_repeatable(&self) -> bool {
        false
    }
}

/// A whole value from the slices of all processes: from this process's slice `[n]` to `shape`. The rules of
/// [`AllReduce`] apply. In the reference implementation the slices of other processes are zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct AllGather {
    /// The shape of the whole value.
    pub shape: Shape,
    /// Its slices.
    pub shards: Shards,
}

impl Operation for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        self.shards.check(self.shape.elements())?;
        expect_shape("the slice", &inputs[0], &[self.shards.own().len()])?;
        Ok(vec![Type::f32(self.shape.clone())])
    }

    /// Training differentiates with respect to the gathered value: gradients of a parameter are then added and divided
    /// ([`ReduceScatter`]), those of contrasted embeddings are the same in all processes and only sliced.
    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        if b.needs_gradient(0) { Err(b.unsupported("a slice has no gradient")) } else { Ok(()) }
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (own, slice) = (self.shards.own(), inputs[0].data());
        vec![Array::from_fn(&outputs[0].shape, |i| if own.contains(&i) { slice[i - own.start] } else { 0.0 })]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }

    fn is_repeatable(&self) -> bool {
        false
    }
}
