//! Kernels in plain Rust. Sums have independent lanes, which compilers vectorise.

use half::f16;
use half::slice::HalfFloatSliceExt;

const LANES: usize = 16;

pub(super) fn dot_f16(query: &[f32], rows: &[f16], scores: &mut [f32]) {
    let mut converted = vec![0.0; query.len()];
    for (row, score) in rows.chunks_exact(query.len()).zip(scores) {
        row.convert_to_f32_slice(&mut converted);
        *score = dot(query, &converted);
    }
}

pub(super) fn dot_i8(query: &[i16], rows: &[i8], scores: &mut [i32]) {
    for (row, score) in rows.chunks_exact(query.len()).zip(scores) {
        *score = query.iter().zip(row).map(|(q, v)| i32::from(*q) * i32::from(*v)).sum();
    }
}

pub(super) fn tile(dim: usize, a: &[f32], b: &[f32], scores: &mut [f32]) {
    let pairs = a.chunks_exact(dim).flat_map(|a| b.chunks_exact(dim).map(move |b| (a, b)));
    scores.iter_mut().zip(pairs).for_each(|(score, (a, b))| *score = dot(a, b));
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum::<f32>()
}
