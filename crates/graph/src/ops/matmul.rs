//! Batched matrix products.

use super::{InputPrecision, Operation, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Type};

/// `op(A) · op(B)` over any equal leading axes; each operand may be stored transposed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MatMul {
    /// A is stored `[.., k, m]` rather than `[.., m, k]`.
    pub transpose_a: bool,
    /// B is stored `[.., n, k]` rather than `[.., k, n]`.
    pub transpose_b: bool,
}

impl MatMul {
    /// `[batch, m, n, k]` of the product of these two operands.
    pub fn extents(&self, a: &[usize], b: &[usize]) -> [usize; 4] {
        let rank = a.len();
        let (mut m, mut k) = (a[rank - 2], a[rank - 1]);
        if self.transpose_a {
            (m, k) = (k, m);
        }
        let n = if self.transpose_b { b[rank - 2] } else { b[rank - 1] };
        [a[..rank - 2].iter().product(), m, n, k]
    }
}

impl Operation for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        let (a, b) = (&inputs[0].shape, &inputs[1].shape);
        let rank = a.len();
        if rank < 2 || b.len() != rank || a[..rank - 2] != b[..rank - 2] {
            return Err("both operands need the same leading axes before their two matrix axes".into());
        }
        let [_, m, n, k] = self.extents(a, b);
        let b_k = if self.transpose_b { b[rank - 1] } else { b[rank - 2] };
        if k != b_k {
            return Err(format!("the inner extents differ: {k} and {b_k}"));
        }
        Ok(vec![Type::new(inputs[0].dtype, a.with(rank - 2, m).with_last(n))])
    }

    fn flops(&self, inputs: &[Type], outputs: &[Type]) -> u64 {
        let [.., k] = self.extents(&inputs[0].shape, &inputs[1].shape);
        2 * outputs[0].shape.elements() as u64 * k as u64
    }

    fn gradient(&self, g: &mut Backward) -> Result<(), GraphError> {
        let (a, b, dy) = (g.input(0), g.input(1), g.dy()?);
        let product = |transpose_a, transpose_b| MatMul { transpose_a, transpose_b };
        if g.needs_gradient(0) {
            let da = if self.transpose_a {
                g.graph.value(product(self.transpose_b, true), &[b, dy])?
            } else {
                g.graph.value(product(false, !self.transpose_b), &[dy, b])?
            };
            g.set(0, da)?;
        }
        if g.needs_gradient(1) {
            let db = if self.transpose_b {
                g.graph.value(product(true, self.transpose_a), &[dy, a])?
            } else {
                g.graph.value(product(!self.transpose_a, false), &[a, dy])?
            };
            g.set(1, db)?;
        }
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (a, b) = (inputs[0].data(), inputs[1].data());
        let [_, m, n, k] = self.extents(inputs[0].shape(), inputs[1].shape());
        let value = |index: usize| {
            let (batch, i, j) = (index / (m * n), index / n % m, index % n);
            let mut sum = 0.0;
            for p in 0..k {
                let ai = if self.transpose_a { p * m + i } else { i * k + p };
                let bi = if self.transpose_b { j * k + p } else { p * n + j };
                sum += a[batch * m * k + ai] * b[batch * k * n + bi];
            }
            sum
        };
        vec![Array::from_fn(&outputs[0].shape, value)]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::Operand
    }
}

/// A matrix product times a third operand, elementwise: the gradient of an activation whose derivative was kept. Made
/// by [`crate::rewrite::save_activation_derivative`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MatMulTimes(pub MatMul);

impl Operation for MatMulTimes {
    fn name(&self) -> &'static str {
        "matmul_times"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 3)?;
        let outputs = self.0.infer(&inputs[..2])?;
        expect_shape("the factor", &inputs[2], &outputs[0].shape)?;
        Ok(outputs)
    }

    fn flops(&self, inputs: &[Type], outputs: &[Type]) -> u64 {
        self.0.flops(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let product = &self.0.evaluate(inputs, outputs)[0];
        let factor = inputs[2].data();
        vec![Array::from_fn(&outputs[0].shape, |i| product.data()[i] * factor[i])]
    }
}
