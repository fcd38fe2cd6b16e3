//! Elementwise operations and softmax. Forms that are several nodes are those that runtimes recognise and fuse.

use std::f32::consts::SQRT_2;

use vit_graph::ops::{Activation, Binary, Op, Reduce, Reduction, Unary};
use vit_graph::{NodeId, Value};

use crate::onnx::OnnxError;
use crate::onnx::batch::Extent;
use crate::onnx::model::Attribute;
use crate::onnx::translation::Translation;

impl Translation<'_> {
    pub fn activation(&mut self, id: NodeId, activation: Activation) -> Result<(), OnnxError> {
        let input = self.node(id).inputs[0];
        let channels_first = self.only_channels_first(input);
        let x = self.in_layout(input, channels_first)?;
        let y = self.activated(&x, activation);
        self.set_in_layout(id, channels_first, y);
        Ok(())
    }

    fn activated(&mut self, x: &str, activation: Activation) -> String {
        let scaled_by_sigmoid = |this: &mut Self, inner: &str| {
            let sigmoid = this.add("Sigmoid", &[inner]);
            this.add("Mul", &[x, &sigmoid])
        };
        match activation {
            Activation::Relu => self.add("Relu", &[x]),
            Activation::Tanh => self.add("Tanh", &[x]),
            Activation::Sigmoid => self.add("Sigmoid", &[x]),
            Activation::Silu => scaled_by_sigmoid(self, x),
            Activation::QuickGelu => {
                let factor = self.scalar(1.702);
                let inner = self.add("Mul", &[x, &factor]);
                scaled_by_sigmoid(self, &inner)
            }
            Activation::Gelu => {
                let [root, one, half] = [SQRT_2, 1.0, 0.5].map(|v| self.scalar(v));
                let inner = self.add("Div", &[x, &root]);
                let erf = self.add("Erf", &[&inner]);
                let sum = self.add("Add", &[&erf, &one]);
                let product = self.add("Mul", &[x, &sum]);
                self.add("Mul", &[&product, &half])
            }
            Activation::GeluTanh => {
                let [three, cubic, root, one, half] = [3.0, 0.044_715, 0.797_884_6, 1.0, 0.5].map(|v| self.scalar(v));
                let cube = self.add("Pow", &[x, &three]);
                let cube = self.add("Mul", &[&cube, &cubic]);
                let sum = self.add("Add", &[x, &cube]);
                let inner = self.add("Mul", &[&sum, &root]);
                let tanh = self.add("Tanh", &[&inner]);
                let sum = self.add("Add", &[&tanh, &one]);
                let product = self.add("Mul", &[x, &sum]);
                self.add("Mul", &[&product, &half])
            }
        }
    }

    pub fn softmax(&mut self, id: NodeId) -> Result<(), OnnxError> {
        let x = self.plain(self.node(id).inputs[0])?;
        let y = self.add_with("Softmax", &[&x], vec![Attribute::Int("axis", -1)]);
        self.set_plain(id, y);
        Ok(())
    }

    pub fn scaled(&mut self, id: NodeId, factor: f32) -> Result<(), OnnxError> {
        let input = self.node(id).inputs[0];
        let channels_first = self.only_channels_first(input);
        let (x, factor) = (self.in_layout(input, channels_first)?, self.scalar(factor));
        let y = self.add("Mul", &[&x, &factor]);
        self.set_in_layout(id, channels_first, y);
        Ok(())
    }

    pub fn unary(&mut self, id: NodeId, unary: Unary) -> Result<(), OnnxError> {
        let input = self.node(id).inputs[0];
        if let (Unary::Sqrt, Some((x, axes))) = (unary, self.sum_of_squares(input)) {
            return self.norm_of(id, x, &axes);
        }
        let channels_first = self.only_channels_first(input);
        let x = self.in_layout(input, channels_first)?;
        let y = match unary {
            Unary::Sqrt => self.add("Sqrt", &[&x]),
            Unary::Exp => self.add("Exp", &[&x]),
            Unary::Power(-1.0) => self.add("Reciprocal", &[&x]),
            Unary::Power(exponent) => {
                let exponent = self.scalar(exponent);
                self.add("Pow", &[&x, &exponent])
            }
            Unary::AtMost(limit) => {
                let limit = self.scalar(limit);
                self.add("Min", &[&x, &limit])
            }
            Unary::SqrtDerivative | Unary::AtMostDerivative(_) => return Err(self.unsupported(id)),
        };
        self.set_in_layout(id, channels_first, y);
        Ok(())
    }

    /// The value and axes of a sum of squares. Its root as one operator does not overflow in f16, as the sum would.
    fn sum_of_squares(&self, sum: Value) -> Option<(Value, Vec<usize>)> {
        let Op::Reduce(Reduce { reduction: Reduction::Sum, axes }) = &self.node(sum.node).op else { return None };
        let squares = self.node(self.node(sum.node).inputs[0].node);
        let [a, b] = squares.inputs[..] else { return None };
        (squares.op == Op::Binary(Binary::Mul) && a == b).then(|| (a, axes.clone()))
    }

    fn norm_of(&mut self, id: NodeId, x: Value, axes: &[usize]) -> Result<(), OnnxError> {
        let x = self.plain(x)?;
        let x = self.wide(&x);
        let axes = axes.iter().map(|&axis| axis as i64).collect();
        let y = self.add_with("ReduceL2", &[&x], vec![Attribute::Ints("axes", axes), Attribute::Int("keepdims", 0)]);
        let y = self.narrow(&y);
        self.set_plain(id, y);
        Ok(())
    }

    pub fn binary(&mut self, id: NodeId, binary: Binary) -> Result<(), OnnxError> {
        let operator = match binary {
            Binary::Add => "Add",
            Binary::Sub => "Sub",
            Binary::Mul => "Mul",
        };
        let inputs = [self.node(id).inputs[0], self.node(id).inputs[1]];
        let channels_first = self.works_channels_first(&inputs)?;
        let mut operands = Vec::new();
        for input in inputs {
            operands.push(if channels_first { self.operand_channels_first(input)? } else { self.plain(input)? });
        }
        let y = self.add(operator, &[&operands[0], &operands[1]]);
        self.set_in_layout(id, channels_first, y);
        Ok(())
    }

    /// Whether an elementwise operation works on images with channels first: all that are larger than a pixel are there in
    /// that layout, one in no other, and the others are vectors of channels.
    fn works_channels_first(&self, inputs: &[Value]) -> Result<bool, OnnxError> {
        let mut any = false;
        for &input in inputs {
            let shape = self.shape(input)?;
            let pixel = shape.len() == 4 && shape[1..3] == [Extent::Fixed(1); 2];
            let suits = match shape.len() {
                0 => true,
                1 => self.constants.is_constant(input.node),
                4 => pixel || self.forms(input).channels_first.is_some(),
                _ => false,
            };
            if !suits {
                return Ok(false);
            }
            any |= self.only_channels_first(input) && !pixel;
        }
        Ok(any)
    }

    /// An operand that broadcasts to an image with channels first.
    fn operand_channels_first(&mut self, value: Value) -> Result<String, OnnxError> {
        if self.extents(value).len() != 1 {
            return if self.extents(value).is_empty() { self.plain(value) } else { self.channels_first(value) };
        }
        let channels = self.constant(value)?;
        let shape = [channels.data.len(), 1, 1];
        let name = self.constant_name(value, "");
        Ok(self.floats(&name, &shape, channels.data))
    }
}
