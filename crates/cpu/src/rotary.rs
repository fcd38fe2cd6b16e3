//! Rotary position embedding, in place, its tables, and their gradients.

use vit_graph::ops::{Rotary, RotaryExtents, RotaryPairs};

use crate::isa::Isa;
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::thread_pool::ThreadPool;

/// Rotates `x [batch, tokens, width]` by the tables `cos` and `sin [groups, positions, head_dim / 2]`.
///
/// # Panics
/// If a length does not fit the extents.
pub(crate) fn rotate(pool: &ThreadPool, isa: Isa, op: Rotary, e: RotaryExtents, x: &mut [f32], tables: [&[f32]; 2]) {
    let [cos, sin] = tables;
    let table_len = e.groups * (e.tokens - e.prefix) * (e.head_dim / 2);
    assert_eq!(x.len(), e.batch * e.tokens * e.width, "rotary: input of the wrong length");
    assert!(cos.len() == table_len && sin.len() == table_len, "rotary: table of the wrong length");
    assert!(op.heads * e.head_dim <= e.width, "rotary: more heads than the input has");
    let rows = (TASK_ELEMENTS / e.width.max(1)).max(1);
    pool.run_chunks(x, rows * e.width.max(1), &|task, x| {
        isa.dispatch(RotateRows { op, e, first_row: task * rows, x, cos, sin });
    });
}

/// Elements of one task: enough to outweigh its scheduling.
const TASK_ELEMENTS: usize = 16 * 1024;

struct RotateRows<'a> {
    op: Rotary,
    e: RotaryExtents,
    /// The first token, counted over all samples.
    first_row: usize,
    /// Whole tokens.
    x: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for RotateRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (op, e) = (self.op, self.e);
        let (positions, pairs) = (e.tokens - e.prefix, e.head_dim / 2);
        for (row, x) in self.x.chunks_exact_mut(e.width).enumerate() {
            let Some(position) = ((self.first_row + row) % e.tokens).checked_sub(e.prefix) else { continue };
            for group in 0..e.groups {
                let at = (group * positions + position) * pairs;
                let (cos, sin) = (&self.cos[at..][..pairs], &self.sin[at..][..pairs]);
                let heads = (group..op.heads).step_by(e.groups);
                let sign = if op.inverse { -1.0 } else { 1.0 };
                let x = &mut x[..op.heads * e.head_dim];
                match op.pairs {
                    RotaryPairs::Adjacent => rotate_adjacent(s, x, heads, cos, sin, sign),
                    RotaryPairs::Halves => rotate_halves(s, x, heads, cos, sin, sign),
                }
            }
        }
    }
}

/// Rotates these heads of a token, whose pairs are in the two halves of a head.
#[inline(always)]
fn rotate_halves<S: Simd>(
    s: S,
    x: &mut [f32],
    heads: impl Iterator<Item = usize> + Clone,
    cos: &[f32],
    sin: &[f32],
    sign: f32,
) {
    let pairs = cos.len();
    for i in (0..pairs).step_by(S::LANES) {
        let n = pairs - i;
        // SAFETY: the tables have `pairs` elements, `x` has `2 * pairs` for each head; both are accessed up to n
        // elements from i on.
        unsafe {
            let cos = s.load_up_to(cos.as_ptr().add(i), n);
            let sin = s.mul(s.splat(sign), s.load_up_to(sin.as_ptr().add(i), n));
            for head in heads.clone() {
                let first = x.as_mut_ptr().add(2 * pairs * head + i);
                let second = first.add(pairs);
                let (a, b) = (s.load_up_to(first, n), s.load_up_to(second, n));
                s.store_up_to(first, s.neg_mul_add(b, sin, s.mul(a, cos)), n);
                s.store_up_to(second, s.mul_add(a, sin, s.mul(b, cos)), n);
            }
        }
    }
}

