//! Optimiser updates, in place.

use vit_graph::Type;
use vit_graph::ops::{AdamW, CLIP_EPSILON};

use super::{Lowered, TASK};

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

/// The new parameter, mean and variance take the place of the old ones.
pub(super) fn adamw(op: &AdamW) -> Lowered {
    let op = *op;
    let mut lowered = Lowered::new(move |p, inputs, outputs, _| {
        let (gradient, rate, step) = (inputs[1], inputs[4][0], f64::from(inputs[5][0]));
        let factor = op.clip.map_or(1.0, |clip| (clip / (inputs[6][0] + CLIP_EPSILON)).min(1.0));
        let [correct1, correct2] = [op.beta1, op.beta2].map(|beta| 1.0 - f64::from(beta).powf(step));
        let step_size = (f64::from(rate) / correct1) as f32;
        let root = (1.0 / correct2.sqrt()) as f32;
        let keep = (1.0 - f64::from(rate) * f64::from(op.weight_decay)) as f32;
        let [parameter, mean, variance] = outputs else { unreachable!("three outputs") };
        let tasks = Tasks::new(parameter, mean, variance);
        p.pool.run(gradient.len().div_ceil(TASK), &|task| {
            let start = task * TASK;
            let gradient = &gradient[start..gradient.len().min(start + TASK)];
            let (parameter, mean, variance) = tasks.chunk(start, gradient.len());
            let moments = mean.iter_mut().zip(variance.iter_mut());
            for ((parameter, gradient), (mean, variance)) in parameter.iter_mut().zip(gradient).zip(moments) {
                let g = factor * gradient;
                *mean = op.beta1 * *mean + (1.0 - op.beta1) * g;
                *variance = op.beta2 * *variance + (1.0 - op.beta2) * g * g;
                *parameter = keep * *parameter - step_size * *mean / (variance.sqrt() * root + op.epsilon);
            }
        });
    });
    lowered.in_place = &[(0, 0), (2, 1), (3, 2)];
    lowered
}

/// Three equally long slices that tasks share without overlapping.
struct Tasks([*mut f32; 3], usize);

// SAFETY: `chunk` hands out parts that tasks do not share: each task asks for its own range only.
unsafe impl Sync for Tasks {}

impl Tasks {
    fn new(a: &mut [f32], b: &mut [f32], c: &mut [f32]) -> Self {
        assert!(a.len() == b.len() && b.len() == c.len(), "a parameter and its moments have one length");
        Tasks([a.as_mut_ptr(), b.as_mut_ptr(), c.as_mut_ptr()], a.len())
    }

    #[expect(clippy::mut_from_ref, reason = "tasks write disjoint ranges, which the type system cannot see")]
    fn chunk(&self, start: usize, length: usize) -> (&mut [f32], &mut [f32], &mut [f32]) {
        assert!(start + length <= self.1, "a task stays inside the parameter");
        // SAFETY: the range is inside all three slices, and every task has a range of its own.
        let part = |i: usize| unsafe { std::slice::from_raw_parts_mut(self.0[i].add(start), length) };
        (part(0), part(1), part(2))
    }
}
