//! Convolutions with several groups, unless depthwise (what `fuse_conv` and `patchify` leave), and the gradients of all
//! convolutions: im2col and one matrix product for each image and group, except that depthwise gradients have kernels
//! of their own. Images are channels-last.

use vit_graph::Type;
use vit_graph::ops::{Conv2d, Conv2dGradInput, Conv2dGradWeight};

use super::Lowered;
use crate::conv::{ConvGeometry, depthwise_grad_input, depthwise_grad_weight, depthwise_grad_weight_workspace};
use crate::device::Processor;
use crate::gemm::{self, ALayout, BLayout, Matmul};
use crate::thread_pool::ThreadPool;

/// A convolution by im2col. Patches and, in the workspace, filters have the order `[kernel row, kernel column,
/// channel]`.
#[derive(Clone, Copy)]
struct Im2col {
    geometry: ConvGeometry,
    groups: usize,
}

impl Im2col {
    fn new(conv: Conv2d, x: &[usize], w: &[usize], y: &[usize]) -> Self {
        let geometry = ConvGeometry::new(&conv, x, y, [w[2], w[3]]);
        Im2col { geometry, groups: conv.groups }
    }

    fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.geometry.filters && self.group_channels() == 1
    }

    fn group_channels(&self) -> usize {
        self.geometry.image[2] / self.groups
    }

    fn group_filters(&self) -> usize {
        self.geometry.filters / self.groups
    }

    /// The number of positions of a filter.
    fn taps(&self) -> usize {
        self.geometry.kernel[0] * self.geometry.kernel[1]
    }

    /// Rows and columns of the im2col matrix of one image and group: pixels of the result by elements of a patch.
    fn matrix(&self) -> [usize; 2] {
        [self.geometry.output[0] * self.geometry.output[1], self.group_channels() * self.taps()]
    }

    fn image_len(&self) -> usize {
        self.geometry.image.iter().product()
    }

    fn output_len(&self) -> usize {
        self.geometry.output[0] * self.geometry.output[1] * self.geometry.filters
    }

    /// Writes the patches of one image and group.
    fn im2col(&self, pool: &ThreadPool, image: &[f32], group: usize, patches: &mut [f32]) {
        let g = &self.geometry;
        let ([_, width, all_channels], channels, [kh, kw]) = (g.image, self.group_channels(), g.kernel);
        let [_, patch_len] = self.matrix();
        pool.run_chunks(patches, g.output[1] * patch_len, &|oy, row| {
            for (ox, patch) in row.chunks_exact_mut(patch_len).enumerate() {
                for ky in 0..kh {
                    for kx in 0..kw {
                        let to = &mut patch[(ky * kw + kx) * channels..][..channels];
                        match g.input_at(0, oy, ky).zip(g.input_at(1, ox, kx)) {
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

    /// Adds patches to the pixels they were copied from, each pixel in a fixed order.
    fn col2im(&self, pool: &ThreadPool, patches: &[f32], group: usize, image: &mut [f32]) {
        let g = &self.geometry;
        let ([_, width, all_channels], channels, [kh, kw]) = (g.image, self.group_channels(), g.kernel);
        let [_, patch_len] = self.matrix();
        pool.run_chunks(image, width * all_channels, &|y, row| {
            for x in 0..width {
                let pixel = &mut row[x * all_channels + group * channels..][..channels];
                for ky in 0..kh {
                    let Some(oy) = g.output_at(0, y, ky) else { continue };
                    for kx in 0..kw {
                        let Some(ox) = g.output_at(1, x, kx) else { continue };
                        let from = (oy * g.output[1] + ox) * patch_len + (ky * kw + kx) * channels;
                        pixel.iter_mut().zip(&patches[from..][..channels]).for_each(|(v, patch)| *v += patch);
                    }
                }
            }
        });
    }

    /// Elements of workspace with a product of `m`, `n` and `k`: patches, reordered filters, and the product's own.
    fn workspace(&self, processor: &Processor, m: usize, n: usize, k: usize) -> usize {
        let [rows, patch_len] = self.matrix();
        let product = gemm::matmul_workspace(processor.isa, processor.pool.threads(), 1, m, n, k);
        rows * patch_len + self.geometry.filters * patch_len + product
    }

    /// Divides the workspace into patches, filters and the product's own workspace.
    fn split<'a>(&self, workspace: &'a mut [f32]) -> (&'a mut [f32], &'a mut [f32], &'a mut [f32]) {
        let [rows, patch_len] = self.matrix();
        let (patches, rest) = workspace.split_at_mut(rows * patch_len);
        let (filters, product) = rest.split_at_mut(self.geometry.filters * patch_len);
        (patches, filters, product)
    }

    /// The graph's filters `[.., channels, taps]` as `[.., taps, channels]`.
    fn channels_last(&self, published: &[f32], filters: &mut [f32]) {
        let (channels, taps) = (self.group_channels(), self.taps());
        for (from, to) in published.chunks_exact(channels * taps).zip(filters.chunks_exact_mut(channels * taps)) {
            for (tap, to) in to.chunks_exact_mut(channels).enumerate() {
                to.iter_mut().enumerate().for_each(|(c, to)| *to = from[c * taps + tap]);
            }
        }
    }

    /// Filters `[.., taps, channels]` as the graph's `[.., channels, taps]`.
    fn channels_first(&self, filters: &[f32], published: &mut [f32]) {
        let (channels, taps) = (self.group_channels(), self.taps());
        for (from, to) in filters.chunks_exact(channels * taps).zip(published.chunks_exact_mut(channels * taps)) {
            for (c, to) in to.chunks_exact_mut(taps).enumerate() {
                to.iter_mut().enumerate().for_each(|(tap, to)| *to = from[tap * channels + c]);
            }
        }
    }

    /// Every image with every group.
    fn images_and_groups(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let groups = self.groups;
        (0..self.geometry.batch).flat_map(move |b| (0..groups).map(move |g| (b, g)))
    }
}

pub(super) fn forward(processor: &Processor, op: &Conv2d, inputs: &[Type], outputs: &[Type]) -> Lowered {
    let conv = Im2col::new(*op, &inputs[0].shape, &inputs[1].shape, &outputs[0].shape);
    let ([rows, patch_len], group_filters) = (conv.matrix(), conv.group_filters());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let (patches, filters, scratch) = conv.split(workspace);
        conv.channels_last(inputs[1], filters);
        for (b, g) in conv.images_and_groups() {
            conv.im2col(&p.pool, &inputs[0][b * conv.image_len()..][..conv.image_len()], g, patches);
            let weight = &filters[g * group_filters * patch_len..][..group_filters * patch_len];
            let y = &mut outputs[0][b * conv.output_len()..][..conv.output_len()];
            let mut product = Matmul::single(
                [rows, group_filters, patch_len],
                (patches, patch_len, ALayout::RowMajor),
                (weight, patch_len, BLayout::RowsAreN),
                (&mut y[g * group_filters..], conv.geometry.filters),
            );
            product.epilogue.bias = inputs.get(2).map(|bias| &bias[g * group_filters..][..group_filters]);
            gemm::matmul(&p.pool, p.isa, product, scratch);
        }
    })
    .with_workspace(conv.workspace(processor, rows, group_filters, patch_len))
}

pub(super) fn grad_input(processor: &Processor, op: &Conv2dGradInput, inputs: &[Type]) -> Lowered {
    let conv = Im2col::new(op.conv, &op.input, &inputs[1].shape, &inputs[0].shape);
    if conv.is_depthwise() {
        return Lowered::new(move |p, inputs, outputs, workspace| {
            depthwise_grad_input(&p.pool, p.isa, &conv.geometry, inputs[0], inputs[1], outputs[0], workspace);
        })
        .with_workspace(conv.geometry.filters * conv.taps());
    }
    let ([rows, patch_len], group_filters) = (conv.matrix(), conv.group_filters());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let (patches, filters, scratch) = conv.split(workspace);
        conv.channels_last(inputs[1], filters);
        outputs[0].fill(0.0);
        for (b, g) in conv.images_and_groups() {
            let dy = &inputs[0][b * conv.output_len()..][..conv.output_len()];
            let weight = &filters[g * group_filters * patch_len..][..group_filters * patch_len];
            let product = Matmul::single(
                [rows, patch_len, group_filters],
                (&dy[g * group_filters..], conv.geometry.filters, ALayout::RowMajor),
                (weight, patch_len, BLayout::RowsAreK),
                (patches, patch_len),
            );
            gemm::matmul(&p.pool, p.isa, product, scratch);
            conv.col2im(&p.pool, patches, g, &mut outputs[0][b * conv.image_len()..][..conv.image_len()]);
        }
    })
    .with_workspace(conv.workspace(processor, rows, patch_len, group_filters))
}

pub(super) fn grad_weight(processor: &Processor, op: &Conv2dGradWeight, inputs: &[Type]) -> Lowered {
    let conv = Im2col::new(op.conv, &inputs[1].shape, &op.weight, &inputs[0].shape);
    if conv.is_depthwise() {
        return Lowered::new(move |p, inputs, outputs, workspace| {
            depthwise_grad_weight(&p.pool, p.isa, &conv.geometry, inputs[0], inputs[1], outputs[0], workspace);
        })
        .with_workspace(depthwise_grad_weight_workspace(&conv.geometry));
    }
    let ([rows, patch_len], group_filters) = (conv.matrix(), conv.group_filters());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let (patches, filters, scratch) = conv.split(workspace);
        for (b, g) in conv.images_and_groups() {
            let dy = &inputs[0][b * conv.output_len()..][..conv.output_len()];
            conv.im2col(&p.pool, &inputs[1][b * conv.image_len()..][..conv.image_len()], g, patches);
            let dw = &mut filters[g * group_filters * patch_len..][..group_filters * patch_len];
            let mut product = Matmul::single(
                [group_filters, patch_len, rows],
                (&dy[g * group_filters..], conv.geometry.filters, ALayout::Transposed),
                (patches, patch_len, BLayout::RowsAreK),
                (dw, patch_len),
            );
            product.accumulate = b > 0;
            gemm::matmul(&p.pool, p.isa, product, scratch);
        }
        conv.channels_first(filters, outputs[0]);
    })
    .with_workspace(conv.workspace(processor, group_filters, patch_len, rows))
}
