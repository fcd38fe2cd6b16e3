//! Random indices of tokens, gathering and scattering by index.

use vit_graph::Tensor;
use vit_graph::ops::{ColourClass, Constant};

use crate::build::{CaseBuilder, Outputs, Table, differentiable, first_differentiable, forward};

pub(super) fn table(t: &mut Table) {
    t.two("random subset of tokens", subset);
    t.two("tokens in a random order and back", there_and_back);
    t.two("corrupted tokens", corruption);
    t.two("tokens by repeated indices", repeated);
    t.two("classes of colours", colours);
}

/// Samples, tokens, width, and the size of a subset.
fn extents(c: &mut CaseBuilder) -> [usize; 4] {
    let (samples, tokens) = (c.rng.extent(), c.rng.pick(&[2usize, 9, 49, 300]));
    let width = c.rng.extent() * c.rng.pick(&[1, 8]);
    [samples, tokens, width, c.rng.pick(&[1, tokens.div_ceil(2), tokens])]
}

/// The index of every token, as a value that shows which were gathered.
fn indices(c: &CaseBuilder, samples: usize, tokens: usize) -> Tensor {
    let values = (0..samples * tokens).map(|i| (i % tokens) as f32).collect();
    c.seed.constant(Constant::f32([samples, tokens, 1], values))
}

fn subset(c: &mut CaseBuilder) -> Outputs {
    let [samples, tokens, width, chosen] = extents(c);
    let order = c.seed.random_partition(samples, tokens, chosen);
    let x = c.float([samples, tokens, width]);
    first_differentiable([
        x.gather_tokens(&order, 0..chosen),
        indices(c, samples, tokens).gather_tokens(&order, 0..tokens),
    ])
}

/// A masked autoencoder's tokens: a subset, changed, between others at the places of the rest.
fn there_and_back(c: &mut CaseBuilder) -> Outputs {
    let [samples, tokens, width, chosen] = extents(c);
    let order = c.seed.random_partition(samples, tokens, chosen);
    let kept = c.float([samples, tokens, width]).gather_tokens(&order, 0..chosen).scale(1.5);
    let rest = c.float([1, 1, width]).broadcast([samples, tokens - chosen, width]);
    let all = if chosen == tokens { kept.clone() } else { Tensor::concat(&[&kept, &rest], 1) };
    differentiable([all.scatter_tokens(&order, 0, tokens), kept.scatter_tokens(&order, tokens - chosen, tokens)])
}

fn corruption(c: &mut CaseBuilder) -> Outputs {
    let [samples, tokens, width, corrupted] = extents(c);
    let order = c.seed.random_partition(samples, tokens, corrupted);
    let sources = order.token_corruption(corrupted, &c.seed);
    let mask = c.float([1, 1, width]).broadcast([samples, 1, width]);
    let x = Tensor::concat(&[&c.float([samples, tokens, width]), &mask], 1);
    first_differentiable([
        x.gather_tokens(&sources, 0..tokens),
        indices(c, samples, tokens + 1).gather_tokens(&sources, 0..tokens),
    ])
}

/// Some indices are outside the tokens.
fn repeated(c: &mut CaseBuilder) -> Outputs {
    let [samples, tokens, width, _] = extents(c);
    let (places, count) = (70, 65);
    let order = (0..samples * places).map(|_| (c.rng.word() as usize % (tokens + 2)) as i32 - 1).collect();
    let order = c.seed.constant(Constant::i32([samples, places], order));
    let (x, rows) = (c.float([samples, tokens, width]), c.float([samples, count, width]));
    differentiable([x.gather_tokens(&order, 3..3 + count), rows.scatter_tokens(&order, 5, tokens)])
}

fn colours(c: &mut CaseBuilder) -> Outputs {
    let (samples, channels) = (c.rng.extent(), c.rng.pick(&[1usize, 3]));
    let (cell, grid) = ([c.rng.extent(), c.rng.extent()], [c.rng.extent(), c.rng.extent()]);
    let image = c.float([samples, channels, grid[0] * cell[0], grid[1] * cell[1]]);
    let (mean, std) = (vec![0.45, 0.5, 0.4][..channels].to_vec(), vec![0.25, 0.3, 0.2][..channels].to_vec());
    let classes = image.apply(ColourClass { cell, mean, std }, &[]);
    // As values: in a graph, classes are indices.
    let count = 1 << (3 * channels);
    let names = c.seed.constant(Constant::f32([count], (0..count).map(|class| class as f32).collect()));
    let order = c.seed.random_partition(samples, grid[0] * grid[1], 1);
    let shuffled = classes.reshape([samples, grid[0] * grid[1], 1]).gather_tokens(&order, 0..grid[0] * grid[1]);
    forward([names.gather(&classes), names.gather(&shuffled)])
}
