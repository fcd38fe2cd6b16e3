//! Norms that take their statistics over pixels: group norm, and batch norm, which is the same with all samples as one
//! and a group for every channel. Sums are taken in chunks that the shape alone decides, then the chunks in order.

use std::ops::Range;

use crate::gemm::check_workspace;
use crate::isa::Isa;
use crate::pool::{DisjointMut, Pool};
use crate::simd::{Kernel, Simd};

/// What is done with a chunk: its sample, its elements, its sums.
type OnChunk<'a> = &'a (dyn Fn(usize, Range<usize>, &mut [f32]) + Sync);

/// A channels-last value `[samples, pixels, channels]` whose channels fall into groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub samples: usize,
    pub pixels: usize,
    pub channels: usize,
    pub groups: usize,
}

impl Shape {
    /// Chunks of a sample's pixels, and pixels in one.
    fn chunks(&self) -> (usize, usize) {
        let per_chunk = self.pixels.div_ceil(64).max(32);
        (self.pixels.div_ceil(per_chunk), per_chunk)
    }

    fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// Elements in a group.
    fn count(&self) -> f32 {
        (self.pixels * self.group_channels()) as f32
    }

    /// Two rows of sums for every chunk, and four rows of numbers for every sample.
    pub fn workspace(&self) -> usize {
        self.samples * self.channels * (2 * self.chunks().0 + 4)
    }

    fn check(&self, x: &[f32], workspace: &[f32]) {
        assert_eq!(x.len(), self.samples * self.pixels * self.channels, "norm: a value of the wrong length");
        check_workspace("norm", workspace.len(), self.workspace());
    }

    /// The workspace in its parts: sums `[samples, chunks, 2, channels]`, then four times `[samples, channels]`.
    fn split<'a>(&self, workspace: &'a mut [f32]) -> (&'a mut [f32], [&'a mut [f32]; 4]) {
        let each = self.samples * self.channels;
        let (sums, rest) = workspace.split_at_mut(2 * each * self.chunks().0);
        let (a, rest) = rest.split_at_mut(each);
        let (b, rest) = rest.split_at_mut(each);
        let (c, rest) = rest.split_at_mut(each);
        (sums, [a, b, c, &mut rest[..each]])
    }

    /// Calls `f(sample, chunk's first element, chunk's sums)` on the threads of the pool.
    fn each_chunk(&self, pool: &Pool, sums: &mut [f32], f: OnChunk<'_>) {
        let (chunks, per_chunk) = self.chunks();
        pool.run_chunks(sums, 2 * self.channels, &|task, sums| {
            let (sample, chunk) = (task / chunks, task % chunks);
            let start = chunk * per_chunk;
            let end = (start + per_chunk).min(self.pixels);
            let at = |pixel: usize| (sample * self.pixels + pixel) * self.channels;
            sums.fill(0.0);
            f(sample, at(start)..at(end), sums);
        });
    }

    /// The sum of row `which` of a sample's chunks, over the channels of each group, given to every channel of it.
    fn gather_groups(&self, sums: &[f32], which: usize, weights: Option<&[f32]>, into: &mut [f32]) {
        let (chunks, size) = (self.chunks().0, self.group_channels());
        for (sample, row) in into.chunks_exact_mut(self.channels).enumerate() {
            row.fill(0.0);
            for chunk in 0..chunks {
                let from = &sums[((sample * chunks + chunk) * 2 + which) * self.channels..][..self.channels];
                row.iter_mut().zip(from).for_each(|(row, from)| *row += from);
            }
            if let Some(weights) = weights {
                row.iter_mut().zip(weights).for_each(|(row, weight)| *row *= weight);
            }
            for group in row.chunks_exact_mut(size) {
                let sum: f32 = group.iter().sum();
                group.fill(sum);
            }
        }
    }

    /// One number of each group of channels.
    fn per_group(&self, of_channels: &[f32], into: &mut [f32]) {
        let size = self.group_channels();
        into.iter_mut().zip(of_channels.chunks_exact(size)).for_each(|(into, group)| *into = group[0]);
    }
}

/// What a norm writes besides its result, each `[samples, groups]`; empty where nobody wants it.
pub(crate) struct Statistics<'a> {
    pub mean: &'a mut [f32],
    pub rstd: &'a mut [f32],
    /// The biased variance.
    pub variance: &'a mut [f32],
}

