//! Convolution in groups, and the gradients of all convolutions: image patches laid out as rows, tap by tap, then one
//! matrix product per image and group. Filters change to that order and back on the way.

use vit_graph::Type;
use vit_graph::ops::{Conv2d, Conv2dGradInput, Conv2dGradWeight};

use super::Lowered;
use crate::conv::{Geometry, depthwise_grad_input, depthwise_grad_weight, depthwise_grad_weight_workspace};
use crate::device::Processor;
use crate::gemm::{self, ALayout, BLayout, Epilogue, Matmul};
use crate::pool::Pool;

/// Everything about one convolution that its shapes tell.
#[derive(Clone, Copy)]
struct Plan {
    conv: Conv2d,
    batch: usize,
    /// Height, width and channels of the image.
    image: [usize; 3],
    /// Height and width of the result.
    output: [usize; 2],
    filters: usize,
    kernel: [usize; 2],
}

impl Plan {
    fn new(conv: Conv2d, x: &[usize], w: &[usize], y: &[usize]) -> Self {
        Plan { conv, batch: x[0], image: [x[1], x[2], x[3]], output: [y[1], y[2]], filters: w[0], kernel: [w[2], w[3]] }
    }

    fn is_depthwise(&self) -> bool {
        self.conv.groups > 1 && self.conv.groups == self.filters && self.channels() == 1
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            batch: self.batch,
            image: self.image,
            output: self.output,
            filters: self.filters,
            kernel: self.kernel,
            stride: self.conv.stride,
            padding: self.conv.padding,
            dilation: self.conv.dilation,
        }
    }

    fn channels(&self) -> usize {
        self.image[2] / self.conv.groups
    }

    fn filters_per_group(&self) -> usize {
        self.filters / self.conv.groups
    }

    /// Rows and columns of the matrix of patches of one image and group.
    fn columns(&self) -> [usize; 2] {
        [self.output[0] * self.output[1], self.channels() * self.kernel[0] * self.kernel[1]]
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    fn output_len(&self) -> usize {
        self.output[0] * self.output[1] * self.filters
    }

    fn source(&self, axis: usize, output: usize, tap: usize) -> Option<usize> {
        (output * self.conv.stride[axis] + tap * self.conv.dilation[axis])
            .checked_sub(self.conv.padding[axis][0])
            .filter(|&at| at < self.image[axis])
    }

    /// Writes the patches of one image and group, one per row, in the order row, column, channel.
    fn gather(&self, pool: &Pool, image: &[f32], group: usize, rows: &mut [f32]) {
        let ([_, width, all_channels], channels, [kh, kw]) = (self.image, self.channels(), self.kernel);
        let [_, row_len] = self.columns();
        pool.run_chunks(rows, self.output[1] * row_len, &|oy, line| {
            for (ox, row) in line.chunks_exact_mut(row_len).enumerate() {
                for ky in 0..kh {
                    for kx in 0..kw {
                        let to = &mut row[(ky * kw + kx) * channels..][..channels];
                        match self.source(0, oy, ky).zip(self.source(1, ox, kx)) {
                            Some((y, x)) => {
                                let from = (y * width + x) * all_channels + group * channels;
                                to.copy_from_slice(&image[from..][..channels]);
                            }
                            None => to.fill(0.0),
                        }
                    }
                }
            }
        });
    }

    /// Adds rows of patches back onto the pixels they came from. Every pixel collects its own, in a fixed order.
    fn scatter(&self, pool: &Pool, rows: &[f32], group: usize, image: &mut [f32]) {
        let ([_, width, all_channels], channels, [kh, kw]) = (self.image, self.channels(), self.kernel);
        let [_, row_len] = self.columns();
        let target = |axis: usize, at: usize, tap: usize| {
            let reach = (at + self.conv.padding[axis][0]).checked_sub(tap * self.conv.dilation[axis])?;
            let output = reach / self.conv.stride[axis];
            (reach.is_multiple_of(self.conv.stride[axis]) && output < self.output[axis]).then_some(output)
        };
        pool.run_chunks(image, width * all_channels, &|y, line| {
            for x in 0..width {
                let pixel = &mut line[x * all_channels + group * channels..][..channels];
                for ky in 0..kh {
                    let Some(oy) = target(0, y, ky) else { continue };
                    for kx in 0..kw {
                        let Some(ox) = target(1, x, kx) else { continue };
                        let row = &rows[(oy * self.output[1] + ox) * row_len + (ky * kw + kx) * channels..][..channels];
                        pixel.iter_mut().zip(row).for_each(|(v, row)| *v += row);
                    }
                }
            }
        });
    }

    /// Patches, filters in their order, and what the product wants.
    fn workspace(&self, processor: &Processor, m: usize, n: usize, k: usize) -> usize {
        let [rows, row_len] = self.columns();
        let product = gemm::matmul_workspace(processor.isa, processor.pool.threads(), 1, m, n, k);
        rows * row_len + self.filters * row_len + product
    }

    fn split<'a>(&self, workspace: &'a mut [f32]) -> (&'a mut [f32], &'a mut [f32], &'a mut [f32]) {
        let [rows, row_len] = self.columns();
        let (patches, rest) = workspace.split_at_mut(rows * row_len);
        let (filters, product) = rest.split_at_mut(self.filters * row_len);
        (patches, filters, product)
    }

    /// Filters `[.., channels, taps]` as `[.., taps, channels]`.
    fn by_tap(&self, published: &[f32], filters: &mut [f32]) {
        let (channels, taps) = (self.channels(), self.kernel[0] * self.kernel[1]);
        for (from, to) in published.chunks_exact(channels * taps).zip(filters.chunks_exact_mut(channels * taps)) {
            for (tap, to) in to.chunks_exact_mut(channels).enumerate() {
                to.iter_mut().enumerate().for_each(|(c, to)| *to = from[c * taps + tap]);
            }
        }
    }

    /// The other way round.
    fn by_channel(&self, filters: &[f32], published: &mut [f32]) {
        let (channels, taps) = (self.channels(), self.kernel[0] * self.kernel[1]);
        for (from, to) in filters.chunks_exact(channels * taps).zip(published.chunks_exact_mut(channels * taps)) {
            for (c, to) in to.chunks_exact_mut(taps).enumerate() {
                to.iter_mut().enumerate().for_each(|(tap, to)| *to = from[tap * channels + c]);
            }
        }
    }

    /// Every image with every group of channels.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let groups = self.conv.groups;
        (0..self.batch).flat_map(move |b| (0..groups).map(move |g| (b, g)))
    }
}

