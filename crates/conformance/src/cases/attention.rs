//! Attention.

use vit_graph::ops::{Attention, CosineQkv, Dropout, Granularity};

use crate::build::{CaseBuilder, Outputs, Table, differentiable, first_differentiable, forward};

pub(super) fn table(t: &mut Table) {
    let variants = [
        (true, false, false),
        (true, true, false),
        (false, false, false),
        (false, true, false),
        (false, true, true),
        (true, false, true),
    ];
    t.each("attention", variants, attention);
    t.each("attention in windows", [1, 3], in_windows);
    t.one("attention, only its weights", only_weights);
    t.two("cosine attention", cosine);
}

fn attention(c: &mut CaseBuilder, (packed, bias, dropout): (bool, bool, bool)) -> Outputs {
    let r = &mut c.rng;
    let (heads, head_dim) = (r.pick(&[1, 2, 3]), r.pick(&[1, 3, 8, 16, 20, 64]));
    let groups = r.pick(&[1, 2]);
    let batch = groups * r.pick(&[1, 2]);
    let queries = r.pick(&[1, 2, 5, 17, 37]);
    let keys = if packed { queries } else { r.pick(&[1, 3, 16, 35]) };
    let width = heads * head_dim;
    let dropout =
        dropout.then(|| Dropout { rate: 0.3, stream: c.seed.random_stream(), granularity: Granularity::Element });
    let op = Attention { heads, scale: 1.0 / (head_dim as f32).sqrt(), packed, bias, dropout };
    let q = c.float([batch, queries, if packed { 3 * width } else { width }]);
    let mut others = Vec::new();
    if !packed {
        others.extend(c.floats::<2>([batch, keys, width]));
    }
    others.extend(bias.then(|| c.float([groups, heads, queries, keys])));
    others.extend(dropout.map(|_| c.seed.clone()));
    first_differentiable(q.attention(op, &others.iter().collect::<Vec<_>>()))
}

/// A bias for each group of samples, and sequence lengths that are no multiple of a tile.
fn in_windows(c: &mut CaseBuilder, groups: usize) -> Outputs {
    let r = &mut c.rng;
    let (heads, head_dim) = (r.pick(&[1, 2]), r.pick(&[24, 32, 64]));
    let (tokens, each) = (r.pick(&[9, 49, 49, 64, 65]), r.pick(&[1, 2, 3]));
    let op = Attention { heads, scale: 1.0 / (head_dim as f32).sqrt(), packed: true, bias: true, dropout: None };
    // Inputs and outputs of a graph are f32 on every device; values between them may be bf16.
    let qkv = c.float([groups * each, tokens, 3 * heads * head_dim]).scale(0.5);
    let bias = c.float([groups, heads, tokens, tokens]);
    let bias = if c.rng.flip() { bias.scale(0.5) } else { bias };
    let [out, _] = qkv.attention(op, &[&bias]);
    differentiable([out.scale(2.0)])
}

/// Normalised queries and keys, by themselves and in an attention.
fn cosine(c: &mut CaseBuilder) -> Outputs {
    let (heads, head_dim) = (c.rng.pick(&[1, 2, 3]), c.rng.pick(&[3, 8, 20, 32]));
    let (batch, tokens) = (c.rng.pick(&[1, 3]), c.rng.pick(&[1, 5, 49]));
    let qkv = c.float([batch, tokens, 3 * heads * head_dim]);
    let normalised = qkv.apply(CosineQkv { heads }, &[&c.float([heads])]);
    let op = Attention { heads, scale: 1.0, packed: true, bias: false, dropout: None };
    let [out, _] = normalised.attention(op, &[]);
    differentiable([normalised, out])
}

/// The first output is unused.
fn only_weights(c: &mut CaseBuilder) -> Outputs {
    let (heads, tokens) = (c.rng.pick(&[1, 3]), c.rng.pick(&[1, 5, 37]));
    let op = Attention { heads, scale: 0.5, packed: true, bias: false, dropout: None };
    let [_, weights] = c.float([2, tokens, 3 * heads * 8]).attention(op, &[]);
    forward([weights])
}
