//! Group norm and batch norm, forward and backward.

use vit_graph::Type;
use vit_graph::ops::{BatchNorm, GroupNorm, SyncBatchNorm, SyncBatchNormGrad, VarianceAbout};

use super::{Lowered, consumed};
use crate::channel_norm::{
    ChannelNormShape, ChannelStatistics, backward, batch_moments, forward, input_grad_of_batch, normalise_batch,
};

fn grouped(groups: usize, x: &Type) -> ChannelNormShape {
    let (samples, channels) = (x.shape[0], x.shape.last());
    ChannelNormShape { samples, pixels: x.shape.rows() / samples.max(1), channels, groups }
}

/// Batch norm is the group norm of one sample that holds the pixels of all images, with a group for each channel.
fn batched(x: &Type) -> ChannelNormShape {
    ChannelNormShape { samples: 1, pixels: x.shape.rows(), channels: x.shape.last(), groups: x.shape.last() }
}

pub(super) fn group_norm(op: &GroupNorm, x: &Type) -> Lowered {
    let (shape, epsilon) = (grouped(op.groups, x), op.epsilon);
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [y, mean, rstd] = outputs else { unreachable!("three outputs") };
        let statistics = ChannelStatistics { mean, rstd, variance: &mut [] };
        forward(&p.pool, p.isa, &shape, epsilon, [inputs[0], inputs[1], inputs[2]], y, statistics, workspace);
    })
    .with_workspace(shape.workspace())
}

pub(super) fn batch_norm(op: &BatchNorm, x: &Type) -> Lowered {
    let (shape, op) = (batched(x), *op);
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [y, mean, rstd, new_mean, new_variance] = outputs else { unreachable!("five outputs") };
        // The running statistics need the batch's mean and variance even where `mean` has no consumer.
        let (batch, workspace) = workspace.split_at_mut(2 * shape.channels);
        let (batch_mean, batch_variance) = batch.split_at_mut(shape.channels);
        let statistics = ChannelStatistics { mean: &mut *batch_mean, rstd, variance: &mut *batch_variance };
        forward(&p.pool, p.isa, &shape, op.epsilon, [inputs[0], inputs[1], inputs[2]], y, statistics, workspace);
        if let Some(mean) = consumed(mean) {
            mean.copy_from_slice(batch_mean);
        }
        move_running(&op, shape.pixels, [inputs[3], inputs[4]], [batch_mean, batch_variance], [new_mean, new_variance]);
    })
    .with_workspace(shape.workspace() + 2 * shape.channels)
}

/// The running statistics after a batch with `count` elements per channel.
fn move_running(op: &BatchNorm, count: usize, old: [&[f32]; 2], batch: [&[f32]; 2], new: [&mut [f32]; 2]) {
    // n / (n - 1); shape inference has checked n >= 2.
    let bessel = count as f32 / (count as f32 - 1.0);
    for (((old, batch), new), factor) in old.into_iter().zip(batch).zip(new).zip([1.0, bessel]) {
        let moved = |running: f32, batch: f32| running + op.momentum * (factor * batch - running);
        new.iter_mut().zip(old).zip(batch).for_each(|((new, old), batch)| *new = moved(*old, *batch));
    }
}

pub(super) fn moments(x: &Type) -> Lowered {
    let shape = batched(x);
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [mean, variance] = outputs else { unreachable!("two outputs") };
        batch_moments(&p.pool, p.isa, &shape, inputs[0], [mean, variance], workspace);
    })
    .with_workspace(shape.workspace())
}

pub(super) fn variance_about(op: &VarianceAbout) -> Lowered {
    let parts = op.parts as f32;
    Lowered::new(move |_, inputs, outputs, _| {
        let &[mean, variance, sum] = inputs else { unreachable!("three inputs") };
        for (c, out) in outputs[0].iter_mut().enumerate() {
            let distance = mean[c] - sum[c] / parts;
            *out = variance[c] + distance * distance;
        }
    })
}

pub(super) fn sync_batch_norm(op: &SyncBatchNorm, x: &Type) -> Lowered {
    let (shape, op, count) = (batched(x), *op, op.count(x));
    let (own, parts) = (op.synced.own, op.synced.parts as f32);
    Lowered::new(move |p, inputs, outputs, workspace| {
        let (results, statistics) = outputs.split_at_mut(own);
        let [mean_out, rstd_out, new_mean, new_variance] = statistics else { unreachable!("four statistics") };
        let (batch, workspace) = workspace.split_at_mut(3 * shape.channels);
        let (mean, batch) = batch.split_at_mut(shape.channels);
        let (variance, rstd) = batch.split_at_mut(shape.channels);
        let &[mean_sum, variance_sum, old_mean, old_variance] = &inputs[3 * own..] else {
            unreachable!("four vectors")
        };
        for c in 0..shape.channels {
            mean[c] = mean_sum[c] / parts;
            variance[c] = variance_sum[c] / parts;
            rstd[c] = 1.0 / (variance[c] + op.norm.epsilon).sqrt();
        }
        for (part, y) in results.iter_mut().enumerate().filter(|(_, y)| !y.is_empty()) {
            let operands = [inputs[part], inputs[own + part], inputs[2 * own + part], mean, rstd];
            normalise_batch(&p.pool, p.isa, &shape, operands, y, workspace);
        }
        move_running(&op.norm, count, [old_mean, old_variance], [mean, variance], [new_mean, new_variance]);
        for (out, values) in [(mean_out, mean), (rstd_out, rstd)] {
            if let Some(out) = consumed(out) {
                out.copy_from_slice(values);
            }
        }
    })
    .with_workspace(shape.workspace() + 3 * shape.channels)
}

pub(super) fn sync_batch_norm_grad(op: &SyncBatchNormGrad, x: &Type) -> Lowered {
    let (shape, count) = (batched(x), op.count as f32);
    Lowered::new(move |p, inputs, outputs, workspace| {
        let &[dy, x, gamma, mean, rstd, dgamma, dbeta] = inputs else { unreachable!("seven inputs") };
        let operands = [dy, x, gamma, mean, rstd, dgamma, dbeta];
        input_grad_of_batch(&p.pool, p.isa, &shape, count, operands, outputs[0], workspace);
    })
    .with_workspace(shape.workspace())
}

fn gradient(shape: ChannelNormShape) -> Lowered {
    Lowered::new(move |p, inputs, outputs, workspace| {
        let [dx, dgamma, dbeta] = outputs else { unreachable!("three outputs") };
        let [dy, x, gamma, mean, rstd] = inputs else { unreachable!("five inputs") };
        backward(&p.pool, p.isa, &shape, [dy, x, gamma, mean, rstd], [dx, dgamma, dbeta], workspace);
    })
    .with_workspace(shape.workspace())
}

pub(super) fn group_norm_grad(groups: usize, x: &Type) -> Lowered {
    gradient(grouped(groups, x))
}

pub(super) fn batch_norm_grad(x: &Type) -> Lowered {
    gradient(batched(x))
}
