//! Random indices of tokens, gathering and scattering of tokens by index, and classes of colours.

use vit_graph::Type;
use vit_graph::ops::{ColourClass, GatherTokens, RandomPartition, ScatterTokens, TokenCorruption};

use super::Lowered;
use super::dropout::seed_of;
use crate::thread_pool::DisjointMut;

pub(super) fn random_partition(op: RandomPartition) -> Lowered {
    let RandomPartition { samples, tokens, .. } = op;
    Lowered::new(move |p, inputs, outputs, workspace| {
        let seed = seed_of(inputs[0]);
        let order = DisjointMut::new(bytemuck::cast_slice_mut(outputs[0]));
        let words = DisjointMut::new(bytemuck::cast_slice_mut(workspace));
        p.pool.run(samples, &|sample| {
            // SAFETY: the slices of different samples do not overlap.
            let (order, words) =
                unsafe { (order.slice(sample * tokens, tokens), words.slice(sample * tokens, tokens)) };
            op.order(seed, sample, words, order);
        });
    })
    .with_workspace(samples * tokens)
}

pub(super) fn token_corruption(op: TokenCorruption, order: &Type) -> Lowered {
    let tokens = order.shape[1].max(1);
    Lowered::new(move |_, inputs, outputs, _| {
        let seed = seed_of(inputs[1]);
        let order: &[i32] = bytemuck::cast_slice(inputs[0]);
        let sources: &mut [i32] = bytemuck::cast_slice_mut(outputs[0]);
        let samples = order.chunks_exact(tokens).zip(sources.chunks_exact_mut(tokens)).enumerate();
        samples.for_each(|(sample, (order, sources))| op.sources(seed, sample, order, sources));
    })
}

pub(super) fn gather_tokens(op: GatherTokens, x: &Type, order: &Type) -> Lowered {
    let (tokens, width, places) = (x.shape[1], x.shape[2].max(1), order.shape[1]);
    Lowered::new(move |p, inputs, outputs, _| {
        let order: &[i32] = bytemuck::cast_slice(inputs[1]);
        p.pool.run_chunks(&mut *outputs[0], (op.count * width).max(1), &|sample, y| {
            let order = &order[sample * places + op.start..][..op.count];
            for (&token, y) in order.iter().zip(y.chunks_exact_mut(width)) {
                match usize::try_from(token) {
                    Ok(token) if token < tokens => {
                        y.copy_from_slice(&inputs[0][(sample * tokens + token) * width..][..width]);
                    }
                    _ => y.fill(0.0),
                }
            }
        });
    })
}

pub(super) fn scatter_tokens(op: ScatterTokens, x: &Type, order: &Type) -> Lowered {
    let (count, width, places) = (x.shape[1], x.shape[2].max(1), order.shape[1]);
    Lowered::new(move |p, inputs, outputs, _| {
        let order: &[i32] = bytemuck::cast_slice(inputs[1]);
        p.pool.run_chunks(&mut *outputs[0], (op.tokens * width).max(1), &|sample, y| {
            y.fill(0.0);
            let order = &order[sample * places + op.start..][..count];
            let rows = inputs[0][sample * count * width..].chunks_exact(width);
            for (&token, x) in order.iter().zip(rows) {
                if let Some(token) = usize::try_from(token).ok().filter(|&token| token < op.tokens) {
                    y[token * width..][..width].iter_mut().zip(x).for_each(|(y, x)| *y += x);
                }
            }
        });
    })
}

pub(super) fn colour_class(op: &ColourClass, x: &Type, classes: &Type) -> Lowered {
    let op = op.clone();
    let [channels, height, width] = [1, 2, 3].map(|axis| x.shape[axis]);
    let [rows, columns] = [1, 2].map(|axis| classes.shape[axis]);
    let [high, wide] = op.cell;
    Lowered::new(move |p, inputs, outputs, _| {
        let classes: &mut [i32] = bytemuck::cast_slice_mut(outputs[0]);
        p.pool.run_chunks(classes, (rows * columns).max(1), &|sample, classes| {
            let image = &inputs[0][sample * channels * height * width..];
            for (cell, class) in classes.iter_mut().enumerate() {
                let first = cell / columns * high * width + cell % columns * wide;
                let line = |at: usize| image[at..][..wide].iter().map(|&v| f64::from(v));
                let sum = |c: usize| (0..high).flat_map(|y| line(c * height * width + first + y * width)).sum::<f64>();
                *class = op.class((0..channels).map(sum));
            }
        });
    })
}