/// Normalises, scales by `gamma` and adds `beta`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn forward(
    pool: &Pool,
    isa: Isa,
    shape: &Shape,
    epsilon: f32,
    [x, gamma, beta]: [&[f32]; 3],
    y: &mut [f32],
    statistics: Statistics<'_>,
    workspace: &mut [f32],
) {
    shape.check(x, workspace);
    let (sums, [mean, variance, scale, _]) = shape.split(workspace);
    shape
        .each_chunk(pool, sums, &|_, range, sums| isa.dispatch(Sum { x: &x[range], out: &mut sums[..shape.channels] }));
    shape.gather_groups(sums, 0, None, mean);
    mean.iter_mut().for_each(|m| *m /= shape.count());
    shape.each_chunk(pool, sums, &|sample, range, sums| {
        let mean = &mean[sample * shape.channels..][..shape.channels];
        isa.dispatch(Squares { x: &x[range], mean, out: &mut sums[..shape.channels] });
    });
    shape.gather_groups(sums, 0, None, variance);
    variance.iter_mut().for_each(|v| *v /= shape.count());
    for (i, (scale, variance)) in scale.iter_mut().zip(&*variance).enumerate() {
        *scale = gamma[i % shape.channels] / (variance + epsilon).sqrt();
    }
    shape.per_group(mean, statistics.mean);
    shape.per_group(variance, statistics.variance);
    shape.per_group(variance, statistics.rstd);
    statistics.rstd.iter_mut().for_each(|v| *v = 1.0 / (*v + epsilon).sqrt());
    if y.is_empty() {
        return;
    }
    let y = DisjointMut::new(y);
    let (mean, scale) = (&*mean, &*scale);
    shape.each_chunk(pool, sums, &|sample, range, _| {
        let channels = sample * shape.channels..(sample + 1) * shape.channels;
        // SAFETY: chunks do not overlap.
        let y = unsafe { y.slice(range.start, range.len()) };
        isa.dispatch(Apply { x: &x[range], mean: &mean[channels.clone()], scale: &scale[channels], shift: beta, y });
    });
}

/// The gradient: of the value, `gamma` and `beta`, each of them empty where nobody wants it.
#[allow(clippy::too_many_arguments)]
pub(crate) fn backward(
    pool: &Pool,
    isa: Isa,
    shape: &Shape,
    [dy, x, gamma, mean, rstd]: [&[f32]; 5],
    [dx, dgamma, dbeta]: [&mut [f32]; 3],
    workspace: &mut [f32],
) {
    shape.check(x, workspace);
    assert_eq!(dy.len(), x.len(), "norm: a gradient of the wrong length");
    let (sums, [means, slope, offset, factor]) = shape.split(workspace);
    let size = shape.group_channels();
    means.iter_mut().enumerate().for_each(|(i, m)| *m = mean[i / size]);
    slope.iter_mut().enumerate().for_each(|(i, r)| *r = rstd[i / size]);
    shape.each_chunk(pool, sums, &|sample, range, sums| {
        let channels = sample * shape.channels..(sample + 1) * shape.channels;
        let (plain, normed) = sums.split_at_mut(shape.channels);
        let (mean, rstd) = (&means[channels.clone()], &slope[channels]);
        isa.dispatch(Products { dy: &dy[range.clone()], x: &x[range], mean, rstd, plain, normed });
    });
    for (which, out) in [(1, dgamma), (0, dbeta)] {
        if !out.is_empty() {
            out.fill(0.0);
            for chunk in sums.chunks_exact(2 * shape.channels) {
                let from = &chunk[which * shape.channels..][..shape.channels];
                out.iter_mut().zip(from).for_each(|(out, from)| *out += from);
            }
        }
    }
    if dx.is_empty() {
        return;
    }
    shape.gather_groups(sums, 0, Some(gamma), offset);
    shape.gather_groups(sums, 1, Some(gamma), factor);
    for i in 0..slope.len() {
        let rstd = slope[i];
        slope[i] = rstd * gamma[i % shape.channels];
        offset[i] *= -rstd / shape.count();
        factor[i] *= -rstd * rstd / shape.count();
    }
    let dx = DisjointMut::new(dx);
    let (means, slope, offset, factor) = (&*means, &*slope, &*offset, &*factor);
    shape.each_chunk(pool, sums, &|sample, range, _| {
        let channels = sample * shape.channels..(sample + 1) * shape.channels;
        // SAFETY: chunks do not overlap.
        let dx = unsafe { dx.slice(range.start, range.len()) };
        let part = |values: &'_ [f32]| values[channels.clone()].as_ptr();
        isa.dispatch(ApplyGrad {
            dy: &dy[range.clone()],
            x: &x[range],
            channels: shape.channels,
            mean: part(means),
            slope: part(slope),
            offset: part(offset),
            factor: part(factor),
            dx,
        });
    });
}

