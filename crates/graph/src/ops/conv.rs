//! Two-dimensional convolution, strided, dilated, grouped, with any padding.

use super::{InputPrecision, Operation, Reduce, arity, expect_rank, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// Convolution of a channels-last image `x [b, h, w, c]` with `weight [o, c / groups, kh, kw]`, the layout in which
/// weights are published, and an optional `bias [o]`, to `[b, h', w', o]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// The stride of rows and columns.
    pub stride: [usize; 2],
    /// The zero padding, `[[top, bottom], [left, right]]`; both sides may differ, as in TensorFlow's SAME.
    pub padding: [[usize; 2]; 2],
    /// The dilation of rows and columns.
    pub dilation: [usize; 2],
    /// The number of channel groups; equal to the channels for depthwise convolution.
    pub groups: usize,
    /// Whether there is a bias input.
    pub bias: bool,
}

impl Conv2d {
    /// A patch embedding: kernel = stride, without padding, dilation and groups.
    pub fn patches(patch: [usize; 2], bias: bool) -> Self {
        Conv2d { stride: patch, padding: [[0; 2]; 2], dilation: [1; 2], groups: 1, bias }
    }

    fn output_extent(&self, axis: usize, input: usize, kernel: usize) -> Option<usize> {
        let reach = kernel.checked_sub(1)?.checked_mul(self.dilation[axis])?.checked_add(1)?;
        let padded = input.checked_add(self.padding[axis][0])?.checked_add(self.padding[axis][1])?;
        padded.checked_sub(reach)?.checked_div(self.stride[axis])?.checked_add(1)
    }

    fn output_shape(&self, x: &Type, weight: &Type) -> Result<Shape, String> {
        expect_rank("the image", x, 4)?;
        expect_rank("the weight", weight, 4)?;
        let (channels, w) = (x.shape[3], &weight.shape);
        if self.groups == 0 || !channels.is_multiple_of(self.groups) || w[1] != channels / self.groups {
            return Err(format!("{channels} channels in {} groups do not fit filters {w}", self.groups));
        }
        if !w[0].is_multiple_of(self.groups) {
            return Err(format!("{} filters cannot be divided into {} groups", w[0], self.groups));
        }
        let extent = |axis: usize| {
            self.output_extent(axis, x.shape[1 + axis], w[2 + axis]).ok_or_else(|| {
                format!("filters of {}x{} do not fit into {}x{} pixels", w[2], w[3], x.shape[1], x.shape[2])
            })
        };
        Ok(Shape::from([x.shape[0], extent(0)?, extent(1)?, w[0]]))
    }

    /// The input row or column under a filter tap; `None` for padding.
    fn source(&self, axis: usize, output: usize, tap: usize, extent: usize) -> Option<usize> {
        (output * self.stride[axis] + tap * self.dilation[axis])
            .checked_sub(self.padding[axis][0])
            .filter(|&at| at < extent)
    }

    /// Calls `visit(output index, input index, weight index)` for every multiply-add, in the order channel, row,
    /// column, so that a patch embedding has the same bits as the matrix product that [`crate::rewrite::patchify`]
    /// makes of it.
    fn each(&self, x: &[usize], w: &[usize], y: &[usize], mut visit: impl FnMut(usize, usize, usize)) {
        let (filters_per_group, channels) = (w[0] / self.groups, w[1]);
        for out in 0..y.iter().product() {
            let (b, oy, ox, o) =
                (out / (y[1] * y[2] * y[3]), out / (y[2] * y[3]) % y[1], out / y[3] % y[2], out % y[3]);
            for (c, ky, kx) in
                (0..channels).flat_map(|c| (0..w[2]).flat_map(move |ky| (0..w[3]).map(move |kx| (c, ky, kx))))
            {
                let (Some(iy), Some(ix)) = (self.source(0, oy, ky, x[1]), self.source(1, ox, kx, x[2])) else {
                    continue;
                };
                let channel = o / filters_per_group * channels + c;
                visit(
                    out,
                    ((b * x[1] + iy) * x[2] + ix) * x[3] + channel,
                    ((o * channels + c) * w[2] + ky) * w[3] + kx,
                );
            }
        }
    }
}

