//! Normalisation and softmax.

use vit_graph::Tensor;
use vit_graph::ops::{
    Activation, AddLayerNorm, BatchMoments, BatchNorm, Granularity, GroupNorm, LayerNorm, LayerNormGrad,
    LayerNormGradAdd, PartSum, SyncBatchNorm, SyncedParts, VarianceAbout,
};

use crate::build::{CaseBuilder, Outputs, Table, differentiable, first_differentiable, forward};

pub(super) fn table(t: &mut Table) {
    t.two("layer_norm", layer_norm);
    t.one("layer_norm, only its statistics", only_statistics);
    t.two("add_layer_norm", add_layer_norm);
    t.two("layer_norm_grad_add", layer_norm_grad_add);
    t.two("residual branch", residual_branch);
    t.two("rms_norm", rms_norm);
    t.two("add_rms_norm", add_rms_norm);
    t.two("residual branch with rms_norm and stochastic depth", |c| stochastic_depth(c, LayerNorm::rms(EPSILON)));
    t.two("residual branch with stochastic depth", |c| stochastic_depth(c, LayerNorm::new(EPSILON)));
    t.two("group_norm", group_norm);
    t.two("batch_norm", batch_norm);
    t.two("batch_norm, add, relu", batch_norm_relu);
    t.two("sync_batch_norm", sync_batch_norm);
    t.two("softmax", softmax);
}

const EPSILON: f32 = 1e-3;

fn width(c: &mut CaseBuilder) -> usize {
    c.rng.pick(&[2, 3, 16, 17, 48, 65])
}

fn layer_norm(c: &mut CaseBuilder) -> Outputs {
    let (rows, extra, dim) = (c.rng.extent(), c.rng.extent(), width(c));
    let (x, [gamma, beta]) = (c.float([rows, extra, dim]), c.floats([dim]));
    differentiable([x.layer_norm(&gamma, &beta, EPSILON)])
}

/// The first output is unused.
fn only_statistics(c: &mut CaseBuilder) -> Outputs {
    let (rows, dim) = (c.rng.extent(), width(c));
    let (x, [gamma, beta]) = (c.float([rows, dim]), c.floats([dim]));
    let mut outputs = x.apply_outputs(LayerNorm::new(EPSILON), &[&gamma, &beta], 3);
    forward(outputs.split_off(1))
}

fn add_layer_norm(c: &mut CaseBuilder) -> Outputs {
    let (rows, dim) = (c.rng.extent(), width(c));
    let ([x, y], [gamma, beta]) = (c.floats([rows, dim]), c.floats([dim]));
    forward([x.apply(AddLayerNorm(LayerNorm::new(EPSILON)), &[&y, &gamma, &beta])])
}

fn layer_norm_grad_add(c: &mut CaseBuilder) -> Outputs {
    let (rows, dim) = (c.rng.extent(), width(c));
    let ([dy, x, residual], gamma, [mean, rstd]) = (c.floats([rows, dim]), c.float([dim]), c.floats([rows]));
    let used = c.rng.pick(&[1, 3]);
    forward(dy.apply_outputs(
        LayerNormGradAdd(LayerNormGrad { centred: true }),
        &[&x, &gamma, &mean, &rstd, &residual],
        used,
    ))
}

fn residual_branch(c: &mut CaseBuilder) -> Outputs {
    let (rows, dim) = (c.rng.extent(), width(c));
    let (x, [gamma, beta]) = (c.float([rows, dim]), c.floats([dim]));
    differentiable([&x + &x.layer_norm(&gamma, &beta, EPSILON)])
}

fn stochastic_depth(c: &mut CaseBuilder, norm: LayerNorm) -> Outputs {
    let (samples, rows, dim) = (c.rng.pick(&[2, 5, 9]), c.rng.extent(), c.rng.pick(&[16, 17, 48, 65]));
    let [x, y] = c.floats([samples, rows, dim]);
    let (weight, [bias, gamma, beta]) = (c.float([dim, dim]), c.floats([dim]));
    // Keeps the branch at the magnitude of `x`, so that the loss has the magnitude of one element.
    let y = y.scale(1.0 / (dim as f32).sqrt());
    let branch = y.linear(&weight, Some(&bias)).dropout(0.3, Granularity::Sample, &c.seed);
    let sum = if c.rng.flip() { &x + &branch } else { &branch + &x };
    differentiable([&sum + &sum.apply(norm, &[&gamma, &beta])])
}

