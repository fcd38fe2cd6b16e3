//! The handle with which models are written: its operators and methods add nodes to a shared graph.
//!
//! Methods do not return a `Result`. The first operation with invalid inputs is recorded with its scope, those that
//! depend on its result are skipped, and [`Tensor::finish`] returns that error.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Add, Mul, Range, Sub};
use std::rc::Rc;

use crate::ops::{
    Activation, Attention, Binary, Broadcast, Concat, Constant, Conv2d, Dropout, Gather, GatherTokens, Granularity,
    GroupNorm, Input, LayerNorm, Linear, MatMul, Op, Operation, Parameter, Permute, Pool2d, RandomPartition, Reduce,
    Reshape, Rotary, RotaryTables, Scale, ScatterTokens, Slice, Softmax, TokenCorruption, Unary, Uniform,
};
use crate::{DType, Graph, GraphError, Init, Shape, Type, Value};

#[derive(Default)]
struct GraphBuilder {
    graph: Graph,
    error: Option<GraphError>,
    /// The number of random streams in use.
    streams: u32,
    /// The parameters by name; a map, since large models have thousands.
    parameters: HashMap<String, Value>,
}

/// A value in a graph that is being built.
#[derive(Clone)]
pub struct Tensor {
    builder: Rc<RefCell<GraphBuilder>>,
    /// `None` after an error.
    value: Option<Value>,
}

/// Leaves a scope when dropped.
#[must_use = "the scope ends when this is dropped"]
pub struct ScopeGuard(Rc<RefCell<GraphBuilder>>);

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        self.0.borrow_mut().graph.leave();
    }
}

impl Tensor {
    /// A new graph with this input.
    pub fn input(name: &str, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        Tensor { builder: Rc::default(), value: None }.another_input(name, dtype, shape)
    }

    /// Another input of the same graph.
    pub fn another_input(&self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        if self.builder.borrow().graph.inputs().any(|(_, input)| input.name == name) {
            return self.fail(GraphError::DuplicateName(name.into()));
        }
        self.source(Input { name: name.into(), ty: Type::new(dtype, shape) })
    }

