//! Attention and its gradient: views of the inputs and outputs as queries, keys and values. The inputs of the forward
//! pass are query, key and value (`op.operands()`: one input if packed, else three), then the bias if there is one,
//! then the seed if there is dropout.

use vit_graph::Type;
use vit_graph::ops::{Attention, AttentionGrad};

use super::dropout::DropoutMask;
use super::{Lowered, consumed};
use crate::attention::{self, AttentionShape, GradOutputs, HeadView, HeadViewMut, WeightDropout};
use crate::device::Processor;

fn shape_of(op: &Attention, operands: &[Type]) -> AttentionShape {
    let x = op.extents(operands);
    AttentionShape { batch: x.batch, heads: x.heads, queries: x.queries, keys: x.keys, head_dim: x.head_dim }
}

fn views<'a>(op: &Attention, shape: &AttentionShape, operands: &[&'a [f32]]) -> [HeadView<'a>; 3] {
    let AttentionShape { queries, keys, heads, head_dim, .. } = *shape;
    if op.packed {
        HeadView::packed_qkv(operands[0], queries, heads, head_dim)
    } else {
        [(0, queries), (1, keys), (2, keys)].map(|(i, rows)| HeadView::dense(operands[i], rows, heads, head_dim))
    }
}

pub(super) fn forward(processor: &Processor, op: &Attention, inputs: &[Type]) -> Lowered {
    let (op, shape) = (*op, shape_of(op, inputs));
    let groups = if op.bias { inputs[op.operands()].shape[0] } else { 1 };
    let workspace = attention::forward_workspace(processor.isa, processor.pool.threads(), &shape);
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [out, lse, weights] = outputs else { unreachable!("three outputs") };
        let [q, k, v] = views(&op, &shape, inputs);
        let mask = op.dropout.map(|d| DropoutMask::new(d, inputs[inputs.len() - 1]));
        let factors = |first: u64, into: &mut [f32]| mask.iter().for_each(|m| m.factors(first, into));
        let args = attention::AttentionArgs {
            shape,
            scale: op.scale,
            q,
            k,
            v,
            out: HeadViewMut::dense(out, shape.queries, shape.heads, shape.head_dim),
            lse: consumed(lse),
            weights: consumed(weights),
            bias: op.bias.then(|| (inputs[op.operands()], groups)),
            dropout: mask.as_ref().map(|_| WeightDropout { factors: &factors }),
        };
        attention::forward(&p.pool, p.isa, args, workspace);
    })
    .with_workspace(workspace)
}

/// Inputs: the gradient of the result, the result, the log-sum-exp of every row of scores, then the inputs of the
/// forward pass.
pub(super) fn backward(processor: &Processor, op: &AttentionGrad, inputs: &[Type]) -> Lowered {
    let (op, shape) = (op.0, shape_of(&op.0, &inputs[3..]));
    let groups = if op.bias { inputs[3 + op.operands()].shape[0] } else { 1 };
    let workspace = attention::backward_workspace(processor.pool.threads(), &shape);
    // The kernel writes all gradients of query, key and value. The first output always has memory (`Operation`'s
    // `always_writes_first_output`); gradients of key and value without consumers go to the workspace.
    let unused_sizes = if op.packed { [0; 2] } else { [1, 2].map(|i| inputs[3 + i].shape.elements()) };
    Lowered::new(move |p, inputs, outputs, workspace| {
        let forward_inputs = &inputs[3..];
        let [q, k, v] = views(&op, &shape, forward_inputs);
        let AttentionShape { queries, keys, heads, head_dim, .. } = shape;
        let dense = |data, rows| HeadView::dense(data, rows, heads, head_dim);
        let mask = op.dropout.map(|d| DropoutMask::new(d, inputs[inputs.len() - 1]));
        let factors = |first: u64, into: &mut [f32]| mask.iter().for_each(|m| m.factors(first, into));
        let (unused, workspace) = workspace.split_at_mut(unused_sizes.iter().sum());
        let (gradients, dbias) = outputs.split_at_mut(op.operands());
        let outputs = if op.packed {
            GradOutputs::Packed(gradients[0])
        } else {
            let [dq, dk, dv] = gradients else { unreachable!("three gradients") };
            let (unused_k, unused_v) = unused.split_at_mut(unused_sizes[0]);
            let view = |d, unused| HeadViewMut::dense(consumed(d).unwrap_or(unused), keys, heads, head_dim);
            GradOutputs::Separate {
                dq: HeadViewMut::dense(dq, queries, heads, head_dim),
                dk: view(dk, unused_k),
                dv: view(dv, unused_v),
            }
        };
        let args = attention::AttentionGradArgs {
            shape,
            scale: op.scale,
            q,
            k,
            v,
            out: dense(inputs[1], queries),
            dout: dense(inputs[0], queries),
            lse: inputs[2],
            bias: op.bias.then(|| (forward_inputs[op.operands()], groups)),
            dropout: mask.as_ref().map(|_| WeightDropout { factors: &factors }),
            outputs,
            dbias: dbias.first_mut().and_then(|d| consumed(d)).map(|d| (d, groups)),
        };
        attention::backward(&p.pool, p.isa, args, workspace);
    })
    .with_workspace(workspace + unused_sizes.iter().sum::<usize>())
}
