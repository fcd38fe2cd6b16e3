//! Cosine attention (Swin V2): queries and keys are normalised before an [`Attention`](super::Attention), so that its
//! scores are cosines times a factor per head.

use super::{InputPrecision, Operation, Reduce, arity, expect_rank, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Type, Value};

/// The least length that a vector is divided by, as in PyTorch's `normalize`.
pub const LEAST_LENGTH: f32 = 1e-12;

/// Every query times `scale / length`, every key divided by its length; values stay as they are.
///
/// Inputs: packed `qkv [b, n, 3·h·d]`, `scale [h]`. Output: the same shape as `qkv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CosineQkv {
    /// The number of heads.
    pub heads: usize,
}

/// `qkv` as vectors of `head_dim` elements, `[b · n][3 projections][heads]`.
struct HeadVectors {
    heads: usize,
    head_dim: usize,
}

/// Which of the three projections a vector of `qkv` is, with the head of a query.
enum Projection {
    Query(usize),
    Key,
    Value,
}

impl HeadVectors {
    fn projection(&self, vector: usize) -> Projection {
        match vector / self.heads % 3 {
            0 => Projection::Query(vector % self.heads),
            1 => Projection::Key,
            _ => Projection::Value,
        }
    }
}

/// The larger of a vector's length and [`LEAST_LENGTH`], and whether it is the length. A NaN is kept.
fn divisor(x: &[f64]) -> (f64, bool) {
    let length = x.iter().map(|v| v * v).sum::<f64>().sqrt();
    let least = f64::from(LEAST_LENGTH);
    if length < least { (least, false) } else { (length, true) }
}

impl CosineQkv {
    fn check(&self, qkv: &Type, scale: &Type) -> Result<(), String> {
        expect_rank("qkv", qkv, 3)?;
        let divisor = self.heads.checked_mul(3).filter(|&divisor| divisor > 0);
        let width = qkv.shape[2];
        if width == 0 || divisor.is_none_or(|divisor| !width.is_multiple_of(divisor)) {
            return Err(format!("a width of {} cannot be divided among {} heads", width / 3, self.heads));
        }
        expect_shape("the scale", scale, &[self.heads])
    }

    fn vectors(&self, qkv: &[usize]) -> HeadVectors {
        HeadVectors { heads: self.heads, head_dim: qkv[2] / (3 * self.heads) }
    }
}

impl Operation for CosineQkv {
    fn name(&self) -> &'static str {
        "cosine_qkv"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        self.check(&inputs[0], &inputs[1])?;
        Ok(vec![inputs[0].clone()])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let inputs = [b.dy()?, b.input(0), b.input(1)];
        let node = b.graph.add(CosineQkvGrad { heads: self.heads }, &inputs)?;
        if b.needs_gradient(0) {
            b.set(0, Value { node, output: 0 })?;
        }
        if b.needs_gradient(1) {
            let dscale = b.graph.value(Reduce::sum(vec![0, 1]), &[Value { node, output: 1 }])?;
            b.set(1, dscale)?;
        }
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (qkv, scale) = (inputs[0], inputs[1].data());
        let vectors = self.vectors(qkv.shape());
        let mut y = Vec::with_capacity(qkv.data().len());
        for (vector, x) in qkv.data().chunks(vectors.head_dim).enumerate() {
            let factor = match vectors.projection(vector) {
                Projection::Query(head) => scale[head] / divisor(x).0,
                Projection::Key => 1.0 / divisor(x).0,
                Projection::Value => 1.0,
            };
            y.extend(x.iter().map(|v| factor * v));
        }
        vec![Array::new(outputs[0].shape.clone(), y)]
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input == 1)
    }
}

/// The gradient of [`CosineQkv`]: from `dy`, `qkv` and `scale` to `dqkv` and `x̂ · dy` of every query, `[b, n, h]`,
/// whose sum over samples and tokens is the gradient of the scale. With `x̂` a query or key divided by its length and
/// `s` the scale, or 1 for keys, `dx = s / length · (dy - x̂ (x̂ · dy))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CosineQkvGrad {
    /// The number of heads.
    pub heads: usize,
}

impl Operation for CosineQkvGrad {
    fn name(&self) -> &'static str {
        "cosine_qkv_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 3)?;
        CosineQkv { heads: self.heads }.check(&inputs[1], &inputs[2])?;
        expect_shape("dy", &inputs[0], &inputs[1].shape)?;
        let qkv = &inputs[1].shape;
        Ok(vec![inputs[1].clone(), Type::f32([qkv[0], qkv[1], self.heads])])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, qkv, scale) = (inputs[0].data(), inputs[1], inputs[2].data());
        let vectors = CosineQkv { heads: self.heads }.vectors(qkv.shape());
        let (mut dx, mut dots) = (Vec::with_capacity(dy.len()), Vec::new());
        let pairs = qkv.data().chunks(vectors.head_dim).zip(dy.chunks(vectors.head_dim));
        for (vector, (x, dy)) in pairs.enumerate() {
            let projection = vectors.projection(vector);
            if let Projection::Value = projection {
                dx.extend_from_slice(dy);
                continue;
            }
            let (length, normalised) = divisor(x);
            let dot = x.iter().zip(dy).map(|(x, dy)| x / length * dy).sum::<f64>();
            let factor = match projection {
                Projection::Query(head) => {
                    dots.push(dot);
                    scale[head] / length
                }
                _ => 1.0 / length,
            };
            let along = if normalised { dot } else { 0.0 };
            dx.extend(x.iter().zip(dy).map(|(x, dy)| factor * (dy - x / length * along)));
        }
        vec![Array::new(outputs[0].shape.clone(), dx), Array::new(outputs[1].shape.clone(), dots)]
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input == 2)
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output == 1
    }

    fn always_writes_first_output(&self) -> bool {
        true
    }
}
