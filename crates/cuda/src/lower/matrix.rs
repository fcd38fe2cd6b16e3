//! Linear layers and matrix products.

use vit_graph::ops::{Activation, Linear, MatMul};

use super::rows::activation_variant;
use super::{Emitter, Operand, VECTOR};
use crate::gemm::{Matrix, MatrixProduct, QuantisationScales, WORKSPACE};
use crate::plan::fp8::INVERSE;
use crate::plan::storage::Storage;
use crate::run::arguments::KernelArguments;
use crate::run::launch::Request;

/// The fewest elements of a result for which cuBLASLt's GELU epilogue is used: smaller results stay in the L2 cache
/// between two kernels, so that fusing them gains nothing.
const MIN_GELU_EPILOGUE_ELEMENTS: usize = 1 << 18;

impl Emitter {
    /// The storage type of the operands of products.
    pub(super) fn operand_storage(&self) -> Storage {
        Storage::half(self.precision).unwrap_or(Storage::F32)
    }

    /// `d = op(a) · op(b)` with operands in [`Emitter::operand_storage`]; the caller may set the other fields, and
    /// passes the product to [`Emitter::multiply`] or to a [`Request::Fused`].
    pub(super) fn product(
        &mut self,
        [batch, m, n, k]: [usize; 4],
        a: Matrix,
        b: Matrix,
        d: (Matrix, Storage),
    ) -> MatrixProduct {
        let workspace = match self.workspace {
            Some(workspace) => workspace,
            None => self.scratch(WORKSPACE),
        };
        self.workspace = Some(workspace);
        MatrixProduct {
            batch,
            m,
            n,
            k,
            a,
            b,
            scales: QuantisationScales::default(),
            gelu: false,
            bias: None,
            c: None,
            d: d.0,
            operand: self.operand_storage(),
            result: d.1,
            precision: self.precision,
            workspace,
        }
    }

    pub(super) fn multiply(&mut self, product: MatrixProduct) {
        if product.batch * product.m * product.n > 0 {
            self.requests.push(Request::Product(product));
        }
    }
}

/// `residual + scale · activation(x Wᵀ + bias)`.
pub(super) fn linear(op: &Linear, e: &mut Emitter) {
    let (m, n, k) = (e.inputs[0].shape.rows(), e.inputs[1].shape[0], e.inputs[1].shape[1]);
    let [bias, scale, residual] = op.optional_inputs();
    let y = e.outputs[0].clone();
    let mut scales = QuantisationScales::default();
    let (x, weight, operand) = if e.inputs[0].scales != 0 && e.inputs[1].e4m3 != 0 {
        (scales.a, scales.b) = (e.inputs[0].scales + INVERSE, e.inputs[1].scales + INVERSE);
        (e.quantised(0), e.inputs[1].e4m3, Storage::E4m3)
    } else {
        let operand = e.operand_storage();
        (e.input_as(0, operand), e.input_as(1, operand), operand)
    };
    let weight = Matrix { transposed: true, ..Matrix::with_ld(weight, k) };
    let mut product =
        e.product([1, m, n, k], Matrix::with_ld(x, k), weight, (Matrix::with_ld(y.address, n), y.storage));
    (product.operand, product.scales) = (operand, scales);
    product.bias = bias.map(|i| e.input_as(i, product.addend_storage()));
    // With the whole epilogue.
    let mut whole = product.clone();
    if y.storage == Storage::E4m3 {
        whole.scales.d = y.scales;
    }
    if op.activation.is_none() && scale.is_none() {
        whole.c = residual.map(|i| Matrix::with_ld(e.input_as(i, whole.addend_storage()), n));
        // cuBLASLt may have no fp8 algorithm with an addend; then a second kernel adds it.
        if operand == Storage::E4m3 && residual.is_some() && m * n > 0 {
            let before = e.requests.len();
            e.multiply(product);
            epilogue(op, &y, &y, e);
            let parts = e.requests.split_off(before);
            e.requests.push(Request::Fused(whole, parts));
        } else {
            e.multiply(whole);
        }
        return;
    }
    // Product and epilogue in two kernels.
    let mut between = y.clone();
    if y.storage == Storage::E4m3 {
        between.storage = product.addend_storage();
        between.address = e.scratch(m * n * between.storage.bytes());
        (product.d.address, product.result) = (between.address, between.storage);
    }
    let before = e.requests.len();
    e.multiply(product);
    epilogue(op, &between, &y, e);
    // cuBLASLt's GELU (tanh) differs from the exact one by about the rounding of bf16; f16 rounds less. Training
    // never uses it: the forward pass of a checkpointed block must have the bits of its recomputation, where GELU is a
    // separate kernel, since the backward pass reads the product, too.
    let gelu = match op.activation {
        Some(Activation::Gelu) => e.operand_storage() == Storage::Bf16,
        Some(Activation::GeluTanh) => true,
        _ => false,
    };
    let large = m * n >= MIN_GELU_EPILOGUE_ELEMENTS;
    if gelu && !e.training && large && scale.is_none() && residual.is_none() && y.storage != Storage::F32 {
        let parts = e.requests.split_off(before);
        whole.gelu = true;
        e.requests.push(Request::Fused(whole, parts));
    }
}

/// The epilogue of a linear layer where cuBLASLt has none, from the product `x` to `y`: in place, unless `y` is e4m3.
/// An e4m3 result has no scale and no residual, or [`Fp8Layers::stored`](crate::plan::fp8::Fp8Layers::stored) would not
/// contain it.
fn epilogue(op: &Linear, x: &Operand, y: &Operand, e: &mut Emitter) {
    let [_, scale, residual] = op.optional_inputs();
    let (count, n) = (y.shape.elements(), y.shape.last());
    let variant = activation_variant(op.activation).with("Y", y.storage.name());
    if y.storage == Storage::E4m3 {
        let arguments = KernelArguments::new().pointers(&[x.address, y.address, y.scales]).u64(count);
        e.kernel_1d(variant.with("X", x.storage.name()), "activation_quantised", count, VECTOR, arguments);
        return;
    }
    let (scale, residual) = (scale.map_or(0, |i| e.inputs[i].address), residual.map(|i| e.inputs[i].clone()));
    let variant = variant.with("R", residual.as_ref().map_or(y.storage, |r| r.storage).name());
    let arguments = KernelArguments::new().pointers(&[y.address, scale, residual.map_or(0, |r| r.address)]);
    e.kernel_1d(variant, "linear_epilogue", count, VECTOR, arguments.u32(n).u64(count));
}

pub(super) fn matmul(op: &MatMul, e: &mut Emitter) {
    let [batch, m, n, k] = op.extents(&e.inputs[0].shape, &e.inputs[1].shape);
    let operand = e.operand_storage();
    let a = Matrix {
        address: e.input_as(0, operand),
        ld: if op.transpose_a { m } else { k },
        transposed: op.transpose_a,
        batch_stride: m * k,
    };
    let b = Matrix {
        address: e.input_as(1, operand),
        ld: if op.transpose_b { k } else { n },
        transposed: op.transpose_b,
        batch_stride: k * n,
    };
    let d = Matrix { address: e.outputs[0].address, ld: n, transposed: false, batch_stride: m * n };
    let storage = e.outputs[0].storage;
    let product = e.product([batch, m, n, k], a, b, (d, storage));
    e.multiply(product);
}