fn product_flops(y: &Shape, w: &Shape) -> u64 {
    2 * y.elements() as u64 * w[1..].iter().product::<usize>() as u64
}

impl Operation for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2 + usize::from(self.bias))?;
        let output = self.output_shape(&inputs[0], &inputs[1])?;
        if self.bias {
            expect_shape("the bias", &inputs[2], &[output.last()])?;
        }
        Ok(vec![Type::new(inputs[0].dtype, output)])
    }

    fn flops(&self, inputs: &[Type], outputs: &[Type]) -> u64 {
        product_flops(&outputs[0].shape, &inputs[1].shape)
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (x, weight, dy) = (b.input(0), b.input(1), b.dy()?);
        if b.needs_gradient(0) {
            let op = Conv2dGradInput { conv: *self, input: b.graph.shape(x).clone() };
            let dx = b.graph.value(op, &[dy, weight])?;
            b.set(0, dx)?;
        }
        if b.needs_gradient(1) {
            let op = Conv2dGradWeight { conv: *self, weight: b.graph.shape(weight).clone() };
            let dw = b.graph.value(op, &[dy, x])?;
            b.set(1, dw)?;
        }
        if self.bias && b.needs_gradient(2) {
            let db = b.graph.value(Reduce::sum([0, 1, 2]), &[dy])?;
            b.set(2, db)?;
        }
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, w) = (inputs[0], inputs[1]);
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        let data = y.data_mut();
        self.each(x.shape(), w.shape(), &outputs[0].shape, |o, i, k| data[o] += x.data()[i] * w.data()[k]);
        if self.bias {
            let bias = inputs[2].data();
            data.iter_mut().enumerate().for_each(|(i, v)| *v += bias[i % bias.len()]);
        }
        vec![y]
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        if input < 2 { InputPrecision::Operand } else { InputPrecision::Addend }
    }
}

/// The gradient of a convolution's image: from `dy` and the weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv2dGradInput {
    /// The convolution.
    pub conv: Conv2d,
    /// The shape of its image.
    pub input: Shape,
}

impl Operation for Conv2dGradInput {
    fn name(&self) -> &'static str {
        "conv2d_grad_input"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        let x = Type::new(inputs[0].dtype, self.input.clone());
        expect_shape("dy", &inputs[0], &self.conv.output_shape(&x, &inputs[1])?)?;
        Ok(vec![x])
    }

    fn flops(&self, inputs: &[Type], _: &[Type]) -> u64 {
        product_flops(&inputs[0].shape, &inputs[1].shape)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, w) = (inputs[0], inputs[1]);
        let mut dx = Array::filled(outputs[0].shape.clone(), 0.0);
        let data = dx.data_mut();
        self.conv.each(&self.input, w.shape(), dy.shape(), |o, i, k| data[i] += dy.data()[o] * w.data()[k]);
        vec![dx]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::Operand
    }
}

/// The gradient of a convolution's weight: from `dy` and the image.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv2dGradWeight {
    /// The convolution.
    pub conv: Conv2d,
    /// The shape of its weight.
    pub weight: Shape,
}

impl Operation for Conv2dGradWeight {
    fn name(&self) -> &'static str {
        "conv2d_grad_weight"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        let weight = Type::f32(self.weight.clone());
        expect_shape("dy", &inputs[0], &self.conv.output_shape(&inputs[1], &weight)?)?;
        Ok(vec![weight])
    }

    fn flops(&self, inputs: &[Type], _: &[Type]) -> u64 {
        product_flops(&inputs[0].shape, &self.weight)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, x) = (inputs[0], inputs[1]);
        let mut dw = Array::filled(outputs[0].shape.clone(), 0.0);
        let data = dw.data_mut();
        self.conv.each(x.shape(), &self.weight, dy.shape(), |o, i, k| data[k] += dy.data()[o] * x.data()[i]);
        vec![dw]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::Operand
    }
}
