//! The linear layer `x Wᵀ + b` with its epilogue.

use super::{Activation, InputPrecision, MatMul, Operation, Reduce, Reshape, arity, expect_shape};
use crate::autodiff::Backward;
use crate::quantise::{QuantisedRow, QuantisedWeights, quantise_row, quantise_weights};
use crate::reference::Array;
use crate::{GraphError, Type};

/// `residual + scale · activation(x Wᵀ + bias)`; everything but the product is optional.
///
/// Inputs: `x [.., k]`, `weight [n, k]`, then `bias [n]`, `scale [n]`, `residual [.., n]` where present. Models use
/// product and bias; [`crate::rewrite::fuse_linear`] adds the rest.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Linear {
    /// Whether there is a bias input.
    pub bias: bool,
    /// The activation of `x Wᵀ + bias`.
    pub activation: Option<Activation>,
    /// Whether there is a layer-scale input.
    pub scale: bool,
    /// Whether there is a residual input.
    pub residual: bool,
    /// Whether the product is int8, as defined by [`crate::quantise`]. Set by [`crate::rewrite::quantise_int8`].
    pub int8: bool,
}

impl Linear {
    /// Whether nothing follows the bias.
    pub fn is_plain(&self) -> bool {
        self.activation.is_none() && !self.scale && !self.residual
    }

    /// The positions of bias, scale and residual among the inputs.
    pub fn optional_inputs(&self) -> [Option<usize>; 3] {
        let mut next = 2;
        [self.bias, self.scale, self.residual].map(|present| {
            present.then(|| {
                next += 1;
                next - 1
            })
        })
    }
}

impl Operation for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    /// `linear+gelu+scale+residual`, in the order of the epilogue; bias and int8 are left out.
    fn label(&self) -> String {
        let mut label = self.name().to_string();
        label.extend(self.activation.map(|a| format!("+{}", a.name())));
        label.extend(self.scale.then_some("+scale"));
        label.extend(self.residual.then_some("+residual"));
        label
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        let [bias, scale, residual] = self.optional_inputs();
        arity(inputs, 2 + [bias, scale, residual].iter().flatten().count())?;
        let (x, weight) = (&inputs[0], &inputs[1]);
        super::expect_rank("the weight", weight, 2)?;
        let (n, k) = (weight.shape[0], weight.shape[1]);
        if x.shape.is_empty() || x.shape.last() != k {
            return Err(format!("the weight expects {k} input features, the input is {}", x.shape));
        }
        let out = Type::new(x.dtype, x.shape.with_last(n));
        for (what, position) in [("the bias", bias), ("the scale", scale)] {
            if let Some(i) = position {
                expect_shape(what, &inputs[i], &[n])?;
            }
        }
        if let Some(i) = residual {
            expect_shape("the residual", &inputs[i], &out.shape)?;
        }
        Ok(vec![out])
    }

    fn flops(&self, inputs: &[Type], outputs: &[Type]) -> u64 {
        2 * outputs[0].shape.elements() as u64 * inputs[0].shape.last() as u64
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        if !self.is_plain() || self.int8 {
            return Err(b.unsupported("it was fused or quantised before differentiation"));
        }
        let (x, weight, dy) = (b.input(0), b.input(1), b.dy()?);
        let x_shape = b.graph.shape(x).clone();
        let (n, k) = (b.graph.shape(weight)[0], b.graph.shape(weight)[1]);
        let dy = b.graph.value(Reshape::to([x_shape.rows(), n]), &[dy])?;
        if b.needs_gradient(0) {
            let dx = b.graph.value(MatMul::default(), &[dy, weight])?;
            let dx = b.graph.value(Reshape::to(x_shape.clone()), &[dx])?;
            b.set(0, dx)?;
        }
        if b.needs_gradient(1) {
            let x = b.graph.value(Reshape::to([x_shape.rows(), k]), &[x])?;
            let dw = b.graph.value(MatMul { transpose_a: true, transpose_b: false }, &[dy, x])?;
            b.set(1, dw)?;
        }
        if self.bias && b.needs_gradient(2) {
            let db = b.graph.value(Reduce::sum([0]), &[dy])?;
            b.set(2, db)?;
        }
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [bias, scale, residual] = self.optional_inputs();
        let (x, weight) = (inputs[0].data(), inputs[1].data());
        let (n, k) = (inputs[1].shape()[0], inputs[1].shape()[1]);
        let int8 = self.int8.then(|| Int8Operands::new(inputs[0], inputs[1]));
        let value = |i: usize| {
            let (row, column) = (i / n, i % n);
            let mut y: f64 = 0.0;
            match &int8 {
                Some(int8) => y = int8.dot(row, column),
                None => (0..k).for_each(|p| y += x[row * k + p] * weight[column * k + p]),
            }
            if let Some(b) = bias {
                y += inputs[b].data()[column];
            }
            if let Some(activation) = self.activation {
                y = activation.apply(y);
            }
            if let Some(s) = scale {
                y *= inputs[s].data()[column];
            }
            if let Some(r) = residual {
                y += inputs[r].data()[i];
            }
            y
        };
        vec![Array::from_fn(&outputs[0].shape, value)]
    }

    fn row_inputs(&self, inputs: &[Type], _: &Type) -> Option<Vec<bool>> {
        let residual = self.optional_inputs()[2];
        Some((0..inputs.len()).map(|i| i == 0 || Some(i) == residual).collect())
    }

    /// A matrix product's epilogue adds the bias in the precision of the result, and the residual too if it is another
    /// term of the sum. After an activation or a scale, the residual is added elementwise and may be stored in any
    /// precision.
    fn input_precision(&self, input: usize) -> InputPrecision {
        let [_, scale, residual] = self.optional_inputs();
        match Some(input) {
            Some(0 | 1) => InputPrecision::Operand,
            input if input == scale => InputPrecision::F32,
            input if input == residual && (self.activation.is_some() || self.scale) => InputPrecision::AsStored,
            _ => InputPrecision::Addend,
        }
    }
}

