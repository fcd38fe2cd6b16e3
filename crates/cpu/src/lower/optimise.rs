//! Optimiser updates, in place.

use vit_graph::Type;
use vit_graph::ops::{Adam, CLIP_EPSILON, Sgd};

use super::{Lowered, TASK};
use crate::optimiser::{AdamNumbers, AdamStep};

/// Partial sums of one task, so that the compiler can use vectors and rounding errors stay small.
const LANES: usize = 16;

pub(super) fn global_norm(inputs: &[Type]) -> Lowered {
    let lengths: Vec<usize> = inputs.iter().map(|t| t.shape.elements()).collect();
    let partials = lengths.iter().map(|n| n.div_ceil(TASK)).sum();
    Lowered::new(move |p, inputs, outputs, workspace| {
        let mut rest = &mut workspace[..partials];
        for (x, &length) in inputs.iter().zip(&lengths) {
            let (own, others) = rest.split_at_mut(length.div_ceil(TASK));
            p.pool.run_chunks(own, 1, &|task, sum| {
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

/// What gradients are scaled by; nothing where the norm is not finite, and so nothing is to change.
fn clip_factor(clip: Option<f32>, norm: f32) -> Option<f32> {
    norm.is_finite().then(|| clip.map_or(1.0, |clip| (clip / (norm + CLIP_EPSILON)).min(1.0)))
}

/// The new parameter, mean and variance take the place of the old ones.
pub(super) fn adam(op: &Adam, parameter: &Type) -> Lowered {
    let (op, elements) = (*op, parameter.shape.elements());
    let tasks = elements.div_ceil(TASK);
    let mut lowered = Lowered::new(move |p, inputs, outputs, workspace| {
        let (gradient, rate, step) = (inputs[1], inputs[4][0], f64::from(inputs[5][0]));
        let Some(factor) = clip_factor(op.clip, inputs[6][0]) else { return };
        let [correct1, correct2] = [op.beta1, op.beta2].map(|beta| 1.0 - f64::from(beta).powf(step));
        let (scale, root) = ((1.0 / correct1) as f32, (1.0 / correct2.sqrt()) as f32);
        let (coupled, decoupled) = if op.decoupled { (0.0, op.weight_decay) } else { (op.weight_decay, 0.0) };
        let direction = |parameter: f32, mean: f32, variance: f32| {
            scale * mean / (variance.sqrt() * root + op.epsilon) + decoupled * parameter
        };
        let [parameter, mean, variance] = outputs else { unreachable!("three outputs") };
        let shared = Tasks::new([parameter, mean, variance]);
        let moments = |parameter: f32, gradient: f32, mean: &mut f32, variance: &mut f32| {
            let g = factor * gradient + coupled * parameter;
            *mean = op.beta1 * *mean + (1.0 - op.beta1) * g;
            *variance = op.beta2 * *variance + (1.0 - op.beta2) * g * g;
            direction(parameter, *mean, *variance)
        };
        let own = |task: usize| {
            let gradient = &gradient[task * TASK..elements.min((task + 1) * TASK)];
            let [parameter, mean, variance] = shared.chunk(task * TASK, gradient.len());
            parameter.iter_mut().zip(gradient).zip(mean.iter_mut().zip(variance))
        };
        if !op.trust_ratio {
            let numbers = AdamNumbers {
                beta1: op.beta1,
                beta2: op.beta2,
                epsilon: op.epsilon,
                rate,
                factor,
                corrections: [scale, root],
                decays: [coupled, decoupled],
            };
            p.pool.run(tasks, &|task| {
                let gradient = &gradient[task * TASK..elements.min((task + 1) * TASK)];
                let [parameter, mean, variance] = shared.chunk(task * TASK, gradient.len());
                p.isa.dispatch(AdamStep { numbers, parameter, gradient, mean, variance });
            });
            return;
        }
        // The length of the whole update has to be known before the first parameter can move.
        p.pool.run_chunks(&mut workspace[..2 * tasks], 2, &|task, squares| {
            let mut lanes = [[0.0f32; LANES]; 2];
            for (i, ((parameter, gradient), (mean, variance))) in own(task).enumerate() {
                let update = moments(*parameter, *gradient, mean, variance);
                lanes[0][i % LANES] += *parameter * *parameter;
                lanes[1][i % LANES] += update * update;
            }
            squares.iter_mut().zip(lanes).for_each(|(sum, lanes)| *sum = lanes.iter().sum());
        });
        let length =
            |which: usize| workspace[which..2 * tasks].iter().step_by(2).map(|&s| f64::from(s)).sum::<f64>().sqrt();
        let ratio = match (length(0), length(1)) {
            (parameter, update) if parameter > 0.0 && update > 0.0 => (parameter / update) as f32,
            _ => 1.0,
        };
        p.pool.run(tasks, &|task| {
            for ((parameter, _), (mean, variance)) in own(task) {
                *parameter -= rate * ratio * direction(*parameter, *mean, *variance);
            }
        });
    })
    .with_workspace(if op.trust_ratio { 2 * tasks } else { 0 });
    lowered.in_place = &[(0, 0), (2, 1), (3, 2)];
    lowered
}

/// The new parameter and buffer take the place of the old ones.
pub(super) fn sgd(op: &Sgd) -> Lowered {
    let op = *op;
    let mut lowered = Lowered::new(move |p, inputs, outputs, _| {
        let (gradient, rate, step) = (inputs[1], inputs[3][0], inputs[4][0]);
        let Some(factor) = clip_factor(op.clip, inputs[5][0]) else { return };
        let [keep, add, of_buffer, of_gradient] = op.weights(step);
        let [parameter, buffer] = outputs else { unreachable!("two outputs") };
        let shared = Tasks::new([parameter, buffer]);
        p.pool.run(gradient.len().div_ceil(TASK), &|task| {
            let start = task * TASK;
            let gradient = &gradient[start..gradient.len().min(start + TASK)];
            let [parameter, buffer] = shared.chunk(start, gradient.len());
            for ((parameter, buffer), gradient) in parameter.iter_mut().zip(buffer.iter_mut()).zip(gradient) {
                let g = factor * gradient + op.weight_decay * *parameter;
                *buffer = keep * *buffer + add * g;
                *parameter -= rate * (of_buffer * *buffer + of_gradient * g);
            }
        });
    });
    lowered.in_place = &[(0, 0), (2, 1)];
    lowered
}

/// The new average takes the place of the old one.
pub(super) fn moving_average() -> Lowered {
    let mut lowered = Lowered::new(move |p, inputs, outputs, _| {
        let (value, decay) = (inputs[1], inputs[2][0]);
        if !inputs[3][0].is_finite() {
            return;
        }
        p.pool.run_chunks(&mut *outputs[0], TASK, &|task, average| {
            let value = &value[task * TASK..][..average.len()];
            average.iter_mut().zip(value).for_each(|(a, v)| *a = decay * *a + (1.0 - decay) * v);
        });
    });
    lowered.in_place = &[(0, 0)];
    lowered
}

/// The new value takes the place of the old one, or does not.
pub(super) fn guarded_update() -> Lowered {
    let mut lowered = Lowered::new(move |_, inputs, outputs, _| {
        if inputs[2][0].is_finite() {
            outputs[0].copy_from_slice(inputs[1]);
        }
    });
    lowered.in_place = &[(0, 0)];
    lowered
}

/// Equally long slices that tasks share without overlapping.
struct Tasks<const N: usize>([*mut f32; N], usize);

// SAFETY: `chunk` hands out parts that tasks do not share: each task asks for its own range only.
unsafe impl<const N: usize> Sync for Tasks<N> {}

impl<const N: usize> Tasks<N> {
    fn new(slices: [&mut [f32]; N]) -> Self {
        let length = slices[0].len();
        assert!(slices.iter().all(|s| s.len() == length), "a parameter and its state have one length");
        Tasks(slices.map(<[f32]>::as_mut_ptr), length)
    }

    #[expect(clippy::mut_from_ref, reason = "tasks write disjoint ranges, which the type system cannot see")]
    fn chunk(&self, start: usize, length: usize) -> [&mut [f32]; N] {
        assert!(start + length <= self.1, "a task stays inside the parameter");
        // SAFETY: the range is inside all slices, and every task has a range of its own.
        self.0.map(|slice| unsafe { std::slice::from_raw_parts_mut(slice.add(start), length) })
    }
}
