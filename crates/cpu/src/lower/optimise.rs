//! Optimiser updates, in place: outputs hold the old parameter and state when a kernel starts.

use vit_graph::Type;
use vit_graph::ops::{Adam, CLIP_EPSILON, Sgd};

use super::{Lowered, TASK};
use crate::optimiser::{AdamRule, MovingAverageRule, SgdRule, lamb, lamb_workspace, update};

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

/// The factor that clips gradients; `None` where the norm is not finite, and the step must change nothing.
fn clip_factor(clip: Option<f32>, norm: f32) -> Option<f32> {
    norm.is_finite().then(|| clip.map_or(1.0, |clip| (clip / (norm + CLIP_EPSILON)).min(1.0)))
}

pub(super) fn adam(op: &Adam, parameter: &Type) -> Lowered {
    let op = *op;
    let workspace = if op.trust_ratio { lamb_workspace(parameter.shape.elements()) } else { 0 };
    Lowered::new(move |p, inputs, outputs, workspace| {
        let &[_, gradient, _, _, learning_rate, step, norm] = inputs else { unreachable!("seven inputs") };
        let [parameter, mean, variance] = outputs else { unreachable!("three outputs") };
        let Some(gradient_scale) = clip_factor(op.clip, norm[0]) else { return };
        let [correct1, correct2] = [op.beta1, op.beta2].map(|beta| 1.0 - f64::from(beta).powf(f64::from(step[0])));
        let (gradient_decay, update_decay) = if op.decoupled { (0.0, op.weight_decay) } else { (op.weight_decay, 0.0) };
        let rule = AdamRule {
            learning_rate: learning_rate[0],
            beta1: op.beta1,
            beta2: op.beta2,
            epsilon: op.epsilon,
            gradient_scale,
            mean_correction: (1.0 / correct1) as f32,
            root_correction: (1.0 / correct2.sqrt()) as f32,
            gradient_decay,
            update_decay,
        };
        if op.trust_ratio {
            lamb(&p.pool, p.isa, rule, parameter, gradient, [mean, variance], workspace);
        } else {
            update(&p.pool, p.isa, rule, parameter, [gradient], [mean, variance]);
        }
    })
    .with_workspace(workspace)
    .in_place(&[(0, 0), (2, 1), (3, 2)])
}

pub(super) fn sgd(op: &Sgd) -> Lowered {
    let op = *op;
    Lowered::new(move |p, inputs, outputs, _| {
        let &[_, gradient, _, learning_rate, step, norm] = inputs else { unreachable!("six inputs") };
        let [parameter, buffer] = outputs else { unreachable!("two outputs") };
        let Some(gradient_scale) = clip_factor(op.clip, norm[0]) else { return };
        let [old_buffer, add_gradient, of_buffer, of_gradient] = op.weights(step[0]);
        let rule = SgdRule {
            learning_rate: learning_rate[0],
            weight_decay: op.weight_decay,
            gradient_scale,
            buffer_weights: [old_buffer, add_gradient],
            update_weights: [of_buffer, of_gradient],
        };
        update(&p.pool, p.isa, rule, parameter, [gradient], [buffer]);
    })
    .in_place(&[(0, 0), (2, 1)])
}

pub(super) fn moving_average() -> Lowered {
    Lowered::new(move |p, inputs, outputs, _| {
        let &[_, value, decay, norm] = inputs else { unreachable!("four inputs") };
        if norm[0].is_finite() {
            update(&p.pool, p.isa, MovingAverageRule { decay: decay[0] }, outputs[0], [value], []);
        }
    })
    .in_place(&[(0, 0)])
}

pub(super) fn guarded_update() -> Lowered {
    Lowered::new(move |_, inputs, outputs, _| {
        if inputs[2][0].is_finite() {
            outputs[0].copy_from_slice(inputs[1]);
        }
    })
    .in_place(&[(0, 0)])
}
