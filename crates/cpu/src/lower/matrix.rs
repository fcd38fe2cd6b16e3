//! Linear layers and matrix products.

use vit_graph::Type;
use vit_graph::ops::{Linear, LinearWithDerivative, MatMul};

use super::{Lowered, PackedForm, WeightPacking, consumed};
use crate::device::Processor;
use crate::gemm::{self, ALayout, BLayout, Epilogue, Gemm, Matmul};
use crate::int8::{self, Gemm8};

/// The epilogue of a linear layer with `n` outputs, given the inputs.
fn epilogue(op: &Linear, n: usize) -> impl for<'a> Fn(&[&'a [f32]]) -> Epilogue<'a> + Send + use<> {
    let [bias, scale, residual] = op.optional_inputs();
    let activation = op.activation;
    move |inputs| Epilogue {
        bias: bias.map(|i| inputs[i]),
        activation,
        scale: scale.map(|i| inputs[i]),
        factor: None,
        residual: residual.map(|i| (inputs[i], n)),
    }
}

/// A linear layer and, if it has a consumer, the derivative of its activation.
pub(super) fn linear_with_derivative(
    processor: &Processor,
    op: &LinearWithDerivative,
    inputs: &[Type],
    prepacked: bool,
) -> Lowered {
    let linear = Linear { bias: op.bias, activation: Some(op.activation), ..Linear::default() };
    self::linear(processor, &linear, inputs, prepacked)
}

/// A linear layer; `prepacked`: its weight is constant and packed when parameters are set. A second output, if there is
/// one, receives the derivative of the activation.
pub(super) fn linear(processor: &Processor, op: &Linear, inputs: &[Type], prepacked: bool) -> Lowered {
    let (m, n, k) = (inputs[0].shape.rows(), inputs[1].shape[0], inputs[1].shape[1]);
    let (isa, threads) = (processor.isa, processor.pool.threads());
    let workspace = if prepacked {
        gemm::gemm_workspace(isa, threads, m, n, k)
    } else {
        gemm::matmul_workspace(isa, threads, 1, m, n, k)
    };
    let epilogue = epilogue(op, n);
    let mut lowered = Lowered::new(move |p, inputs, outputs, workspace| {
        let epilogue = epilogue(inputs);
        let (result, more) = outputs.split_at_mut(1);
        let d_activation = more.first_mut().and_then(|output| consumed(output));
        let (a, b, c) = (inputs[0], inputs[1], &mut *result[0]);
        if prepacked {
            let product = Gemm { epilogue, d_activation, ..Gemm::dense([m, n, k], a, b, c) };
            gemm::gemm(&p.pool, p.isa, product, workspace);
        } else {
            let product = Matmul::single([m, n, k], (a, k, ALayout::RowMajor), (b, k, BLayout::RowsAreN), (c, n));
            gemm::matmul(&p.pool, p.isa, Matmul { epilogue, d_activation, ..product }, workspace);
        }
    })
    .with_workspace(workspace);
    lowered.packing = prepacked.then_some(WeightPacking { input: 1, form: PackedForm::F32 });
    lowered
}

/// A linear layer in int8. Its weight is quantised and packed when parameters are set if it is constant (`prepacked`),
/// else in every run.
pub(super) fn linear_int8(
    processor: &Processor,
    op: &Linear,
    inputs: &[Type],
    prepacked: bool,
) -> Result<Lowered, String> {
    let (m, n, k) = (inputs[0].shape.rows(), inputs[1].shape[0], inputs[1].shape[1]);
    if k > int8::MAX_TERMS {
        return Err(format!("rows of {k} elements are too long for int8; {} is the most", int8::MAX_TERMS));
    }
    let packed_len = if prepacked { 0 } else { int8::packed_len(processor.isa, k, n) };
    let epilogue = epilogue(op, n);
    let mut lowered = Lowered::new(move |p, inputs, outputs, workspace| {
        let epilogue = epilogue(inputs);
        let (packed, workspace) = workspace.split_at_mut(packed_len);
        if !prepacked {
            int8::pack_parallel(&p.pool, p.isa, inputs[1], k, n, packed);
        }
        let b_packed = if prepacked { inputs[1] } else { packed };
        let product = Gemm8 { m, n, k, a: inputs[0], lda: k, b_packed, c: outputs[0], ldc: n, epilogue };
        int8::gemm(&p.pool, p.isa, product, workspace);
    })
    .with_workspace(packed_len + int8::workspace(processor.isa, m, k));
    lowered.packing = prepacked.then_some(WeightPacking { input: 1, form: PackedForm::Int8 });
    Ok(lowered)
}

/// A batched product of two values, its elements multiplied by those of a third input if there is one.
pub(super) fn matmul(processor: &Processor, op: &MatMul, inputs: &[Type]) -> Lowered {
    let [batch, m, n, k] = op.extents(&inputs[0].shape, &inputs[1].shape);
    let workspace = gemm::matmul_workspace(processor.isa, processor.pool.threads(), batch, m, n, k);
    let (a_layout, lda) = if op.transpose_a { (ALayout::Transposed, m) } else { (ALayout::RowMajor, k) };
    let (b_layout, ldb) = if op.transpose_b { (BLayout::RowsAreN, k) } else { (BLayout::RowsAreK, n) };
    Lowered::new(move |p, inputs, outputs, workspace| {
        let product = Matmul {
            batch,
            a_batch_stride: m * k,
            b_batch_stride: k * n,
            c_batch_stride: m * n,
            epilogue: Epilogue { factor: inputs.get(2).map(|&factor| (factor, n)), ..Epilogue::default() },
            ..Matmul::single([m, n, k], (inputs[0], lda, a_layout), (inputs[1], ldb, b_layout), (outputs[0], n))
        };
        gemm::matmul(&p.pool, p.isa, product, workspace);
    })
    .with_workspace(workspace)
}