    /// A parameter in the current scope. The same name again returns the same parameter, if the shapes agree.
    pub fn parameter(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Tensor {
        self.stored(name, shape.into(), init, true)
    }

    /// A parameter that optimisers do not update: a running statistic.
    pub fn statistic(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Tensor {
        self.stored(name, shape.into(), init, false)
    }

    fn stored(&self, name: &str, shape: Shape, init: Init, trainable: bool) -> Tensor {
        let name = self.builder.borrow().graph.qualified(name);
        let known = self.builder.borrow().parameters.get(&name).copied();
        match known {
            Some(value) if *self.builder.borrow().graph.shape(value) == shape => self.with(value),
            Some(_) => self.fail(GraphError::DuplicateName(name)),
            None => {
                let added = self.source(Parameter { trainable, ..Parameter::new(name.clone(), shape, init) });
                self.builder.borrow_mut().parameters.extend(added.value.map(|value| (name, value)));
                added
            }
        }
    }

    /// A constant in the same graph.
    pub fn constant(&self, constant: Constant) -> Tensor {
        self.source(constant)
    }

    /// Enters a scope until the guard is dropped; an empty name changes nothing.
    pub fn scope(&self, name: &str) -> ScopeGuard {
        self.builder.borrow_mut().graph.enter(name);
        ScopeGuard(self.builder.clone())
    }

    /// The shape; that of a scalar after an error.
    pub fn shape(&self) -> Shape {
        self.value.map(|v| self.builder.borrow().graph.shape(v).clone()).unwrap_or_default()
    }

    /// One extent, 1 after an error.
    pub fn extent(&self, axis: usize) -> usize {
        self.shape().get(axis).copied().unwrap_or(1)
    }

    /// Makes this an output of the graph.
    pub fn output(&self, name: &str) {
        if let Some(value) = self.value {
            let result = self.builder.borrow_mut().graph.set_output(name, value);
            if let Err(error) = result {
                self.fail(error);
            }
        }
    }

    /// Updates this parameter to another value at the end of a run ([`Graph::update`]).
    pub fn update(&self, new: &Tensor) {
        if let (Some(parameter), Some(new)) = (self.value, new.value) {
            let result = self.builder.borrow_mut().graph.update(parameter, new);
            if let Err(error) = result {
                self.fail(error);
            }
        }
    }

    /// Names this intermediate, so that [`Graph::request`] can make it an output later.
    pub fn tap(&self, name: &str) {
        if let Some(value) = self.value {
            self.builder.borrow_mut().graph.set_tap(name, value);
        }
    }

    /// The graph built so far, or its first error.
    pub fn finish(&self) -> Result<Graph, GraphError> {
        let builder = self.builder.borrow();
        match &builder.error {
            Some(error) => Err(error.clone()),
            None => Ok(builder.graph.clone()),
        }
    }

    /// The value behind this handle; `None` after an error.
    pub fn value(&self) -> Option<Value> {
        self.value
    }

    /// Records an error that the model's code has found.
    pub fn refuse(&self, what: &'static str, reason: String) -> Tensor {
        self.fail(self.refused(what, reason))
    }

    fn refused(&self, what: &'static str, reason: String) -> GraphError {
        let scope = self.builder.borrow().graph.scope_name();
        GraphError::Shape { op: what, scope, inputs: self.shape().to_string(), reason }
    }

    fn fail(&self, error: GraphError) -> Tensor {
        self.builder.borrow_mut().error.get_or_insert(error);
        Tensor { builder: self.builder.clone(), value: None }
    }

    fn with(&self, value: Value) -> Tensor {
        Tensor { builder: self.builder.clone(), value: Some(value) }
    }

    fn source(&self, op: impl Into<Op>) -> Tensor {
        self.apply_all(op, &[], 1).remove(0)
    }

    /// Applies an operation to this value and others; returns its first output.
    pub fn apply(&self, op: impl Into<Op>, others: &[&Tensor]) -> Tensor {
        let inputs: Vec<&Tensor> = std::iter::once(self).chain(others.iter().copied()).collect();
        self.apply_all(op, &inputs, 1).remove(0)
    }

    /// Applies an operation to this value and others; returns its first `outputs` outputs.
    pub fn apply_outputs(&self, op: impl Into<Op>, others: &[&Tensor], outputs: usize) -> Vec<Tensor> {
        let inputs: Vec<&Tensor> = std::iter::once(self).chain(others.iter().copied()).collect();
        self.apply_all(op, &inputs, outputs)
    }

    fn apply_all(&self, op: impl Into<Op>, inputs: &[&Tensor], outputs: usize) -> Vec<Tensor> {
        let missing = Tensor { builder: self.builder.clone(), value: None };
        let mut values = Vec::with_capacity(inputs.len());
        for input in inputs {
            if !Rc::ptr_eq(&self.builder, &input.builder) {
                let error = input.builder.borrow().error.clone();
                let foreign = || self.refused("the inputs", "they are values of two graphs".into());
                self.fail(error.unwrap_or_else(foreign));
                return vec![missing; outputs];
            }
            let Some(value) = input.value else { return vec![missing; outputs] };
            values.push(value);
        }
        let added = self.builder.borrow_mut().graph.add(op, &values);
        let node = match added {
            Ok(node) => node,
            Err(error) => return vec![self.fail(error); outputs],
        };
        let available = self.builder.borrow().graph.node(node).outputs.len();
        if outputs > available {
            let name = self.builder.borrow().graph.node(node).op.name();
            return vec![self.refuse(name, format!("it has {available} outputs, not {outputs}")); outputs];
        }
        (0..outputs).map(|output| self.with(Value { node, output })).collect()
    }

    /// `self · weightᵀ + bias`.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let others: Vec<&Tensor> = std::iter::once(weight).chain(bias).collect();
        self.apply(Linear { bias: bias.is_some(), ..Linear::default() }, &others)
    }

    /// Batched matrix product.
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        self.apply(MatMul::default(), &[other])
    }

    /// Convolution of this channels-last image.
    pub fn conv2d(&self, conv: Conv2d, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let others: Vec<&Tensor> = std::iter::once(weight).chain(bias).collect();
        self.apply(Conv2d { bias: bias.is_some(), ..conv }, &others)
    }

    /// Layer norm over the last axis.
    pub fn layer_norm(&self, gamma: &Tensor, beta: &Tensor, epsilon: f32) -> Tensor {
        self.apply(LayerNorm::new(epsilon), &[gamma, beta])
    }

