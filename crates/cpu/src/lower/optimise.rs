//! Norms of gradients, and optimiser updates in place: the outputs hold the old parameter and state when a kernel
//! starts.

use vit_graph::Type;
use vit_graph::ops::{CLIP_EPSILON, OptimiserUpdate, SQUARES};

use super::{Lowered, TASK};
use crate::optimiser::{MovingAverageRule, StepScalars, optimiser_step, step_workspace, update};

/// Partial sums of one task: the compiler can use vectors, and rounding errors stay small.
const LANES: usize = 16;

pub(super) fn global_norm(inputs: &[Type]) -> Lowered {
    let lengths: Vec<usize> = inputs.iter().map(|t| t.shape.elements()).collect();
    let partials = lengths.iter().map(|n| n.div_ceil(TASK)).sum();
    Lowered::new(move |p, inputs, outputs, workspace| {
        let mut rest = &mut workspace[..partials];
        for (x, &length) in inputs.iter().zip(&lengths) {
            let (sums, others) = rest.split_at_mut(length.div_ceil(TASK));
            p.pool.run_chunks(sums, 1, &|task, sum| {
                sum[0] = sum_of_squares(&x[task * TASK..length.min((task + 1) * TASK)]);
            });
            rest = others;
        }
        outputs[0][0] = root_of_sum(&workspace[..partials]);
    })
    .with_workspace(partials)
}

fn sum_of_squares(chunk: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, tail) = chunk.as_chunks::<LANES>();
    for values in whole {
        lanes.iter_mut().zip(values).for_each(|(lane, v)| *lane += v * v);
    }
    lanes.iter_mut().zip(tail).for_each(|(lane, v)| *lane += v * v);
    lanes.iter().sum()
}

fn root_of_sum(sums: &[f32]) -> f32 {
    let total: f64 = sums.iter().map(|&s| f64::from(s)).sum();
    total.sqrt() as f32
}

/// Sums of the squares of a task's elements, each followed by a zero if the task has the elements of two sums.
pub(super) fn square_sums(x: &Type) -> Lowered {
    const { assert!(TASK == 2 * SQUARES) };
    let length = x.shape.elements();
    Lowered::new(move |p, inputs, outputs, _| {
        p.pool.run_chunks(outputs[0], TASK / SQUARES, &|task, sums| {
            sums.fill(0.0);
            sums[0] = sum_of_squares(&inputs[0][task * TASK..length.min((task + 1) * TASK)]);
        });
    })
}

/// The zeros between the sums change nothing.
pub(super) fn norm_of_sums(inputs: &[Type]) -> Lowered {
    let count = inputs.iter().map(|sums| sums.shape.elements()).sum();
    Lowered::new(move |_, inputs, outputs, workspace| {
        let mut rest = &mut workspace[..count];
        for sums in inputs {
            let (to, others) = rest.split_at_mut(sums.len());
            to.copy_from_slice(sums);
            rest = others;
        }
        outputs[0][0] = root_of_sum(&workspace[..count]);
    })
    .with_workspace(count)
}

/// The factor that clips gradients; `None` if the norm is not finite, and the step must change nothing.
fn clip_factor(clip: Option<f32>, norm: f32) -> Option<f32> {
    norm.is_finite().then(|| clip.map_or(1.0, |clip| (clip / (norm + CLIP_EPSILON)).min(1.0)))
}

pub(super) fn optimiser_update(op: &OptimiserUpdate, parameter: &Type) -> Lowered {
    let op = *op;
    Lowered::new(move |p, inputs, outputs, workspace| {
        let (inputs, op) = match inputs {
            [inputs @ .., factor] if op.scheduled_decay() => (inputs, op.with_decay_times(factor[0])),
            _ => (inputs, op),
        };
        let &[_, gradient, .., learning_rate, step, norm] = inputs else { unreachable!("six inputs or seven") };
        let Some(gradient_scale) = clip_factor(op.clip(), norm[0]) else { return };
        let scalars = StepScalars { learning_rate: learning_rate[0], step: step[0], gradient_scale };
        optimiser_step(&p.pool, p.isa, &op, scalars, gradient, outputs, workspace);
    })
    .with_workspace(step_workspace(op, parameter.shape.elements()))
    .in_place()
}

pub(super) fn moving_average() -> Lowered {
    Lowered::new(move |p, inputs, outputs, _| {
        let &[_, value, decay, norm] = inputs else { unreachable!("four inputs") };
        if norm[0].is_finite() {
            update(&p.pool, p.isa, MovingAverageRule { decay: decay[0] }, outputs[0], [value], []);
        }
    })
    .in_place()
}

pub(super) fn guarded_update() -> Lowered {
    Lowered::new(move |_, inputs, outputs, _| {
        let &[_, new, norm] = inputs else { unreachable!("three inputs") };
        if norm[0].is_finite() {
            outputs[0].copy_from_slice(new);
        }
    })
    .in_place()
}
