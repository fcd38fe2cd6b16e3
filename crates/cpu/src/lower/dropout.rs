//! Dropout masks, computed from seed, step and position wherever they are used, never stored.

use vit_graph::Type;
use vit_graph::ops::Dropout;
use vit_graph::random::Seed;

use super::{Lowered, TASK};

/// The value of the graph's seed input (seed and step number), whose i32 are passed as the bits of f32.
pub(super) fn seed_of(elements: &[f32]) -> Seed {
    let words: &[i32] = bytemuck::cast_slice(elements);
    Seed([words[0], words[1], words[2], words[3]])
}

/// The mask of one dropout in one run.
pub(super) struct DropoutMask {
    seed: Seed,
    stream: u32,
    rate: f32,
}

impl DropoutMask {
    /// `seed` is the value of the graph's seed input.
    pub fn new(op: Dropout, seed: &[f32]) -> Self {
        DropoutMask { seed: seed_of(seed), stream: op.stream, rate: op.rate }
    }

    /// Elements of the mask from `first` on, one per element (dropout) or per sample (stochastic depth): 0, or
    /// `1 / (1 - rate)`.
    pub fn factors(&self, first: u64, into: &mut [f32]) {
        let scale = 1.0 / (1.0 - self.rate);
        for (i, factor) in (first..).zip(into) {
            *factor = if self.seed.keeps(self.stream, i, self.rate) { scale } else { 0.0 };
        }
    }
}

pub(super) fn dropout(op: Dropout, x: &Type) -> Lowered {
    let per_decision = op.elements_per_decision(x).max(1);
    Lowered::new(move |p, inputs, outputs, _| {
        let mask = DropoutMask::new(op, inputs[1]);
        p.pool.run_chunks(&mut *outputs[0], TASK, &|chunk, out| {
            let mut factor = [0.0];
            let mut decided = None;
            for (i, out) in (chunk * TASK..).zip(out) {
                let decision = (i / per_decision) as u64;
                if decided != Some(decision) {
                    mask.factors(decision, &mut factor);
                    decided = Some(decision);
                }
                *out = factor[0] * inputs[0][i];
            }
        });
    })
}
