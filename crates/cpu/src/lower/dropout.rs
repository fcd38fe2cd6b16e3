//! Dropout masks and random subsets of tokens, computed from seed and position wherever they are used, never stored.

use vit_graph::Type;
use vit_graph::ops::{Dropout, TokenSubset, TokenSubsetGrad};
use vit_graph::random::Seed;

use super::{Lowered, TASK};
use crate::thread_pool::DisjointMut;

/// The value of the graph's seed input.
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

    /// The factors of the decisions from `first` on, one per element or per sample: 0, or `1 / (1 - rate)`.
    pub fn factors(&self, first: u64, into: &mut [f32]) {
        let kept = 1.0 / (1.0 - self.rate);
        for (i, factor) in (first..).zip(into) {
            *factor = if self.seed.keeps(self.stream, i, self.rate) { kept } else { 0.0 };
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

pub(super) fn token_subset(op: TokenSubset, x: &Type) -> Lowered {
    let [samples, tokens, width] = [0, 1, 2].map(|axis| x.shape[axis]);
    Lowered::new(move |p, inputs, outputs, workspace| {
        let seed = seed_of(inputs[1]);
        let (y, words) = (DisjointMut::new(&mut *outputs[0]), DisjointMut::new(bytemuck::cast_slice_mut(workspace)));
        p.pool.run(samples, &|sample| {
            // SAFETY: the slices of different samples do not overlap.
            let (y, words) =
                unsafe { (y.slice(sample * op.keep * width, op.keep * width), words.slice(sample * tokens, tokens)) };
            for (token, y) in op.kept(seed, sample, words).zip(y.chunks_exact_mut(width.max(1))) {
                y.copy_from_slice(&inputs[0][(sample * tokens + token) * width..][..width]);
            }
        });
    })
    .with_workspace(samples * tokens)
}

pub(super) fn token_subset_grad(op: TokenSubsetGrad, dy: &Type) -> Lowered {
    let (samples, tokens, keep, width) = (dy.shape[0], op.tokens, op.subset.keep, dy.shape[2]);
    Lowered::new(move |p, inputs, outputs, workspace| {
        let seed = seed_of(inputs[1]);
        let (dx, words) = (DisjointMut::new(&mut *outputs[0]), DisjointMut::new(bytemuck::cast_slice_mut(workspace)));
        p.pool.run(samples, &|sample| {
            // SAFETY: the slices of different samples do not overlap.
            let (dx, words) =
                unsafe { (dx.slice(sample * tokens * width, tokens * width), words.slice(sample * tokens, tokens)) };
            dx.fill(0.0);
            for (place, token) in op.subset.kept(seed, sample, words).enumerate() {
                dx[token * width..][..width].copy_from_slice(&inputs[0][(sample * keep + place) * width..][..width]);
            }
        });
    })
    .with_workspace(samples * tokens)
}