/// One matrix product with nothing after it.
fn product<'a>(
    [m, n, k]: [usize; 3],
    (a, lda, a_layout): (&'a [f32], usize, ALayout),
    (b, ldb, b_layout): (&'a [f32], usize, BLayout),
    (c, ldc): (&'a mut [f32], usize),
) -> Matmul<'a> {
    Matmul {
        batch: 1,
        m,
        n,
        k,
        a,
        lda,
        a_layout,
        a_batch_stride: 0,
        b,
        ldb,
        b_layout,
        b_batch_stride: 0,
        c,
        ldc,
        c_batch_stride: 0,
        alpha: 1.0,
        accumulate: false,
        epilogue: Epilogue::default(),
        slope: None,
    }
}

pub(super) fn forward(processor: &Processor, op: &Conv2d, inputs: &[Type], outputs: &[Type]) -> Lowered {
    let plan = Plan::new(*op, &inputs[0].shape, &inputs[1].shape, &outputs[0].shape);
    let ([rows, row_len], per_group) = (plan.columns(), plan.filters_per_group());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let (patches, filters, scratch) = plan.split(workspace);
        plan.by_tap(inputs[1], filters);
        for (b, g) in plan.pairs() {
            plan.gather(&p.pool, &inputs[0][b * plan.image_len()..][..plan.image_len()], g, patches);
            let weight = &filters[g * per_group * row_len..][..per_group * row_len];
            let y = &mut outputs[0][b * plan.output_len()..][..plan.output_len()];
            let mut job = product(
                [rows, per_group, row_len],
                (patches, row_len, ALayout::RowMajor),
                (weight, row_len, BLayout::RowsAreN),
                (&mut y[g * per_group..], plan.filters),
            );
            job.epilogue.bias = inputs.get(2).map(|bias| &bias[g * per_group..][..per_group]);
            gemm::matmul(&p.pool, p.isa, job, scratch);
        }
    })
    .with_workspace(plan.workspace(processor, rows, per_group, row_len))
}

