//! Optimiser updates, in place: outputs hold the old parameter and state when a kernel starts.

use vit_graph::Type;
use vit_graph::ops::{CLIP_EPSILON, OptimiserUpdate};

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
                let chunk = &x[task * TASK..length.min((task + 1) * TASK)];
                let mut lanes = [0.0f32; LANES];
                let (whole, tail) = chunk.as_chunks::<LANES>();
                for values in whole {
                    lanes.iter_mut().zip(values).for_each(|(lane, v)| *lane += v * v);
                }
                lanes.iter_mut().zip(tail).for_each(|(lane, v)| *lane += v * v);
                sum[0] = lanes.iter().sum();
            });
            rest = others;
        }
        let total: f64 = workspace[..partials].iter().map(|&s| f64::from(s)).sum();
        outputs[0][0] = total.sqrt() as f32;
    })
    .with_workspace(partials)
}

/// The factor that clips gradients; `None` if the norm is not finite, and the step must change nothing.
fn clip_factor(clip: Option<f32>, norm: f32) -> Option<f32> {
    norm.is_finite().then(|| clip.map_or(1.0, |clip| (clip / (norm + CLIP_EPSILON)).min(1.0)))
}

pub(super) fn optimiser_update(op: &OptimiserUpdate, parameter: &Type) -> Lowered {
    let op = *op;
    Lowered::new(move |p, inputs, outputs, workspace| {
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
