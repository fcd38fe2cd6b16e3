//! A convolution with its epilogue.

use super::{Activation, Conv2d, Operation, arity, expect_rank, expect_shape};
use crate::reference::Array;
use crate::{Shape, Type};

/// Where a residual is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ResidualAt {
    BeforeActivation,
    AfterActivation,
}

/// [`Conv2d`] with a residual and an activation. The weight has the layout of channels-last images:
/// `[filters, kh · kw · channels]`, or `[kh · kw, channels]` for depthwise convolutions.
///
/// Inputs: `x [b, h, w, c]`, the weight, then `bias [filters]` and `residual [b, h', w', filters]` where present. Made
/// by [`crate::rewrite::fuse_conv`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FusedConv2d {
    /// The convolution, with one group, or depthwise with one filter per channel.
    pub conv: Conv2d,
    /// Height and width of the filters.
    pub kernel: [usize; 2],
    /// The activation of the sum.
    pub activation: Option<Activation>,
    /// Where the residual is added, if there is one.
    pub residual: Option<ResidualAt>,
}

impl FusedConv2d {
    /// Whether the convolution is depthwise.
    pub fn depthwise(&self) -> bool {
        self.conv.groups > 1
    }

    /// The positions of bias and residual among the inputs.
    pub fn optional_inputs(&self) -> [Option<usize>; 2] {
        let bias = self.conv.bias.then_some(2);
        [bias, self.residual.map(|_| 2 + usize::from(self.conv.bias))]
    }

    /// The shape of the weight as [`Conv2d`] has it.
    fn published(&self, x: &Type, weight: &Type) -> Result<Shape, String> {
        expect_rank("the image", x, 4)?;
        expect_rank("the weight", weight, 2)?;
        let ([kh, kw], channels) = (self.kernel, x.shape[3]);
        let taps = kh.checked_mul(kw).ok_or("the filters are too large")?;
        let (filters, inputs) = if self.depthwise() {
            expect_shape("the weight", weight, &[taps, channels])?;
            (channels, 1)
        } else {
            let columns = taps.checked_mul(channels).ok_or("the filters are too large")?;
            expect_shape("the weight", weight, &[weight.shape[0], columns])?;
            (weight.shape[0], channels)
        };
        Ok(Shape::from([filters, inputs, kh, kw]))
    }
}

impl Operation for FusedConv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn label(&self) -> String {
        let mut label = self.name().to_string();
        label.extend(self.depthwise().then_some(" depthwise"));
        label.extend(self.activation.map(|a| format!("+{}", a.name())));
        label.extend(self.residual.map(|_| "+residual"));
        label
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        let [bias, residual] = self.optional_inputs();
        arity(inputs, 2 + [bias, residual].iter().flatten().count())?;
        let weight = Type::f32(self.published(&inputs[0], &inputs[1])?);
        let plain: Vec<Type> = [inputs[0].clone(), weight].into_iter().chain(bias.map(|i| inputs[i].clone())).collect();
        let outputs = self.conv.infer(&plain)?;
        if let Some(i) = residual {
            expect_shape("the residual", &inputs[i], &outputs[0].shape)?;
        }
        Ok(outputs)
    }

    fn flops(&self, inputs: &[Type], outputs: &[Type]) -> u64 {
        let terms = if self.depthwise() { inputs[1].shape[0] } else { inputs[1].shape[1] };
        2 * outputs[0].shape.elements() as u64 * terms as u64
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [kh, kw] = self.kernel;
        let (from, channels) = (inputs[1].data(), inputs[0].shape()[3]);
        let types: Vec<Type> = inputs.iter().map(|a| Type::f32(a.shape())).collect();
        let shape = self.published(&types[0], &types[1]).expect("`infer` has checked the weight");
        let weight = Array::from_fn(&shape, |i| {
            let (o, c, tap) = (i / (shape[1] * kh * kw), i / (kh * kw) % shape[1], i % (kh * kw));
            if self.depthwise() { from[tap * channels + o] } else { from[(o * kh * kw + tap) * channels + c] }
        });
        let [bias, residual] = self.optional_inputs();
        let plain: Vec<&Array> = [inputs[0], &weight].into_iter().chain(bias.map(|i| inputs[i])).collect();
        let mut y = self.conv.evaluate(&plain, outputs);
        for (i, v) in y[0].data_mut().iter_mut().enumerate() {
            let addend = residual.map_or(0.0, |r| inputs[r].data()[i]);
            let act = |v: f64| self.activation.map_or(v, |a| a.apply(v));
            *v = match self.residual {
                Some(ResidualAt::BeforeActivation) => act(*v + addend),
                Some(ResidualAt::AfterActivation) => act(*v) + addend,
                None => act(*v),
            };
        }
        y
    }
}
