//! Convolution of channels-last images and the gradients of depthwise ones. Shapes alone decide the order of summation.

mod depthwise;
mod depthwise_grad;
mod implicit_gemm;

pub(crate) use depthwise::depthwise;
pub(crate) use depthwise_grad::{depthwise_grad_input, depthwise_grad_weight, depthwise_grad_weight_workspace};
pub(crate) use implicit_gemm::ImplicitGemm;

use vit_graph::ops::{Conv2d, ResidualAt};

use crate::activation::Activation;

/// The shapes of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvGeometry {
    pub batch: usize,
    /// Height, width and channels of the image.
    pub image: [usize; 3],
    /// Height and width of the result.
    pub output: [usize; 2],
    pub filters: usize,
    /// Height and width of a filter.
    pub kernel: [usize; 2],
    /// Vertical and horizontal.
    pub stride: [usize; 2],
    /// `[[top, bottom], [left, right]]`.
    pub padding: [[usize; 2]; 2],
    /// Vertical and horizontal.
    pub dilation: [usize; 2],
}

impl ConvGeometry {
    /// For an image of shape `x` and a result of shape `y`.
    pub fn new(conv: &Conv2d, x: &[usize], y: &[usize], kernel: [usize; 2]) -> ConvGeometry {
        ConvGeometry {
            batch: x[0],
            image: [x[1], x[2], x[3]],
            output: [y[1], y[2]],
            filters: y[3],
            kernel,
            stride: conv.stride,
            padding: conv.padding,
            dilation: conv.dilation,
        }
    }

    /// Terms of each sum of a convolution with one group.
    pub fn terms(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.image[2]
    }

    /// Pixels of the result, over all images.
    fn pixels(&self) -> usize {
        self.batch * self.output[0] * self.output[1]
    }

    /// The row or column of the image under a filter tap, unless it is padding.
    pub fn input_at(&self, axis: usize, output: usize, tap: usize) -> Option<usize> {
        (output * self.stride[axis] + tap * self.dilation[axis])
            .checked_sub(self.padding[axis][0])
            .filter(|&input| input < self.image[axis])
    }

    /// The row or column of the result that reads this one of the image with this filter tap, if there is one.
    pub fn output_at(&self, axis: usize, input: usize, tap: usize) -> Option<usize> {
        let offset = (input + self.padding[axis][0]).checked_sub(tap * self.dilation[axis])?;
        let output = offset / self.stride[axis];
        (offset.is_multiple_of(self.stride[axis]) && output < self.output[axis]).then_some(output)
    }
}

/// The epilogue of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvEpilogue<'a> {
    /// One element for each channel of the result.
    pub bias: Option<&'a [f32]>,
    pub activation: Option<Activation>,
    /// Laid out as the result.
    pub residual: Option<(ResidualAt, &'a [f32])>,
}
