//! A convolution and what follows it.

use vit_graph::Type;
use vit_graph::ops::FusedConv2d;

use super::{Lowered, PackedForm, Packing};
use crate::conv::{Epilogue, Geometry, Plan, depthwise};
use crate::device::Processor;
use crate::gemm::{self, ALIGN, BLayout, aligned};

pub(super) fn forward(
    processor: &Processor,
    op: &FusedConv2d,
    inputs: &[Type],
    output: &Type,
    packed: bool,
) -> Lowered {
    let (x, y) = (&inputs[0].shape, &output.shape);
    let geometry = Geometry {
        batch: x[0],
        image: [x[1], x[2], x[3]],
        output: [y[1], y[2]],
        filters: y[3],
        kernel: op.kernel,
        stride: op.conv.stride,
        padding: op.conv.padding,
        dilation: op.conv.dilation,
    };
    let [bias, residual] = op.optional_inputs();
    let (activation, place) = (op.activation, op.residual);
    if op.depthwise() {
        return Lowered::new(move |p, inputs, outputs, _| {
            let residual = residual.zip(place).map(|(i, at)| (at, inputs[i]));
            let epilogue = Epilogue { bias: bias.map(|i| inputs[i]), activation, residual };
            depthwise(&p.pool, p.isa, &geometry, inputs[0], inputs[1], epilogue, outputs[0]);
        });
    }
    let plan = Plan::new(geometry);
    let (n, k) = (geometry.filters, geometry.terms());
    // Filters that change are packed in every run, into the workspace.
    let packed_len = if packed { 0 } else { gemm::packed_len(processor.isa, k, n) };
    let room = if packed { 0 } else { packed_len + ALIGN };
    let workspace = room + plan.workspace();
    let mut lowered = Lowered::new(move |p, inputs, outputs, workspace| {
        let residual = residual.zip(place).map(|(i, at)| (at, inputs[i]));
        let epilogue = Epilogue { bias: bias.map(|i| inputs[i]), activation, residual };
        let (own, workspace) = workspace.split_at_mut(room);
        let (own, _) = if packed { (own, &mut [][..]) } else { aligned(own, packed_len) };
        if !packed {
            gemm::pack_b_parallel(&p.pool, p.isa, inputs[1], BLayout::RowsAreN, k, k, n, own);
        }
        let weight = if packed { inputs[1] } else { own };
        plan.run(&p.pool, p.isa, inputs[0], weight, epilogue, outputs[0], workspace);
    })
    .with_workspace(workspace);
    lowered.packing = packed.then_some(Packing { input: 1, form: PackedForm::F32 });
    lowered
}
