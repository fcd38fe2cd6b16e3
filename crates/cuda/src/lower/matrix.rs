//! Linear layers and matrix products.

use vit_graph::ops::{Linear, MatMul};

use super::rows::kind;
use super::{Emitter, PACK};
use crate::Precision;
use crate::compiler::{self, Variant};
use crate::fields::Arguments;
use crate::gemm::{Matrix, Product, WORKSPACE};
use crate::launch::Request;
use crate::storage::Storage;

impl Emitter {
    /// What the operands of products are stored in.
    pub(super) fn operand_storage(&self) -> Storage {
        if self.precision == Precision::Bf16 { Storage::Bf16 } else { Storage::F32 }
    }

    /// Asks for `d = op(a) · op(b)`, with operands stored as [`Emitter::operand_storage`] says; [`Request::Product`]
    /// parts that are not given here may be added.
    pub(super) fn product(
        &mut self,
        [batch, m, n, k]: [usize; 4],
        a: Matrix,
        b: Matrix,
        d: (Matrix, Storage),
    ) -> Product {
        let workspace = match self.workspace {
            Some(workspace) => workspace,
            None => self.scratch(WORKSPACE),
        };
        self.workspace = Some(workspace);
        Product {
            batch,
            m,
            n,
            k,
            a,
            b,
            bias: None,
            c: None,
            d: d.0,
            operand: self.operand_storage(),
            result: d.1,
            precision: self.precision,
            workspace,
        }
    }

    pub(super) fn multiply(&mut self, product: Product) {
        if product.batch * product.m * product.n > 0 {
            self.requests.push(Request::Product(product));
        }
    }
}

/// `residual + scale · activation(x Wᵀ + bias)`.
pub(super) fn linear(op: &Linear, e: &mut Emitter) {
    let (m, n, k) = (e.inputs[0].shape.rows(), e.inputs[1].shape[0], e.inputs[1].shape[1]);
    let [bias, scale, residual] = op.optional_inputs();
    let (y, storage) = (e.outputs[0].address, e.outputs[0].storage);
    let operand = e.operand_storage();
    let x = Matrix::dense(e.form(0, operand), k);
    let weight = Matrix { transposed: true, ..Matrix::dense(e.form(1, operand), k) };
    let mut product = e.product([1, m, n, k], x, weight, (Matrix::dense(y, n), storage));
    product.bias = bias.map(|i| e.form(i, storage));
    if op.activation.is_none() && scale.is_none() {
        product.c = residual.map(|i| Matrix::dense(e.form(i, storage), n));
        e.multiply(product);
        return;
    }
    e.multiply(product);
    let (scale, residual) = (scale.map_or(0, |i| e.inputs[i].address), residual.map(|i| e.inputs[i].clone()));
    let variant = Variant::new(&compiler::ACTIVATION)
        .with("KIND", kind(op.activation))
        .with("Y", storage.name())
        .with("R", residual.as_ref().map_or(storage, |r| r.storage).name());
    let arguments = Arguments::new().pointers(&[y, scale, residual.map_or(0, |r| r.address)]).u32(n).u64(m * n);
    e.spread(variant, "linear_tail", m * n, PACK, arguments);
}

pub(super) fn matmul(op: &MatMul, e: &mut Emitter) {
    let [batch, m, n, k] = op.extents(&e.inputs[0].shape, &e.inputs[1].shape);
    let operand = e.operand_storage();
    let a = Matrix {
        address: e.form(0, operand),
        row: if op.transpose_a { m } else { k },
        transposed: op.transpose_a,
        batch: m * k,
    };
    let b = Matrix {
        address: e.form(1, operand),
        row: if op.transpose_b { k } else { n },
        transposed: op.transpose_b,
        batch: k * n,
    };
    let d = Matrix { address: e.outputs[0].address, row: n, transposed: false, batch: m * n };
    let storage = e.outputs[0].storage;
    let product = e.product([batch, m, n, k], a, b, (d, storage));
    e.multiply(product);
}
