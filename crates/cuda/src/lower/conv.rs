//! Convolution and its gradients. In bf16 on Hopper they are [`hopper`]'s; the rest is done everywhere: image patches
//! laid out as rows, then one matrix product per group over as many images as fit into the scratch memory.

mod hopper;

pub(crate) use hopper::convolution_variants;
use vit_graph::ops::{Conv2d, Conv2dGradInput, Conv2dGradWeight};

use super::Emitter;
use crate::compile::{self, KernelVariant};
use crate::gemm::Matrix;
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::Request;

/// The most scratch memory for rows of patches.
const MOST_ROWS_BYTES: usize = 256 << 20;

/// Everything about one convolution that its shapes tell.
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

    fn channels(&self) -> usize {
        self.image[2] / self.conv.groups
    }

    fn filters_per_group(&self) -> usize {
        self.filters / self.conv.groups
    }

    /// Elements of a row of patches.
    fn row(&self) -> usize {
        self.channels() * self.kernel[0] * self.kernel[1]
    }

    /// Rows of one image.
    fn rows(&self) -> usize {
        self.output[0] * self.output[1]
    }

    fn image_len(&self) -> usize {
        self.image.iter().product()
    }

    /// How many images are worked on at once.
    fn images(&self, bytes: usize) -> usize {
        (MOST_ROWS_BYTES / (self.rows() * self.row() * bytes).max(1)).clamp(1, self.batch.max(1))
    }

    /// First image and number of images of every part, with every group.
    fn parts(&self, images: usize) -> Vec<(usize, usize, usize)> {
        let starts = (0..self.batch).step_by(images);
        starts.flat_map(|s| (0..self.conv.groups).map(move |g| (s, images.min(self.batch - s), g))).collect()
    }

    fn shape(&self, group: usize) -> CStruct {
        let Conv2d { stride, padding, dilation, .. } = self.conv;
        CStruct::new()
            .u32s(&self.image)
            .u32s(&self.output)
            .u32s(&self.kernel)
            .u32s(&stride)
            .u32s(&[padding[0][0], padding[1][0]])
            .u32s(&dilation)
            .u32s(&[self.channels(), group * self.channels()])
    }
}

pub(super) fn forward(op: &Conv2d, e: &mut Emitter) {
    let plan = ConvGeometry::new(*op, &e.inputs[0].shape, &e.inputs[1].shape, &e.outputs[0].shape);
    if hopper::takes(&plan, e) {
        return hopper::forward(&plan, e);
    }
    let (operand, (x, stored), y) = (e.operand_storage(), e.stored(0), e.outputs[0].clone());
    let weight = e.form(1, operand);
    let bias = op.bias.then(|| e.form(2, y.storage));
    let images = plan.images(operand.bytes());
    let rows = e.scratch(images * plan.rows() * plan.row() * operand.bytes());
    let (per_group, row) = (plan.filters_per_group(), plan.row());
    for (start, count, group) in plan.parts(images) {
        let variant = KernelVariant::new(&compile::CONV).with("X", stored.name()).with("Y", operand.name());
        let elements = count * plan.rows() * row;
        let from = x + (start * plan.image_len() * stored.bytes()) as u64;
        let arguments = KernelArguments::new().pointer(from).pointer(rows).fields(plan.shape(group)).u64(elements);
        e.spread(variant, "im2col", elements, 1, arguments);
        let filters = weight + (group * per_group * row * operand.bytes()) as u64;
        let first = start * plan.rows() * plan.filters + group * per_group;
        let mut product = e.product(
            [1, count * plan.rows(), per_group, row],
            Matrix::dense(rows, row),
            Matrix { transposed: true, ..Matrix::dense(filters, row) },
            (Matrix::dense(y.address + (first * y.storage.bytes()) as u64, plan.filters), y.storage),
        );
        product.bias = bias.map(|bias| bias + (group * per_group * y.storage.bytes()) as u64);
        e.multiply(product);
    }
}

pub(super) fn grad_input(op: &Conv2dGradInput, e: &mut Emitter) {
    let plan = ConvGeometry::new(op.conv, &op.input, &e.inputs[1].shape, &e.inputs[0].shape);
    if hopper::takes_grad_input(&plan, e) {
        return hopper::grad_input(&plan, e);
    }
    let (operand, dx) = (e.operand_storage(), e.outputs[0].clone());
    let (dy, weight) = (e.form(0, operand), e.form(1, operand));
    let images = plan.images(operand.bytes());
    let rows = e.scratch(images * plan.rows() * plan.row() * operand.bytes());
    let (per_group, row) = (plan.filters_per_group(), plan.row());
    for (start, count, group) in plan.parts(images) {
        let filters = weight + (group * per_group * row * operand.bytes()) as u64;
        let first = start * plan.rows() * plan.filters + group * per_group;
        let product = e.product(
            [1, count * plan.rows(), row, per_group],
            Matrix::dense(dy + (first * operand.bytes()) as u64, plan.filters),
            Matrix::dense(filters, row),
            (Matrix::dense(rows, row), operand),
        );
        e.multiply(product);
        let variant = KernelVariant::new(&compile::CONV).with("X", operand.name()).with("Y", dx.storage.name());
        let elements = count * plan.image[0] * plan.image[1] * plan.channels();
        let to = dx.address + (start * plan.image_len() * dx.storage.bytes()) as u64;
        let arguments = KernelArguments::new().pointer(rows).pointer(to).fields(plan.shape(group)).u64(elements);
        e.spread(variant, "col2im", elements, 1, arguments);
    }
}

pub(super) fn grad_weight(op: &Conv2dGradWeight, e: &mut Emitter) {
    let plan = ConvGeometry::new(op.conv, &e.inputs[1].shape, &op.weight, &e.inputs[0].shape);
    if hopper::takes(&plan, e) {
        return hopper::grad_weight(&plan, e);
    }
    let (operand, (x, stored), dw) = (e.operand_storage(), e.stored(1), e.outputs[0].clone());
    let dy = e.form(0, operand);
    let images = plan.images(operand.bytes());
    let rows = e.scratch(images * plan.rows() * plan.row() * operand.bytes());
    let (per_group, row) = (plan.filters_per_group(), plan.row());
    if plan.batch * plan.rows() == 0 {
        e.requests.push(Request::Clear { to: dw.address, bytes: dw.shape.elements() * dw.storage.bytes() });
    }
    for (start, count, group) in plan.parts(images) {
        let variant = KernelVariant::new(&compile::CONV).with("X", stored.name()).with("Y", operand.name());
        let elements = count * plan.rows() * row;
        let from = x + (start * plan.image_len() * stored.bytes()) as u64;
        let arguments = KernelArguments::new().pointer(from).pointer(rows).fields(plan.shape(group)).u64(elements);
        e.spread(variant, "im2col", elements, 1, arguments);
        let first = start * plan.rows() * plan.filters + group * per_group;
        let to = Matrix::dense(dw.address + (group * per_group * row * dw.storage.bytes()) as u64, row);
        let mut product = e.product(
            [1, per_group, row, count * plan.rows()],
            Matrix { transposed: true, ..Matrix::dense(dy + (first * operand.bytes()) as u64, plan.filters) },
            Matrix::dense(rows, row),
            (to, dw.storage),
        );
        // Later parts of the batch add to the first.
        product.c = (start > 0).then_some(to);
        e.multiply(product);
    }
}