/// `out += x`, over rows.
struct Sum<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.len();
        let out = self.out.as_mut_ptr();
        for row in self.x.chunks_exact(n) {
            let mut i = 0;
            while i < n {
                // SAFETY: rows and sums have n numbers.
                unsafe {
                    let sum = s.add(s.load_up_to(out.add(i), n - i), s.load_up_to(row.as_ptr().add(i), n - i));
                    s.store_up_to(out.add(i), sum, n - i);
                }
                i += S::LANES;
            }
        }
    }
}

/// `out += (x - mean)²`, over rows.
struct Squares<'a> {
    x: &'a [f32],
    mean: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Squares<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.len().min(self.mean.len());
        let (mean, out) = (self.mean.as_ptr(), self.out.as_mut_ptr());
        for row in self.x.chunks_exact(n) {
            let mut i = 0;
            while i < n {
                // SAFETY: rows, means and sums have n numbers.
                unsafe {
                    let d = s.sub(s.load_up_to(row.as_ptr().add(i), n - i), s.load_up_to(mean.add(i), n - i));
                    let sum = s.mul_add(d, d, s.load_up_to(out.add(i), n - i));
                    s.store_up_to(out.add(i), sum, n - i);
                }
                i += S::LANES;
            }
        }
    }
}

/// `y = (x - mean) · scale + shift`, over rows.
struct Apply<'a> {
    x: &'a [f32],
    mean: &'a [f32],
    scale: &'a [f32],
    shift: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.mean.len().min(self.scale.len()).min(self.shift.len());
        let (mean, scale, shift) = (self.mean.as_ptr(), self.scale.as_ptr(), self.shift.as_ptr());
        for (row, y) in self.x.chunks_exact(n).zip(self.y.chunks_exact_mut(n)) {
            let mut i = 0;
            while i < n {
                // SAFETY: all rows have n numbers.
                unsafe {
                    let d = s.sub(s.load_up_to(row.as_ptr().add(i), n - i), s.load_up_to(mean.add(i), n - i));
                    let v = s.mul_add(d, s.load_up_to(scale.add(i), n - i), s.load_up_to(shift.add(i), n - i));
                    s.store_up_to(y.as_mut_ptr().add(i), v, n - i);
                }
                i += S::LANES;
            }
        }
    }
}

/// `plain += dy` and `normed += dy · (x - mean) · rstd`, over rows.
struct Products<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    plain: &'a mut [f32],
    normed: &'a mut [f32],
}

impl Kernel for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.plain.len().min(self.normed.len()).min(self.mean.len()).min(self.rstd.len());
        let (mean, rstd) = (self.mean.as_ptr(), self.rstd.as_ptr());
        let (plain, normed) = (self.plain.as_mut_ptr(), self.normed.as_mut_ptr());
        for (dy, x) in self.dy.chunks_exact(n).zip(self.x.chunks_exact(n)) {
            let mut i = 0;
            while i < n {
                // SAFETY: all rows have n numbers.
                unsafe {
                    let dy = s.load_up_to(dy.as_ptr().add(i), n - i);
                    let d = s.sub(s.load_up_to(x.as_ptr().add(i), n - i), s.load_up_to(mean.add(i), n - i));
                    let d = s.mul(d, s.load_up_to(rstd.add(i), n - i));
                    s.store_up_to(plain.add(i), s.add(s.load_up_to(plain.add(i), n - i), dy), n - i);
                    s.store_up_to(normed.add(i), s.mul_add(dy, d, s.load_up_to(normed.add(i), n - i)), n - i);
                }
                i += S::LANES;
            }
        }
    }
}

/// `dx = slope · dy + offset + factor · (x - mean)`, over rows.
///
/// Making one is a promise: the pointers are to `channels` numbers each.
struct ApplyGrad<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    channels: usize,
    mean: *const f32,
    slope: *const f32,
    offset: *const f32,
    factor: *const f32,
    dx: &'a mut [f32],
}

impl Kernel for ApplyGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.channels;
        let rows = self.dy.chunks_exact(n).zip(self.x.chunks_exact(n)).zip(self.dx.chunks_exact_mut(n));
        for ((dy, x), dx) in rows {
            let mut i = 0;
            while i < n {
                // SAFETY: all rows have n numbers.
                unsafe {
                    let d = s.sub(s.load_up_to(x.as_ptr().add(i), n - i), s.load_up_to(self.mean.add(i), n - i));
                    let rest =
                        s.mul_add(d, s.load_up_to(self.factor.add(i), n - i), s.load_up_to(self.offset.add(i), n - i));
                    let v = s.mul_add(
                        s.load_up_to(self.slope.add(i), n - i),
                        s.load_up_to(dy.as_ptr().add(i), n - i),
                        rest,
                    );
                    s.store_up_to(dx.as_mut_ptr().add(i), v, n - i);
                }
                i += S::LANES;
            }
        }
    }
}