    /// RMS norm over the last axis.
    pub fn rms_norm(&self, gamma: &Tensor, epsilon: f32) -> Tensor {
        let beta = self.constant(Constant::filled([self.shape().last()], 0.0));
        self.apply(LayerNorm::rms(epsilon), &[gamma, &beta])
    }

    /// Group norm of this channels-last value.
    pub fn group_norm(&self, norm: GroupNorm, gamma: &Tensor, beta: &Tensor) -> Tensor {
        self.apply(norm, &[gamma, beta])
    }

    /// Pooling of this channels-last image.
    pub fn pool2d(&self, pool: Pool2d) -> Tensor {
        self.apply(pool, &[])
    }

    /// Attention of this query, or of packed query, key and value; returns the result and the attention weights.
    pub fn attention(&self, attention: Attention, others: &[&Tensor]) -> [Tensor; 2] {
        let inputs: Vec<&Tensor> = std::iter::once(self).chain(others.iter().copied()).collect();
        let mut outputs = self.apply_all(attention, &inputs, 3);
        let weights = outputs.remove(2);
        [outputs.remove(0), weights]
    }

    /// An activation.
    pub fn activation(&self, activation: Activation) -> Tensor {
        self.apply(activation, &[])
    }

    /// Exact GELU.
    pub fn gelu(&self) -> Tensor {
        self.activation(Activation::Gelu)
    }

    /// Hyperbolic tangent.
    pub fn tanh(&self) -> Tensor {
        self.activation(Activation::Tanh)
    }

    /// `max(x, 0)`.
    pub fn relu(&self) -> Tensor {
        self.activation(Activation::Relu)
    }

    /// Softmax over the last axis.
    pub fn softmax(&self) -> Tensor {
        self.apply(Softmax, &[])
    }

    /// Every element times a constant.
    pub fn scale(&self, factor: f32) -> Tensor {
        self.apply(Scale(factor), &[])
    }

    /// Every element raised to a constant power.
    pub fn power(&self, exponent: f32) -> Tensor {
        self.apply(Unary::Power(exponent), &[])
    }

    /// The square root of every element; its gradient at 0 is 0.
    pub fn sqrt(&self) -> Tensor {
        self.apply(Unary::Sqrt, &[])
    }

    /// `eˣ` of every element.
    pub fn exp(&self) -> Tensor {
        self.apply(Unary::Exp, &[])
    }

    /// The smaller of every element and a limit.
    pub fn at_most(&self, limit: f32) -> Tensor {
        self.apply(Unary::AtMost(limit), &[])
    }

    /// Rotary position embedding by these tables.
    pub fn rotary(&self, rotary: Rotary, [cos, sin]: &[Tensor; 2]) -> Tensor {
        self.apply(rotary, &[cos, sin])
    }

    /// Cosines and sines of the angles of rotary positions; `self` are the coordinates.
    pub fn rotary_tables(&self, frequencies: &Tensor) -> [Tensor; 2] {
        let mut tables = self.apply_outputs(RotaryTables, &[frequencies], 2);
        let sin = tables.remove(1);
        [tables.remove(0), sin]
    }

    /// Random values in `low..high`, with a new random stream; `self` is the seed.
    pub fn uniform(&self, shape: impl Into<Shape>, low: f32, high: f32) -> Tensor {
        let stream = self.random_stream();
        self.apply(Uniform { shape: shape.into(), low, high, stream }, &[])
    }

    /// Dropout or stochastic depth, with a new random stream.
    pub fn dropout(&self, rate: f32, granularity: Granularity, seed: &Tensor) -> Tensor {
        let stream = self.random_stream();
        self.apply(Dropout { rate, stream, granularity }, &[seed])
    }

    /// Random permutations of the tokens of `samples` samples that start with `chosen` random ones, with a new random
    /// stream; `self` is the seed.
    pub fn random_partition(&self, samples: usize, tokens: usize, chosen: usize) -> Tensor {
        let stream = self.random_stream();
        self.apply(RandomPartition { samples, tokens, chosen, stream }, &[])
    }

    /// The source of every token ([`TokenCorruption`]) where the first `corrupted` of this permutation are corrupted,
    /// with a new random stream.
    pub fn token_corruption(&self, corrupted: usize, seed: &Tensor) -> Tensor {
        let stream = self.random_stream();
        self.apply(TokenCorruption { corrupted, stream }, &[seed])
    }