fn rms_norm(c: &mut CaseBuilder) -> Outputs {
    let (rows, extra, dim) = (c.rng.extent(), c.rng.extent(), width(c));
    let (x, gamma) = (c.float([rows, extra, dim]), c.float([dim]));
    differentiable([x.rms_norm(&gamma, EPSILON)])
}

fn add_rms_norm(c: &mut CaseBuilder) -> Outputs {
    let (rows, dim) = (c.rng.extent(), width(c));
    let ([x, y], [gamma, beta]) = (c.floats([rows, dim]), c.floats([dim]));
    forward([x.apply(AddLayerNorm(LayerNorm::rms(EPSILON)), &[&y, &gamma, &beta])])
}

fn group_norm(c: &mut CaseBuilder) -> Outputs {
    let r = &mut c.rng;
    let (b, h, w, groups) = (r.extent(), r.pick(&[1, 2, 5]), r.pick(&[1, 3]), r.pick(&[1, 2, 4]));
    let channels = groups * r.pick(&[2, 3, 4, 8, 17]);
    let (x, [gamma, beta]) = (c.float([b, h, w, channels]), c.floats([channels]));
    differentiable([x.group_norm(GroupNorm { groups, epsilon: EPSILON }, &gamma, &beta)])
}

/// The output, `mean`, `rstd` and the new running statistics.
fn normalise_batch(c: &mut CaseBuilder, x: &Tensor) -> Vec<Tensor> {
    let channels = x.shape().last();
    let [gamma, beta] = c.floats([channels]);
    let [mean, variance] = [(); 2].map(|()| c.constant([channels]));
    x.apply_outputs(BatchNorm { epsilon: EPSILON, momentum: 0.1 }, &[&gamma, &beta, &mean, &variance], 5)
}

fn batch_norm(c: &mut CaseBuilder) -> Outputs {
    let (b, h, channels) = (c.rng.pick(&[2, 3, 8, 33]), c.rng.extent(), c.rng.wide());
    let x = c.float([b, h, channels]);
    let outputs = normalise_batch(c, &x);
    first_differentiable([0, 3, 4].map(|i| outputs[i].clone()))
}

/// Devices may fuse a batch norm with the sum and the relu after it, and their gradients.
fn batch_norm_relu(c: &mut CaseBuilder) -> Outputs {
    let (b, h, channels) = (c.rng.pick(&[3, 8, 33]), c.rng.extent(), c.rng.wide());
    let [x, y, z] = c.floats([b, h, channels]);
    let mut normed = |x: &Tensor| normalise_batch(c, x)[0].clone();
    let alone = normed(&x).activation(Activation::Relu);
    let two = (normed(&y) + normed(&x)).activation(Activation::Relu);
    let sum = (&z + &normed(&y)).activation(Activation::Relu);
    // Two consumers, so that its gradient is a sum.
    differentiable([alone, two, sum.scale(0.5), sum])
}

/// Two parts with common statistics; the scaled sum of the results has the gradients of both.
fn sync_batch_norm(c: &mut CaseBuilder) -> Outputs {
    let (b, h, channels) = (c.rng.pick(&[1, 3, 8, 33]), c.rng.extent(), c.rng.wide());
    let (xs, [gamma, beta]): ([Tensor; 2], _) = (c.floats([b, h, channels]), c.floats([channels]));
    let [running_mean, running_variance] = [(); 2].map(|()| c.constant([channels]));
    let moments = xs.each_ref().map(|x| x.apply_outputs(BatchMoments, &[], 2));
    let mean_sum = moments[0][0].apply(PartSum, &[&moments[1][0]]);
    let [first, second] = moments.each_ref().map(|m| m[0].apply(VarianceAbout { parts: 2 }, &[&m[1], &mean_sum]));
    let variance_sum = first.apply(PartSum, &[&second]);
    let norm = BatchNorm { epsilon: EPSILON, momentum: 0.1 };
    let op = SyncBatchNorm { norm, synced: SyncedParts { parts: 2, own: 2, exchange: false } };
    let operands = [&xs[1], &gamma, &gamma, &beta, &beta, &mean_sum, &variance_sum, &running_mean, &running_variance];
    let outputs = xs[0].apply_outputs(op, &operands, 6);
    let sum = &outputs[0].scale(2.0) + &outputs[1];
    first_differentiable([sum, outputs[4].clone(), outputs[5].clone()])
}

fn softmax(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    differentiable([c.float(shape).softmax()])
}
