//! Queries and keys of cosine attention, and their gradient: vectors of one head are normalised one by one.

use vit_graph::ops::LEAST_LENGTH;

use crate::isa::Isa;
use crate::simd::{Kernel, Simd, row};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// Rows of `qkv` in one task: about 16 Ki elements.
fn chunk_rows(width: usize) -> usize {
    (16 * 1024 / width.max(1)).max(1)
}

/// The shape of `qkv [rows, 3, heads, head_dim]`.
#[derive(Clone, Copy)]
pub(crate) struct QkvShape {
    pub heads: usize,
    pub head_dim: usize,
}

impl QkvShape {
    fn width(self) -> usize {
        3 * self.heads * self.head_dim
    }

    /// The length that vector `vector` of a row gets: the scale of a query's head, 1 for a key; `None` for a value,
    /// which keeps its own.
    #[inline(always)]
    fn length(self, vector: usize, scale: &[f32]) -> Option<f32> {
        match vector / self.heads {
            0 => Some(scale[vector]),
            1 => Some(1.0),
            _ => None,
        }
    }
}

/// The larger of a vector's length and the least that it is divided by; a NaN is kept.
#[inline(always)]
fn divisor<S: Simd>(s: S, x: &[f32]) -> f32 {
    let length = row::dot(s, x, x).sqrt();
    if length < LEAST_LENGTH { LEAST_LENGTH } else { length }
}

/// Queries times `scale / length`, keys divided by their length, values copied.
pub(crate) fn normalise(pool: &ThreadPool, isa: Isa, shape: QkvShape, qkv: &[f32], scale: &[f32], out: &mut [f32]) {
    let chunk = chunk_rows(shape.width()) * shape.width();
    pool.run_chunks(out, chunk, &|i, out| {
        isa.dispatch(NormaliseRows { shape, qkv: &qkv[i * chunk..][..out.len()], scale, out });
    });
}

struct NormaliseRows<'a> {
    shape: QkvShape,
    qkv: &'a [f32],
    scale: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for NormaliseRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.out.copy_from_slice(self.qkv);
        for row in self.out.chunks_exact_mut(self.shape.width()) {
            for (vector, x) in row.chunks_exact_mut(self.shape.head_dim).enumerate() {
                if let Some(length) = self.shape.length(vector, self.scale) {
                    let factor = length / divisor(s, x);
                    row::scale(s, x, factor);
                }
            }
        }
    }
}

/// The gradient: `dx = s / length · (dy - x̂ (x̂ · dy))`, and `x̂ · dy` of every query, `[rows, heads]`, if consumed.
pub(crate) fn normalise_grad(
    pool: &ThreadPool,
    isa: Isa,
    shape: QkvShape,
    [dy, qkv, scale]: [&[f32]; 3],
    dx: &mut [f32],
    dots: Option<&mut [f32]>,
) {
    let rows = chunk_rows(shape.width());
    let chunk = rows * shape.width();
    let dots = dots.map(DisjointMut::new);
    pool.run_chunks(dx, chunk, &|i, dx| {
        let elements = i * chunk..i * chunk + dx.len();
        let dots_len = dx.len() / shape.width() * shape.heads;
        let dots: &mut [f32] = match &dots {
            // SAFETY: tasks have different rows, and so different dot products.
            Some(dots) => unsafe { dots.slice(i * rows * shape.heads, dots_len) },
            None => &mut [],
        };
        isa.dispatch(GradRows { shape, dy: &dy[elements.clone()], qkv: &qkv[elements], scale, dx, dots });
    });
}

struct GradRows<'a> {
    shape: QkvShape,
    dy: &'a [f32],
    qkv: &'a [f32],
    scale: &'a [f32],
    dx: &'a mut [f32],
    /// Empty where they are not consumed.
    dots: &'a mut [f32],
}

impl Kernel for GradRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let QkvShape { heads, head_dim } = self.shape;
        let vectors = self.qkv.chunks_exact(head_dim).zip(self.dy.chunks_exact(head_dim));
        for (at, (dx, (x, dy))) in self.dx.chunks_exact_mut(head_dim).zip(vectors).enumerate() {
            dx.copy_from_slice(dy);
            let (row, vector) = (at / (3 * heads), at % (3 * heads));
            let Some(length) = self.shape.length(vector, self.scale) else { continue };
            let divisor = divisor(s, x);
            let dot = row::dot(s, x, dy) / divisor;
            if let (true, Some(out)) = (vector < heads, self.dots.get_mut(row * heads + vector)) {
                *out = dot;
            }
            let along = if divisor > LEAST_LENGTH || divisor.is_nan() { dot / divisor } else { 0.0 };
            subtract_scaled(s, dx, x, along, length / divisor);
        }
    }
}

/// `y = factor · (y - a x)`.
#[inline(always)]
fn subtract_scaled<S: Simd>(s: S, y: &mut [f32], x: &[f32], a: f32, factor: f32) {
    let n = y.len().min(x.len());
    let (y, x, a, factor) = (y.as_mut_ptr(), x.as_ptr(), s.splat(a), s.splat(factor));
    let mut i = 0;
    // SAFETY: reads and writes stay below n, the length of the shorter slice.
    unsafe {
        while i + S::LANES <= n {
            s.store(y.add(i), s.mul(s.neg_mul_add(a, s.load(x.add(i)), s.load(y.add(i))), factor));
            i += S::LANES;
        }
        if i < n {
            let difference = s.neg_mul_add(a, s.load_first(x.add(i), n - i), s.load_first(y.add(i), n - i));
            s.store_first(y.add(i), s.mul(difference, factor), n - i);
        }
    }
}