pub(super) fn grad_input(processor: &Processor, op: &Conv2dGradInput, inputs: &[Type]) -> Lowered {
    let plan = Plan::new(op.conv, &op.input, &inputs[1].shape, &inputs[0].shape);
    if plan.is_depthwise() {
        let geometry = plan.geometry();
        return Lowered::new(move |p, inputs, outputs, workspace| {
            depthwise_grad_input(&p.pool, p.isa, &geometry, inputs[0], inputs[1], outputs[0], workspace);
        })
        .with_workspace(plan.filters * plan.kernel[0] * plan.kernel[1]);
    }
    let ([rows, row_len], per_group) = (plan.columns(), plan.filters_per_group());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let (patches, filters, scratch) = plan.split(workspace);
        plan.by_tap(inputs[1], filters);
        outputs[0].fill(0.0);
        for (b, g) in plan.pairs() {
            let dy = &inputs[0][b * plan.output_len()..][..plan.output_len()];
            let weight = &filters[g * per_group * row_len..][..per_group * row_len];
            let job = product(
                [rows, row_len, per_group],
                (&dy[g * per_group..], plan.filters, ALayout::RowMajor),
                (weight, row_len, BLayout::RowsAreK),
                (patches, row_len),
            );
            gemm::matmul(&p.pool, p.isa, job, scratch);
            plan.scatter(&p.pool, patches, g, &mut outputs[0][b * plan.image_len()..][..plan.image_len()]);
        }
    })
    .with_workspace(plan.workspace(processor, rows, row_len, per_group))
}

pub(super) fn grad_weight(processor: &Processor, op: &Conv2dGradWeight, inputs: &[Type]) -> Lowered {
    let plan = Plan::new(op.conv, &inputs[1].shape, &op.weight, &inputs[0].shape);
    if plan.is_depthwise() {
        let geometry = plan.geometry();
        return Lowered::new(move |p, inputs, outputs, workspace| {
            depthwise_grad_weight(&p.pool, p.isa, &geometry, inputs[0], inputs[1], outputs[0], workspace);
        })
        .with_workspace(depthwise_grad_weight_workspace(&geometry));
    }
    let ([rows, row_len], per_group) = (plan.columns(), plan.filters_per_group());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let (patches, filters, scratch) = plan.split(workspace);
        for (b, g) in plan.pairs() {
            let dy = &inputs[0][b * plan.output_len()..][..plan.output_len()];
            plan.gather(&p.pool, &inputs[1][b * plan.image_len()..][..plan.image_len()], g, patches);
            let dw = &mut filters[g * per_group * row_len..][..per_group * row_len];
            let mut job = product(
                [per_group, row_len, rows],
                (&dy[g * per_group..], plan.filters, ALayout::Transposed),
                (patches, row_len, BLayout::RowsAreK),
                (dw, row_len),
            );
            job.accumulate = b > 0;
            gemm::matmul(&p.pool, p.isa, job, scratch);
        }
        plan.by_channel(filters, outputs[0]);
    })
    .with_workspace(plan.workspace(processor, per_group, row_len, rows))
}