    /// The tokens of every sample whose indices are at these places of `order`.
    pub fn gather_tokens(&self, order: &Tensor, places: Range<usize>) -> Tensor {
        self.apply(GatherTokens { start: places.start, count: places.len() }, &[order])
    }

    /// Rows of every sample, the first of them at the place `start` of `order`, to the tokens with their indices.
    pub fn scatter_tokens(&self, order: &Tensor, start: usize, tokens: usize) -> Tensor {
        self.apply(ScatterTokens { start, tokens }, &[order])
    }

    /// The index of a random stream that no other operation of this graph uses.
    pub fn random_stream(&self) -> u32 {
        let mut builder = self.builder.borrow_mut();
        builder.streams += 1;
        builder.streams
    }

    /// The same elements with another shape.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        self.apply(Reshape(shape.into()), &[])
    }

    /// Axes in another order.
    pub fn permute(&self, order: impl Into<Vec<usize>>) -> Tensor {
        self.apply(Permute(order.into()), &[])
    }

    /// `length` entries of an axis, from `start`.
    pub fn slice(&self, axis: usize, start: usize, length: usize) -> Tensor {
        self.apply(Slice { axis, start, length }, &[])
    }

    /// Broadcast to a shape.
    pub fn broadcast(&self, shape: impl Into<Shape>) -> Tensor {
        self.apply(Broadcast(shape.into()), &[])
    }

    /// Concatenation along an axis. Without tensors, the result carries an error into the graph that uses it.
    pub fn concat(tensors: &[&Tensor], axis: usize) -> Tensor {
        match tensors {
            [] => Tensor { builder: Rc::default(), value: None }
                .refuse("concat", "there is nothing to concatenate".into()),
            [one] => (*one).clone(),
            [first, others @ ..] => first.apply(Concat { axis }, others),
        }
    }

    /// Rows of this table by index.
    pub fn gather(&self, indices: &Tensor) -> Tensor {
        self.apply(Gather, &[indices])
    }

    /// The mean over axes.
    pub fn mean(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        self.apply(Reduce::mean(axes), &[])
    }

    /// The sum over axes.
    pub fn sum(&self, axes: impl Into<Vec<usize>>) -> Tensor {
        self.apply(Reduce::sum(axes), &[])
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident) => {
        impl $trait<&Tensor> for &Tensor {
            type Output = Tensor;
            fn $method(self, other: &Tensor) -> Tensor {
                self.apply(Binary::$trait, &[other])
            }
        }
        impl $trait<Tensor> for Tensor {
            type Output = Tensor;
            fn $method(self, other: Tensor) -> Tensor {
                (&self).$method(&other)
            }
        }
        impl $trait<&Tensor> for Tensor {
            type Output = Tensor;
            fn $method(self, other: &Tensor) -> Tensor {
                (&self).$method(other)
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_shape_is_reported_with_its_scope() {
        let x = Tensor::input("image", DType::F32, [2, 5, 12]);
        {
            let _block = x.scope("blocks.3");
            let _attn = x.scope("attn");
            let weight = x.parameter("qkv.weight", [36, 13], Init::Zeros);
            let y = x.linear(&weight, None).gelu() + x.clone();
            y.output("y");
        }
        let error = x.finish().unwrap_err().to_string();
        assert_eq!(
            error,
            "linear in blocks.3.attn: the weight expects 13 input features, the input is [2, 5, 12] \
             (inputs f32[2, 5, 12], f32[36, 13])"
        );
    }

    #[test]
    fn an_empty_scope_put_a_dot_into_the_scope_of_nodes() {
        let x = Tensor::input("x", DType::F32, [1]);
        let _block = x.scope("blocks.0");
        let _unnamed = x.scope("");
        let node = x.gelu().value().unwrap().node;
        assert_eq!(x.finish().unwrap().node(node).scope, "blocks.0");
    }

    #[test]
    fn names_are_unique() {
        let x = Tensor::input("x", DType::F32, [1]);
        x.another_input("x", DType::F32, [1]);
        assert_eq!(x.finish().unwrap_err(), GraphError::DuplicateName("x".into()));
    }
}