/// Rotates these heads of a token, whose pairs are neighbours.
#[inline(always)]
fn rotate_adjacent<S: Simd>(
    s: S,
    x: &mut [f32],
    heads: impl Iterator<Item = usize> + Clone,
    cos: &[f32],
    sin: &[f32],
    sign: f32,
) {
    let head_dim = 2 * cos.len();
    for i in (0..head_dim).step_by(S::LANES) {
        let n = head_dim - i;
        // For each channel the cosine, and the sine with the sign that it has for the pair's other channel.
        let (mut factors, mut swapped_factors) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
        for lane in 0..n.min(S::LANES) {
            let pair = (i + lane) / 2;
            factors[lane] = cos[pair];
            swapped_factors[lane] = if lane % 2 == 0 { -sign * sin[pair] } else { sign * sin[pair] };
        }
        // SAFETY: the arrays have at least `LANES` elements, `x` has `head_dim` for each head and is accessed up to n
        // elements from i on.
        unsafe {
            let (factors, swapped_factors) = (s.load(factors.as_ptr()), s.load(swapped_factors.as_ptr()));
            for head in heads.clone() {
                let at = x.as_mut_ptr().add(head_dim * head + i);
                let v = s.load_up_to(at, n);
                s.store_up_to(at, s.mul_add(s.swap_pairs(v), swapped_factors, s.mul(v, factors)), n);
            }
        }
    }
}

/// A table of the rotation.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Table {
    Cos,
    Sin,
}

/// The gradient of one table `[groups, positions, head_dim / 2]`, from `dy` and the rotation's input `x`.
pub(crate) fn table_grad(
    pool: &ThreadPool,
    op: Rotary,
    e: RotaryExtents,
    table: Table,
    [dy, x]: [&[f32]; 2],
    out: &mut [f32],
) {
    let (positions, pairs) = (e.tokens - e.prefix, e.head_dim / 2);
    let sign = if op.inverse { -1.0 } else { 1.0 };
    pool.run_chunks(out, pairs, &|entry, out| {
        let (group, position) = (entry / positions, entry % positions);
        out.fill(0.0);
        for sample in 0..e.batch {
            let token = (sample * e.tokens + e.prefix + position) * e.width;
            for head in (group..op.heads).step_by(e.groups) {
                let at = token + head * e.head_dim;
                let (dy, x) = (&dy[at..][..e.head_dim], &x[at..][..e.head_dim]);
                for (i, out) in out.iter_mut().enumerate() {
                    let [a, b] = op.pairs.channels(i, e.head_dim);
                    *out += match table {
                        Table::Cos => dy[a] * x[a] + dy[b] * x[b],
                        Table::Sin => sign * (dy[b] * x[a] - dy[a] * x[b]),
                    };
                }
            }
        }
    });
}

/// The extents of the angles `coordinates [positions, axes] · frequencies [axes, groups, pairs]`.
#[derive(Clone, Copy)]
pub(crate) struct TablesShape {
    pub positions: usize,
    pub axes: usize,
    pub groups: usize,
    pub pairs: usize,
}

impl TablesShape {
    /// From the shapes of coordinates and frequencies.
    pub fn new(coordinates: &[usize], frequencies: &[usize]) -> Self {
        TablesShape { positions: coordinates[0], axes: coordinates[1], groups: frequencies[1], pairs: frequencies[2] }
    }
}

/// The cosines or sines (`function`) of all angles, `[groups, positions, pairs]`.
pub(crate) fn table(
    pool: &ThreadPool,
    shape: TablesShape,
    function: fn(f32) -> f32,
    [coordinates, frequencies]: [&[f32]; 2],
    out: &mut [f32],
) {
    let TablesShape { positions, axes, groups, pairs } = shape;
    pool.run_chunks(out, pairs.max(1), &|entry, out| {
        let (group, position) = (entry / positions, entry % positions);
        let coordinates = &coordinates[position * axes..][..axes];
        for (i, out) in out.iter_mut().enumerate() {
            let angle = |(axis, c): (usize, &f32)| c * frequencies[(axis * groups + group) * pairs + i];
            *out = function(coordinates.iter().enumerate().map(angle).sum());
        }
    });
}

/// The gradient `[axes, groups, pairs]` of the frequencies, from `dcos, dsin, cos, sin [groups, positions, pairs]`.
pub(crate) fn frequencies_grad(
    pool: &ThreadPool,
    shape: TablesShape,
    [dcos, dsin, cos, sin]: [&[f32]; 4],
    coordinates: &[f32],
    out: &mut [f32],
) {
    let TablesShape { positions, axes, groups, pairs } = shape;
    pool.run_chunks(out, pairs.max(1), &|entry, out| {
        let (axis, group) = (entry / groups, entry % groups);
        out.fill(0.0);
        for position in 0..positions {
            let (at, coordinate) = ((group * positions + position) * pairs, coordinates[position * axes + axis]);
            for (i, out) in (at..).zip(out.iter_mut()) {
                *out += coordinate * (cos[i] * dsin[i] - sin[i] * dcos[i]);
            }
        }
    });
}