/// A linear layer with its activation, and the derivative of the activation for the backward pass.
///
/// Inputs: `x [.., k]`, `weight [n, k]`, and `bias [n]` where present. Outputs: `activation(x Wᵀ + bias)` and
/// `activation'(x Wᵀ + bias)`. Created by [`crate::rewrite::save_activation_derivative`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearWithDerivative {
    /// Whether there is a bias input.
    pub bias: bool,
    /// The activation of `x Wᵀ + bias`.
    pub activation: Activation,
}

impl LinearWithDerivative {
    fn linear(&self) -> Linear {
        Linear { bias: self.bias, ..Linear::default() }
    }
}

impl Operation for LinearWithDerivative {
    fn name(&self) -> &'static str {
        "linear_with_derivative"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        let outputs = self.linear().infer(inputs)?;
        Ok([outputs.clone(), outputs].concat())
    }

    fn flops(&self, inputs: &[Type], outputs: &[Type]) -> u64 {
        self.linear().flops(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let sums = &self.linear().evaluate(inputs, outputs)[0];
        let map =
            |f: fn(Activation, f64) -> f64| Array::from_fn(&outputs[0].shape, |i| f(self.activation, sums.data()[i]));
        vec![map(Activation::apply), map(Activation::derivative)]
    }
}

/// Both operands, quantised.
struct Int8Operands {
    rows: Vec<QuantisedRow>,
    weights: Vec<QuantisedWeights>,
}

impl Int8Operands {
    fn new(x: &Array, weight: &Array) -> Self {
        let k = weight.shape()[1].max(1);
        Int8Operands {
            rows: x.to_f32().chunks(k).map(quantise_row).collect(),
            weights: weight.to_f32().chunks(k).map(quantise_weights).collect(),
        }
    }

    fn dot(&self, row: usize, column: usize) -> f64 {
        let (x, w) = (&self.rows[row], &self.weights[column]);
        let terms = x.values.iter().zip(&w.values).map(|(&q, &p)| (i64::from(q) - i64::from(x.zero)) * i64::from(p));
        terms.sum::<i64>() as f64 * f64::from(w.scale) * f64::from(x.scale)
    }
}
