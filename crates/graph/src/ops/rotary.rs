//! Rotary position embedding (Su et al., 2021): pairs of channels are rotated by angles that depend on the token's
//! position, so that the dot product of two tokens depends on the difference of their positions.

use super::{InputPrecision, Operation, arity, expect_rank, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type, Value};

/// Which two channels of a head are a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RotaryPairs {
    /// Channels `2 i` and `2 i + 1`.
    Adjacent,
    /// Channels `i` and `i + d / 2`.
    Halves,
}

impl RotaryPairs {
    /// The channels of pair `i` in a head.
    pub fn channels(self, i: usize, head_dim: usize) -> [usize; 2] {
        match self {
            RotaryPairs::Adjacent => [2 * i, 2 * i + 1],
            RotaryPairs::Halves => [i, i + head_dim / 2],
        }
    }
}

/// Rotates the leading heads of the last tokens: `(a, b)` becomes `(a cos - b sin, a sin + b cos)`.
///
/// Inputs: `x [b, n, width]`, `cos` and `sin [g, p, d / 2]`: a value for each group of heads, each position and each of
/// the `d / 2` pairs of a head's `d` channels. Head `j` uses group `j mod g`, so packed query, key and value are
/// rotated by one operation with twice the heads of the attention. Heads after the first `heads`, and the first `n - p`
/// tokens, are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rotary {
    /// The number of heads that are rotated.
    pub heads: usize,
    /// The pairs of channels.
    pub pairs: RotaryPairs,
    /// Whether the angles are negated.
    pub inverse: bool,
}

/// The extents of one rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RotaryExtents {
    pub batch: usize,
    pub tokens: usize,
    pub width: usize,
    /// Tokens before those with a position.
    pub prefix: usize,
    /// Groups of heads with their own angles.
    pub groups: usize,
    pub head_dim: usize,
}

impl Rotary {
    /// The extents, from the shapes of `x` and `cos`.
    pub fn extents(&self, x: &[usize], table: &[usize]) -> RotaryExtents {
        RotaryExtents {
            batch: x[0],
            tokens: x[1],
            width: x[2],
            prefix: x[1].saturating_sub(table[1]),
            groups: table[0],
            head_dim: 2 * table[2],
        }
    }

    fn check(&self, x: &Type, table: &Type) -> Result<RotaryExtents, String> {
        expect_rank("the input", x, 3)?;
        expect_rank("the table", table, 3)?;
        let e = self.extents(&x.shape, &table.shape);
        if table.shape[1] > e.tokens {
            return Err(format!("{} positions are more than {} tokens", table.shape[1], e.tokens));
        }
        if e.head_dim == 0 || !e.width.is_multiple_of(e.head_dim) {
            return Err(format!("a width of {} is not divided into heads of {}", e.width, e.head_dim));
        }
        if self.heads > e.width / e.head_dim {
            return Err(format!("a width of {} has no {} heads of {}", e.width, self.heads, e.head_dim));
        }
        if e.groups == 0 || !self.heads.is_multiple_of(e.groups) {
            return Err(format!("{} heads cannot share {} groups of angles", self.heads, e.groups));
        }
        Ok(e)
    }

    /// Calls `visit(a, b, t)` with the indices of every rotated pair and of its angle in the tables.
    fn each(&self, e: &RotaryExtents, mut visit: impl FnMut(usize, usize, usize)) {
        let (positions, pairs) = (e.tokens - e.prefix, e.head_dim / 2);
        for row in 0..e.batch * positions {
            let (sample, position) = (row / positions, row % positions);
            let token = (sample * e.tokens + e.prefix + position) * e.width;
            for head in 0..self.heads {
                for i in 0..pairs {
                    let [a, b] = self.pairs.channels(i, e.head_dim).map(|c| token + head * e.head_dim + c);
                    visit(a, b, (head % e.groups * positions + position) * pairs + i);
                }
            }
        }
    }

    fn sign(&self) -> f64 {
        if self.inverse { -1.0 } else { 1.0 }
    }
}

impl Operation for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 3)?;
        self.check(&inputs[0], &inputs[1])?;
        expect_shape("the sines", &inputs[2], &inputs[1].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (x, cos, sin, dy) = (b.input(0), b.input(1), b.input(2), b.dy()?);
        if b.needs_gradient(0) {
            let dx = b.graph.value(Rotary { inverse: !self.inverse, ..*self }, &[dy, cos, sin])?;
            b.set(0, dx)?;
        }
        if b.needs_gradient(1) || b.needs_gradient(2) {
            let op = RotaryGrad { rotary: *self, table: b.graph.shape(cos).clone() };
            let node = b.graph.add(op, &[dy, x])?;
            for output in 0..2 {
                if b.needs_gradient(1 + output) {
                    b.set(1 + output, Value { node, output })?;
                }
            }
        }
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let e = self.extents(inputs[0].shape(), inputs[1].shape());
        let mut y = Array::new(inputs[0].shape(), inputs[0].data().to_vec());
        self.each(&e, |a, b, t| {
            let (cos, sin) = (inputs[1].data()[t], self.sign() * inputs[2].data()[t]);
            let (x_a, x_b) = (inputs[0].data()[a], inputs[0].data()[b]);
            y.data_mut()[a] = x_a * cos - x_b * sin;
            y.data_mut()[b] = x_a * sin + x_b * cos;
        });
        vec![y]
    }

    fn in_place(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input > 0)
    }
}

