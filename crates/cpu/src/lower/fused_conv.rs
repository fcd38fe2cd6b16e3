//! A convolution with the operations fused into its epilogue. Filters are `[filters, kh · kw · channels]`, or
//! `[kh · kw, channels]` for depthwise ones.

use vit_graph::Type;
use vit_graph::ops::FusedConv2d;

use super::{Lowered, PackedForm, WeightPacking};
use crate::conv::{ConvEpilogue, ConvGeometry, ImplicitGemm, depthwise};
use crate::device::Processor;
use crate::gemm::{self, ALIGN, BLayout, aligned};

/// The epilogue, given the inputs.
fn epilogue(op: &FusedConv2d) -> impl for<'a> Fn(&[&'a [f32]]) -> ConvEpilogue<'a> + Send + use<> {
    let [bias, residual] = op.optional_inputs();
    let (activation, residual_at) = (op.activation, op.residual);
    move |inputs| ConvEpilogue {
        bias: bias.map(|i| inputs[i]),
        activation,
        residual: residual.zip(residual_at).map(|(i, at)| (at, inputs[i])),
    }
}

/// `prepacked`: the filters are constant and packed when parameters are set.
pub(super) fn forward(
    processor: &Processor,
    op: &FusedConv2d,
    inputs: &[Type],
    output: &Type,
    prepacked: bool,
) -> Lowered {
    let geometry = ConvGeometry::new(&op.conv, &inputs[0].shape, &output.shape, op.kernel);
    let epilogue = epilogue(op);
    if op.depthwise() {
        return Lowered::new(move |p, inputs, outputs, _| {
            depthwise(&p.pool, p.isa, &geometry, inputs[0], inputs[1], epilogue(inputs), outputs[0]);
        });
    }
    let conv = ImplicitGemm::new(geometry);
    let (n, k) = (geometry.filters, geometry.terms());
    // Other filters are packed into the workspace in every run.
    let packed_len = if prepacked { 0 } else { gemm::packed_len(processor.isa, k, n) };
    let packing_len = if prepacked { 0 } else { packed_len + ALIGN };
    let workspace = packing_len + conv.workspace();
    let mut lowered = Lowered::new(move |p, inputs, outputs, workspace| {
        let (packing_space, workspace) = workspace.split_at_mut(packing_len);
        let weight = if prepacked {
            inputs[1]
        } else {
            let (to, _) = aligned(packing_space, packed_len);
            gemm::pack_b_parallel(&p.pool, p.isa, inputs[1], BLayout::RowsAreN, k, k, n, to);
            to
        };
        conv.run(&p.pool, p.isa, inputs[0], weight, epilogue(inputs), outputs[0], workspace);
    })
    .with_workspace(workspace);
    lowered.packing = prepacked.then_some(WeightPacking { input: 1, form: PackedForm::F32 });
    lowered
}
