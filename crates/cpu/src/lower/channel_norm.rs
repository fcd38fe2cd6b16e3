//! Group norm and batch norm, forward and backward.

use vit_graph::Type;
use vit_graph::ops::{BatchNorm, GroupNorm};

use super::{Lowered, consumed};
use crate::channel_norm::{ChannelNormShape, ChannelStatistics, backward, forward};

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
        let moved = |running: &f32, batch: f32| running + op.momentum * (batch - running);
        // n / (n - 1); shape inference has checked n >= 2.
        let bessel = shape.pixels as f32 / (shape.pixels as f32 - 1.0);
        new_mean.iter_mut().zip(inputs[3]).zip(batch_mean).for_each(|((new, old), batch)| *new = moved(old, *batch));
        let variances = new_variance.iter_mut().zip(inputs[4]).zip(batch_variance);
        variances.for_each(|((new, old), batch)| *new = moved(old, bessel * *batch));
    })
    .with_workspace(shape.workspace() + 2 * shape.channels)
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