/// The gradients of [`Rotary`]'s tables, from `dy` and `x`: summed over samples and the heads of a group,
/// `dcos = dy_a x_a + dy_b x_b` and `dsin = dy_b x_a - dy_a x_b`, the latter negated if the rotation is inverse.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryGrad {
    /// The rotation.
    pub rotary: Rotary,
    /// The shape of each table.
    pub table: Shape,
}

impl Operation for RotaryGrad {
    fn name(&self) -> &'static str {
        "rotary_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        let table = Type::f32(self.table.clone());
        self.rotary.check(&inputs[1], &table)?;
        expect_shape("dy", &inputs[0], &inputs[1].shape)?;
        Ok(vec![table.clone(), table])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, x, sign) = (inputs[0].data(), inputs[1].data(), self.rotary.sign());
        let e = self.rotary.extents(inputs[1].shape(), &self.table);
        let mut grads: Vec<Array> = outputs.iter().map(|t| Array::filled(t.shape.clone(), 0.0)).collect();
        self.rotary.each(&e, |a, b, t| {
            grads[0].data_mut()[t] += dy[a] * x[a] + dy[b] * x[b];
            grads[1].data_mut()[t] += sign * (dy[b] * x[a] - dy[a] * x[b]);
        });
        grads
    }

    fn is_f32_output(&self, _: usize) -> bool {
        true
    }
}

/// The tables of [`Rotary`]: cosines and sines of the angles `coordinates · frequencies`.
///
/// Inputs: `coordinates [p, axes]`, `frequencies [axes, g, d / 2]`. Outputs: `cos` and `sin [g, p, d / 2]`. One
/// operation rather than a product and two functions, since angles need f32 whatever the precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotaryTables;

impl Operation for RotaryTables {
    fn name(&self) -> &'static str {
        "rotary_tables"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_rank("the coordinates", &inputs[0], 2)?;
        expect_rank("the frequencies", &inputs[1], 3)?;
        let ([positions, axes], frequencies) = ([inputs[0].shape[0], inputs[0].shape[1]], &inputs[1].shape);
        if frequencies[0] != axes {
            return Err(format!("{axes} coordinates do not fit frequencies of {} axes", frequencies[0]));
        }
        let table = Type::f32([frequencies[1], positions, frequencies[2]]);
        Ok(vec![table.clone(), table])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        if b.needs_gradient(0) {
            return Err(b.unsupported("coordinates have no gradient"));
        }
        let inputs = [b.dy_of(0)?, b.dy_of(1)?, b.output(0), b.output(1), b.input(0)];
        let dfrequencies = b.graph.value(RotaryTablesGrad, &inputs)?;
        b.set(1, dfrequencies)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (positions, pairs) = (outputs[0].shape[1], outputs[0].shape[2]);
        let (axes, per_axis) = (inputs[0].shape()[1], outputs[0].shape[0] * pairs);
        let angle = |at: usize| {
            let (group, position, i) = (at / pairs / positions, at / pairs % positions, at % pairs);
            let of = |axis: usize| {
                inputs[0].data()[position * axes + axis] * inputs[1].data()[axis * per_axis + group * pairs + i]
            };
            (0..axes).map(of).sum::<f64>()
        };
        [f64::cos as fn(f64) -> f64, f64::sin].map(|f| Array::from_fn(&outputs[0].shape, |at| f(angle(at)))).into()
    }

    fn input_precision(&self, _: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _: usize) -> bool {
        true
    }
}

/// The gradient of the frequencies of [`RotaryTables`], from `dcos, dsin, cos, sin, coordinates`: summed over
/// positions, `coordinates · (cos dsin - sin dcos)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotaryTablesGrad;

impl Operation for RotaryTablesGrad {
    fn name(&self) -> &'static str {
        "rotary_tables_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 5)?;
        expect_rank("the cosines", &inputs[2], 3)?;
        expect_rank("the coordinates", &inputs[4], 2)?;
        for (what, input) in [("dcos", 0), ("dsin", 1), ("the sines", 3)] {
            expect_shape(what, &inputs[input], &inputs[2].shape)?;
        }
        let (table, axes) = (&inputs[2].shape, inputs[4].shape[1]);
        expect_shape("the coordinates", &inputs[4], &[table[1], axes])?;
        Ok(vec![Type::f32([axes, table[0], table[2]])])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [dcos, dsin, cos, sin, coordinates] = [0, 1, 2, 3, 4].map(|i| inputs[i].data());
        let (positions, pairs) = (inputs[2].shape()[1], inputs[2].shape()[2]);
        let (axes, per_axis) = (inputs[4].shape()[1], inputs[2].shape()[0] * pairs);
        let mut grad = Array::filled(outputs[0].shape.clone(), 0.0);
        for at in 0..cos.len() {
            let (group, position, i) = (at / pairs / positions, at / pairs % positions, at % pairs);
            let dangle = cos[at] * dsin[at] - sin[at] * dcos[at];
            for axis in 0..axes {
                grad.data_mut()[axis * per_axis + group * pairs + i] += coordinates[position * axes + axis] * dangle;
            }
        }
        vec![grad]
    }

    fn input_precision(&self, _: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _: usize) -> bool {
        true
    }
}
