//! Convolution and its gradients, except depthwise: by implicit GEMM in bf16 on Hopper ([`hopper`]), else by im2col and
//! one matrix product per group, over as many images at a time as fit into the scratch memory.

mod hopper;

pub(crate) use hopper::convolution_variants;
use vit_graph::ops::{Conv2d, Conv2dGradInput, Conv2dGradWeight};

use super::Emitter;
use crate::compile::{self, KernelVariant};
use crate::gemm::Matrix;
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::Request;

/// The most scratch memory for im2col, unless a single image needs more.
const MAX_IM2COL_BYTES: usize = 256 << 20;

/// The extents of a convolution.
#[derive(Clone, Copy)]
struct ConvGeometry {
    conv: Conv2d,
    batch: usize,
    /// Height, width and channels of the image.
    image: [usize; 3],
    /// Height and width of the result.
    output: [usize; 2],
    filters: usize,
    kernel: [usize; 2],
}

impl ConvGeometry {
    /// From the shapes of an image and a result, channels last, and of filters `[filters, channels of a group, height,
    /// width]`.
    fn new(conv: Conv2d, x: &[usize], w: &[usize], y: &[usize]) -> Self {
        ConvGeometry {
            conv,
            batch: x[0],
            image: [x[1], x[2], x[3]],
            output: [y[1], y[2]],
            filters: w[0],
            kernel: [w[2], w[3]],
        }
    }

    fn channels_per_group(&self) -> usize {
        self.image[2] / self.conv.groups
    }

    fn filters_per_group(&self) -> usize {
        self.filters / self.conv.groups
    }

    /// Columns of im2col: the elements of a filter, `[channels of a group, height, width]`.
    fn columns(&self) -> usize {
        self.channels_per_group() * self.kernel[0] * self.kernel[1]
    }

