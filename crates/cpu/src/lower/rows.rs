//! Layer norm, softmax and activations.

use vit_graph::Type;
use vit_graph::ops::{Activation, AddLayerNorm, LayerNorm, LayerNormGrad};

use super::{Lowered, consumed};
use crate::norm::{LayerNormArgs, LayerNormGradArgs};
use crate::{activation, norm, softmax as soft};

pub(super) fn layer_norm(op: &LayerNorm, x: &Type) -> Lowered {
    let (LayerNorm { epsilon, centred }, rows, dim) = (*op, x.shape.rows(), x.shape.last());
    Lowered::new(move |p, inputs, outputs, _| {
        let [out, mean, rstd] = outputs else { unreachable!("three outputs") };
        let args = LayerNormArgs {
            gamma: Some(inputs[1]),
            beta: Some(inputs[2]),
            mean: consumed(mean),
            rstd: consumed(rstd),
            centred,
            ..LayerNormArgs::new([rows, dim], inputs[0], epsilon, out)
        };
        norm::layer_norm(&p.pool, p.isa, args);
    })
}

pub(super) fn add_layer_norm(op: &AddLayerNorm, x: &Type) -> Lowered {
    let (LayerNorm { epsilon, centred }, rows, dim) = (op.0, x.shape.rows(), x.shape.last());
    // A sum without consumers goes to the workspace.
    let sum_len = x.shape.elements();
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [out, mean, rstd, sum] = outputs else { unreachable!("four outputs") };
        let sum = consumed(sum).unwrap_or(&mut workspace[..sum_len]);
        let args = LayerNormArgs {
            residual: Some((inputs[1], sum)),
            gamma: Some(inputs[2]),
            beta: Some(inputs[3]),
            mean: consumed(mean),
            rstd: consumed(rstd),
            centred,
            ..LayerNormArgs::new([rows, dim], inputs[0], epsilon, out)
        };
        norm::layer_norm(&p.pool, p.isa, args);
    })
    .with_workspace(sum_len)
}

/// A sixth input, of [`vit_graph::ops::LayerNormGradAdd`], is the gradient through the residual connection, which is
/// added to `dx`.
pub(super) fn layer_norm_grad(op: LayerNormGrad, x: &Type) -> Lowered {
    let (rows, dim, dx_len) = (x.shape.rows(), x.shape.last(), x.shape.elements());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [dx, dgamma, dbeta] = outputs else { unreachable!("three outputs") };
        // A `dx` without consumers goes to the workspace.
        let (unused_dx, workspace) = workspace.split_at_mut(dx_len);
        let args = LayerNormGradArgs {
            rows,
            dim,
            dy: inputs[0],
            x: inputs[1],
            gamma: Some(inputs[2]),
            mean: inputs[3],
            rstd: inputs[4],
            centred: op.centred,
            residual_grad: inputs.get(5).copied(),
            dx: consumed(dx).unwrap_or(unused_dx),
            dgamma: consumed(dgamma),
            dbeta: consumed(dbeta),
        };
        norm::layer_norm_grad(&p.pool, p.isa, args, workspace);
    })
    .with_workspace(dx_len + norm::layer_norm_grad_workspace(rows, dim))
}

pub(super) fn softmax(x: &Type) -> Lowered {
    let (rows, dim) = (x.shape.rows(), x.shape.last());
    Lowered::new(move |p, inputs, outputs, _| soft::softmax(&p.pool, p.isa, inputs[0], rows, dim, outputs[0]))
}

pub(super) fn softmax_grad(y: &Type) -> Lowered {
    let (rows, dim) = (y.shape.rows(), y.shape.last());
    Lowered::new(move |p, inputs, outputs, _| {
        soft::softmax_grad(&p.pool, p.isa, inputs[0], inputs[1], rows, dim, outputs[0]);
    })
}

pub(super) fn activation(f: Activation) -> Lowered {
    Lowered::new(move |p, inputs, outputs, _| activation::apply(&p.pool, p.isa, f, inputs[0], outputs[0]))
}

pub(super) fn activation_grad(f: Activation) -> Lowered {
    Lowered::new(move |p, inputs, outputs, _| {
        activation::apply_grad(&p.pool, p.isa, f, inputs[0], inputs[1], outputs[0]);
    })
}
