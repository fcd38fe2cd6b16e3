//! Norms.

use vit_graph::ops::{GroupNorm, LayerNorm};
use vit_graph::{NodeId, Value};

use crate::onnx::OnnxError;
use crate::onnx::batch::Extent;
use crate::onnx::model::Attribute;
use crate::onnx::translation::Translation;

impl Translation<'_> {
    pub fn layer_norm(&mut self, id: NodeId, norm: &LayerNorm) -> Result<(), OnnxError> {
        let [x, gamma, beta] = [0, 1, 2].map(|i| self.node(id).inputs[i]);
        let x = self.plain(x)?;
        let y = if norm.centred {
            let (gamma, beta) = (self.plain(gamma)?, self.plain(beta)?);
            let attributes = vec![Attribute::Int("axis", -1), Attribute::Float("epsilon", norm.epsilon)];
            self.add_with("LayerNormalization", &[&x, &gamma, &beta], attributes)
        } else {
            self.rms_norm(&x, norm.epsilon, gamma, beta)?
        };
        self.set_plain(id, y);
        Ok(())
    }

    /// `x / sqrt(mean(x²) + epsilon) · gamma + beta`, in f32, since squares overflow f16.
    fn rms_norm(&mut self, x: &str, epsilon: f32, gamma: Value, beta: Value) -> Result<String, OnnxError> {
        let x = self.wide(x);
        let (two, epsilon) = (self.wide_scalar(2.0), self.wide_scalar(epsilon));
        let squares = self.add("Pow", &[&x, &two]);
        let axes = vec![Attribute::Ints("axes", vec![-1]), Attribute::Int("keepdims", 1)];
        let mean = self.add_with("ReduceMean", &[&squares], axes);
        let sum = self.add("Add", &[&mean, &epsilon]);
        let deviation = self.add("Sqrt", &[&sum]);
        let y = self.add("Div", &[&x, &deviation]);
        let y = self.narrow(&y);
        let gamma = self.plain(gamma)?;
        let y = self.add("Mul", &[&y, &gamma]);
        let elements = self.copied_constant(beta)?.data;
        if elements.iter().all(|&element| element == 0.0) {
            return Ok(y);
        }
        let beta = self.plain(beta)?;
        Ok(self.add("Add", &[&y, &beta]))
    }

    /// `GroupNormalization` is younger than the operator set: an instance norm whose instances are groups, then the affine
    /// part.
    pub fn group_norm(&mut self, id: NodeId, norm: &GroupNorm) -> Result<(), OnnxError> {
        let [x, gamma, beta] = [0, 1, 2].map(|i| self.node(id).inputs[i]);
        let shape = self.shape(x)?;
        if shape.len() != 4 {
            return Err(self.unsupported(id));
        }
        let elements = self.extents(x)[1..].iter().product::<usize>() / norm.groups;
        let image = self.channels_first(x)?;
        let grouped = self.reshape(&image, &[shape[0], Extent::Fixed(norm.groups), Extent::Fixed(elements)])?;
        let ones = self.table("ones", &[norm.groups], vec![1.0; norm.groups]);
        let zeros = self.table("zeros", &[norm.groups], vec![0.0; norm.groups]);
        let epsilon = vec![Attribute::Float("epsilon", norm.epsilon)];
        let y = self.add_with("InstanceNormalization", &[&grouped, &ones, &zeros], epsilon);
        let mut y = self.reshape(&y, &[0, 3, 1, 2].map(|axis| shape[axis]))?;
        for (operator, vector) in [("Mul", gamma), ("Add", beta)] {
            let name = self.constant_name(vector, "");
            let elements = self.copied_constant(vector)?.data;
            let vector = self.floats(&name, &[elements.len(), 1, 1], elements);
            y = self.add(operator, &[&y, &vector]);
        }
        self.set_channels_first(id, y);
        Ok(())
    }
}