    /// Output pixels of one image: rows of im2col.
    fn pixels(&self) -> usize {
        self.output[0] * self.output[1]
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    /// Images of one im2col: as many as fit [`MAX_IM2COL_BYTES`], at least one.
    fn images(&self, element_bytes: usize) -> usize {
        (MAX_IM2COL_BYTES / (self.pixels() * self.columns() * element_bytes).max(1)).clamp(1, self.batch.max(1))
    }

    /// The first image, the number of images and the group of every matrix product.
    fn products(&self, images: usize) -> Vec<(usize, usize, usize)> {
        let starts = (0..self.batch).step_by(images);
        starts.flat_map(|s| (0..self.conv.groups).map(move |g| (s, images.min(self.batch - s), g))).collect()
    }

    /// `ConvShape` of the kernels, for one group of channels.
    fn shape(&self, group: usize) -> CStruct {
        let Conv2d { stride, padding, dilation, .. } = self.conv;
        CStruct::new()
            .u32s(&self.image)
            .u32s(&self.output)
            .u32s(&self.kernel)
            .u32s(&stride)
            .u32s(&[padding[0][0], padding[1][0]])
            .u32s(&dilation)
            .u32s(&[self.channels_per_group(), group * self.channels_per_group()])
    }
}

/// im2col of `count` images from number `start` on, for one group of channels; `image` is the address of the first
/// image.
fn im2col(
    geometry: &ConvGeometry,
    (image, stored): (u64, Storage),
    (start, count, group): (usize, usize, usize),
    to: u64,
    e: &mut Emitter,
) {
    let operand = e.operand_storage();
    let variant = KernelVariant::new(&compile::CONV).with("X", stored.name()).with("Y", operand.name());
    let elements = count * geometry.pixels() * geometry.columns();
    let from = image + (start * geometry.image_len() * stored.bytes()) as u64;
    let arguments = KernelArguments::new().pointer(from).pointer(to).fields(geometry.shape(group)).u64(elements);
    e.kernel_1d(variant, "im2col", elements, 1, arguments);
}

pub(super) fn forward(op: &Conv2d, e: &mut Emitter) {
    let geometry = ConvGeometry::new(*op, &e.inputs[0].shape, &e.inputs[1].shape, &e.outputs[0].shape);
    if hopper::supports(&geometry, e) {
        return hopper::forward(&geometry, e);
    }
    let (operand, x, y) = (e.operand_storage(), e.stored(0), e.outputs[0].clone());
    let weight = e.input_as(1, operand);
    let bias = op.bias.then(|| e.input_as(2, y.storage));
    let images = geometry.images(operand.bytes());
    let im2col_matrix = e.scratch(images * geometry.pixels() * geometry.columns() * operand.bytes());
    let (per_group, columns) = (geometry.filters_per_group(), geometry.columns());
    for (start, count, group) in geometry.products(images) {
        im2col(&geometry, x, (start, count, group), im2col_matrix, e);
        let filters = weight + (group * per_group * columns * operand.bytes()) as u64;
        let first = start * geometry.pixels() * geometry.filters + group * per_group;
        let mut product = e.product(
            [1, count * geometry.pixels(), per_group, columns],
            Matrix::with_ld(im2col_matrix, columns),
            Matrix { transposed: true, ..Matrix::with_ld(filters, columns) },
            (Matrix::with_ld(y.address + (first * y.storage.bytes()) as u64, geometry.filters), y.storage),
        );
        product.bias = bias.map(|bias| bias + (group * per_group * y.storage.bytes()) as u64);
        e.multiply(product);
    }
}

pub(super) fn grad_input(op: &Conv2dGradInput, e: &mut Emitter) {
    let geometry = ConvGeometry::new(op.conv, &op.input, &e.inputs[1].shape, &e.inputs[0].shape);
    if hopper::supports_grad_input(&geometry, e) {
        return hopper::grad_input(&geometry, e);
    }
    let (operand, dx) = (e.operand_storage(), e.outputs[0].clone());
    let (dy, weight) = (e.input_as(0, operand), e.input_as(1, operand));
    let images = geometry.images(operand.bytes());
    let im2col_grad = e.scratch(images * geometry.pixels() * geometry.columns() * operand.bytes());
    let (per_group, columns) = (geometry.filters_per_group(), geometry.columns());
    for (start, count, group) in geometry.products(images) {
        let filters = weight + (group * per_group * columns * operand.bytes()) as u64;
        let first = start * geometry.pixels() * geometry.filters + group * per_group;
        let product = e.product(
            [1, count * geometry.pixels(), columns, per_group],
            Matrix::with_ld(dy + (first * operand.bytes()) as u64, geometry.filters),
            Matrix::with_ld(filters, columns),
            (Matrix::with_ld(im2col_grad, columns), operand),
        );
        e.multiply(product);
        let variant = KernelVariant::new(&compile::CONV).with("X", operand.name()).with("Y", dx.storage.name());
        let elements = count * geometry.image[0] * geometry.image[1] * geometry.channels_per_group();
        let to = dx.address + (start * geometry.image_len() * dx.storage.bytes()) as u64;
        let arguments =
            KernelArguments::new().pointer(im2col_grad).pointer(to).fields(geometry.shape(group)).u64(elements);
        e.kernel_1d(variant, "col2im", elements, 1, arguments);
    }
}

pub(super) fn grad_weight(op: &Conv2dGradWeight, e: &mut Emitter) {
    let geometry = ConvGeometry::new(op.conv, &e.inputs[1].shape, &op.weight, &e.inputs[0].shape);
    if hopper::supports(&geometry, e) {
        return hopper::grad_weight(&geometry, e);
    }
    let (operand, x, dw) = (e.operand_storage(), e.stored(1), e.outputs[0].clone());
    let dy = e.input_as(0, operand);
    let images = geometry.images(operand.bytes());
    let im2col_matrix = e.scratch(images * geometry.pixels() * geometry.columns() * operand.bytes());
    let (per_group, columns) = (geometry.filters_per_group(), geometry.columns());
    if geometry.batch * geometry.pixels() == 0 {
        e.requests.push(Request::Clear { to: dw.address, bytes: dw.shape.elements() * dw.storage.bytes() });
    }
    for (start, count, group) in geometry.products(images) {
        im2col(&geometry, x, (start, count, group), im2col_matrix, e);
        let first = start * geometry.pixels() * geometry.filters + group * per_group;
        let to = Matrix::with_ld(dw.address + (group * per_group * columns * dw.storage.bytes()) as u64, columns);
        let mut product = e.product(
            [1, per_group, columns, count * geometry.pixels()],
            Matrix { transposed: true, ..Matrix::with_ld(dy + (first * operand.bytes()) as u64, geometry.filters) },
            Matrix::with_ld(im2col_matrix, columns),
            (to, dw.storage),
        );
        // Later images are added to the sum over earlier ones.
        product.c = (start > 0).then_some(to);
        e.multiply(product);
    }
}
