//! Layer norm, softmax and activations.

use vit_graph::Type;
use vit_graph::ops::{Activation, AddLayerNorm, LayerNorm};

use super::{Lowered, wanted};
use crate::{activation, norm, softmax as soft};

pub(super) fn layer_norm(op: &LayerNorm, x: &Type) -> Lowered {
    let (eps, rows, dim) = (op.epsilon, x.shape.rows(), x.shape.last());
    Lowered::new(move |p, inputs, outputs, _| {
        let [out, mean, rstd] = outputs else { unreachable!("three outputs") };
        let (gamma, beta) = (Some(inputs[1]), Some(inputs[2]));
        norm::layer_norm(&p.pool, p.isa, inputs[0], gamma, beta, eps, rows, dim, out, wanted(mean), wanted(rstd));
    })
}

pub(super) fn add_layer_norm(op: &AddLayerNorm, x: &Type) -> Lowered {
    let (eps, rows, dim) = (op.0.epsilon, x.shape.rows(), x.shape.last());
    // A sum without consumers goes to the workspace.
    let spare = x.shape.elements();
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [out, mean, rstd, sum] = outputs else { unreachable!("four outputs") };
        let sum = wanted(sum).unwrap_or(&mut workspace[..spare]);
        let (x, y, gamma, beta) = (inputs[0], inputs[1], Some(inputs[2]), Some(inputs[3]));
        norm::add_layer_norm(&p.pool, p.isa, x, y, gamma, beta, eps, rows, dim, sum, out, wanted(mean), wanted(rstd));
    })
    .with_workspace(spare)
}

/// A sixth input is the gradient of the residual stream, which is added.
pub(super) fn layer_norm_grad(x: &Type) -> Lowered {
    let (rows, dim, spare) = (x.shape.rows(), x.shape.last(), x.shape.elements());
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [dx, dgamma, dbeta] = outputs else { unreachable!("three outputs") };
        let (spare, workspace) = workspace.split_at_mut(spare);
        let (dy, x, gamma, mean, rstd) = (inputs[0], inputs[1], Some(inputs[2]), inputs[3], inputs[4]);
        let residual = inputs.get(5).copied();
        let dx = wanted(dx).unwrap_or(spare);
        let (dgamma, dbeta) = (wanted(dgamma), wanted(dbeta));
        norm::layer_norm_grad(
            &p.pool, p.isa, dy, x, gamma, mean, rstd, residual, rows, dim, dx, dgamma, dbeta, workspace,
        );
    })
    .with_workspace(spare + norm::layer_norm_grad_workspace(rows, dim))
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
