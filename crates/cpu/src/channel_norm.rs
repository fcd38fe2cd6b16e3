//! Group norm, and batch norm as the group norm of one sample that has all pixels, with a group for each channel.
//! Sums are taken over chunks of pixels whose size depends on the shape alone, then over the chunks in order.

use std::ops::Range;

use crate::gemm::check_workspace;
use crate::isa::Isa;
use crate::reduce::SumRows;
use crate::simd::{Kernel, Simd};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// A function of a chunk: its sample, the range of its elements, its two rows of sums.
type OnChunk<'a> = &'a (dyn Fn(usize, Range<usize>, &mut [f32]) + Sync);

/// A channels-last tensor `[samples, pixels, channels]` whose channels are divided into groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelNormShape {
    pub samples: usize,
    pub pixels: usize,
    pub channels: usize,
    pub groups: usize,
}

/// The most chunks of a sample: each takes rows of sums, and one thread adds these up.
const MAX_CHUNKS: usize = 64;
/// The fewest pixels that are worth a task and rows of sums.
const MIN_CHUNK_PIXELS: usize = 32;

impl ChannelNormShape {
    /// The number of chunks of a sample, and the pixels of one.
    fn chunks(&self) -> (usize, usize) {
        let per_chunk = self.pixels.div_ceil(MAX_CHUNKS).max(MIN_CHUNK_PIXELS);
        (self.pixels.div_ceil(per_chunk), per_chunk)
    }

    fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// Elements of a group, over which statistics are taken.
    fn count(&self) -> f32 {
        (self.pixels * self.group_channels()) as f32
    }

    /// Two rows of sums for every chunk, and four rows of values for every sample.
    pub fn workspace(&self) -> usize {
        self.samples * self.channels * (2 * self.chunks().0 + 4)
    }

    fn check(&self, x: &[f32], workspace: &[f32]) {
        assert_eq!(x.len(), self.samples * self.pixels * self.channels, "norm: an input of the wrong length");
        check_workspace("norm", workspace.len(), self.workspace());
    }

    /// Divides the workspace into sums `[samples, chunks, 2, channels]` and four times `[samples, channels]`.
    fn split<'a>(&self, workspace: &'a mut [f32]) -> (&'a mut [f32], [&'a mut [f32]; 4]) {
        let len = self.samples * self.channels;
        let (sums, rest) = workspace.split_at_mut(2 * len * self.chunks().0);
        let (a, rest) = rest.split_at_mut(len);
        let (b, rest) = rest.split_at_mut(len);
        let (c, rest) = rest.split_at_mut(len);
        (sums, [a, b, c, &mut rest[..len]])
    }

    /// Calls `f` for all chunks on the threads of the pool, with sums that are zero at first.
    fn for_each_chunk(&self, pool: &ThreadPool, sums: &mut [f32], f: OnChunk<'_>) {
        let (chunks, per_chunk) = self.chunks();
        pool.run_chunks(sums, 2 * self.channels, &|task, sums| {
            let (sample, chunk) = (task / chunks, task % chunks);
            let start = chunk * per_chunk;
            let end = (start + per_chunk).min(self.pixels);
            let offset = |pixel: usize| (sample * self.pixels + pixel) * self.channels;
            sums.fill(0.0);
            f(sample, offset(start)..offset(end), sums);
        });
    }

    /// Adds up `row_of_sums`, 0 or 1, over the chunks of a sample and, weighted, over the channels of each group; every
    /// channel of a group gets the sum.
    fn gather_groups(&self, sums: &[f32], row_of_sums: usize, weights: Option<&[f32]>, into: &mut [f32]) {
        let (chunks, size) = (self.chunks().0, self.group_channels());
        for (sample, row) in into.chunks_exact_mut(self.channels).enumerate() {
            row.fill(0.0);
            for chunk in 0..chunks {
                let from = &sums[((sample * chunks + chunk) * 2 + row_of_sums) * self.channels..][..self.channels];
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

    /// From values `[samples, channels]` that are equal in all channels of a group, the value of each group; `into` may
    /// be empty.
    fn per_group(&self, of_channels: &[f32], into: &mut [f32]) {
        let size = self.group_channels();
        into.iter_mut().zip(of_channels.chunks_exact(size)).for_each(|(into, group)| *into = group[0]);
    }
}

/// Output buffers for the statistics of a norm, each `[samples, groups]`; empty if unused.
pub(crate) struct ChannelStatistics<'a> {
    pub mean: &'a mut [f32],
    pub rstd: &'a mut [f32],
    /// The biased variance.
    pub variance: &'a mut [f32],
}

/// Normalises, scales by `gamma` and adds `beta`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn forward(
    pool: &ThreadPool,
    isa: Isa,
    shape: &ChannelNormShape,
    epsilon: f32,
    [x, gamma, beta]: [&[f32]; 3],
    y: &mut [f32],
    statistics: ChannelStatistics<'_>,
    workspace: &mut [f32],
) {
    shape.check(x, workspace);
    let (sums, [mean, variance, scale, _]) = shape.split(workspace);
    shape.moments(pool, isa, x, sums, mean, variance);
    for (i, (scale, variance)) in scale.iter_mut().zip(&*variance).enumerate() {
        *scale = gamma[i % shape.channels] / (variance + epsilon).sqrt();
    }
    shape.per_group(mean, statistics.mean);
    shape.per_group(variance, statistics.variance);
    shape.per_group(variance, statistics.rstd);
    statistics.rstd.iter_mut().for_each(|v| *v = 1.0 / (*v + epsilon).sqrt());
    shape.normalise(pool, isa, x, [mean, scale, beta], sums, y);
}

/// The mean and biased variance of each channel of one sample that has all pixels.
pub(crate) fn batch_moments(
    pool: &ThreadPool,
    isa: Isa,
    shape: &ChannelNormShape,
    x: &[f32],
    [mean_out, variance_out]: [&mut [f32]; 2],
    workspace: &mut [f32],
) {
    shape.check(x, workspace);
    let (sums, [mean, variance, ..]) = shape.split(workspace);
    shape.moments(pool, isa, x, sums, mean, variance);
    shape.per_group(mean, mean_out);
    shape.per_group(variance, variance_out);
}

/// `(x - mean) · rstd · gamma + beta` with given statistics of each channel.
pub(crate) fn normalise_batch(
    pool: &ThreadPool,
    isa: Isa,
    shape: &ChannelNormShape,
    [x, gamma, beta, mean, rstd]: [&[f32]; 5],
    y: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(x, workspace);
    let (sums, [scale, ..]) = shape.split(workspace);
    scale.iter_mut().zip(gamma).zip(rstd).for_each(|((scale, gamma), rstd)| *scale = gamma * rstd);
    shape.normalise(pool, isa, x, [mean, scale, beta], sums, y);
}

impl ChannelNormShape {
    /// Mean and biased variance of each group, which all of its channels hold: `[samples, channels]`.
    fn moments(
        &self,
        pool: &ThreadPool,
        isa: Isa,
        x: &[f32],
        sums: &mut [f32],
        mean: &mut [f32],
        variance: &mut [f32],
    ) {
        self.for_each_chunk(pool, sums, &|_, range, sums| {
            isa.dispatch(SumRows { x: &x[range], cols: self.channels, out: &mut sums[..self.channels] });
        });
        self.gather_groups(sums, 0, None, mean);
        mean.iter_mut().for_each(|m| *m /= self.count());
        self.for_each_chunk(pool, sums, &|sample, range, sums| {
            let mean = &mean[sample * self.channels..][..self.channels];
            isa.dispatch(SumSquares { x: &x[range], mean, out: &mut sums[..self.channels] });
        });
        self.gather_groups(sums, 0, None, variance);
        variance.iter_mut().for_each(|v| *v /= self.count());
    }

    /// `y = (x - mean) · scale + shift`, with mean and scale `[samples, channels]`, shift `[channels]`.
    fn normalise(
        &self,
        pool: &ThreadPool,
        isa: Isa,
        x: &[f32],
        [mean, scale, shift]: [&[f32]; 3],
        sums: &mut [f32],
        y: &mut [f32],
    ) {
        let y = DisjointMut::new(y);
        self.for_each_chunk(pool, sums, &|sample, range, _| {
            let channels = sample * self.channels..(sample + 1) * self.channels;
            // SAFETY: chunks do not overlap, and a task has one.
            let y = unsafe { y.slice(range.start, range.len()) };
            let (mean, scale) = (&mean[channels.clone()], &scale[channels]);
            isa.dispatch(NormaliseRows { x: &x[range], mean, scale, shift, y });
        });
    }

    /// `dx = dy_factor · dy + offset + x_factor · (x - mean)`, with factors `[samples, channels]`.
    fn normalise_grad(
        &self,
        pool: &ThreadPool,
        isa: Isa,
        [dy, x]: [&[f32]; 2],
        [mean, dy_factor, offset, x_factor]: [&[f32]; 4],
        sums: &mut [f32],
        dx: &mut [f32],
    ) {
        let dx = DisjointMut::new(dx);
        self.for_each_chunk(pool, sums, &|sample, range, _| {
            let channels = sample * self.channels..(sample + 1) * self.channels;
            isa.dispatch(NormaliseGradRows {
                dy: &dy[range.clone()],
                x: &x[range.clone()],
                mean: &mean[channels.clone()],
                dy_factor: &dy_factor[channels.clone()],
                offset: &offset[channels.clone()],
                x_factor: &x_factor[channels],
                // SAFETY: chunks do not overlap, and a task has one.
                dx: unsafe { dx.slice(range.start, range.len()) },
            });
        });
    }
}

/// The gradients of `x`, `gamma` and `beta`; an output that is not needed is empty.
#[allow(clippy::too_many_arguments)]
pub(crate) fn backward(
    pool: &ThreadPool,
    isa: Isa,
    shape: &ChannelNormShape,
    [dy, x, gamma, mean, rstd]: [&[f32]; 5],
    [dx, dgamma, dbeta]: [&mut [f32]; 3],
    workspace: &mut [f32],
) {
    shape.check(x, workspace);
    assert_eq!(dy.len(), x.len(), "norm: a gradient of the wrong length");
    let (sums, [means, dy_factor, offset, x_factor]) = shape.split(workspace);
    let size = shape.group_channels();
    means.iter_mut().enumerate().for_each(|(i, m)| *m = mean[i / size]);
    // Holds rstd until the sums are known.
    dy_factor.iter_mut().enumerate().for_each(|(i, r)| *r = rstd[i / size]);
    shape.for_each_chunk(pool, sums, &|sample, range, sums| {
        let channels = sample * shape.channels..(sample + 1) * shape.channels;
        let (dbeta, dgamma) = sums.split_at_mut(shape.channels);
        let (mean, rstd) = (&means[channels.clone()], &dy_factor[channels]);
        isa.dispatch(SumGradients { dy: &dy[range.clone()], x: &x[range], mean, rstd, dbeta, dgamma });
    });
    for (row_of_sums, out) in [(1, dgamma), (0, dbeta)] {
        if !out.is_empty() {
            out.fill(0.0);
            for chunk in sums.chunks_exact(2 * shape.channels) {
                let from = &chunk[row_of_sums * shape.channels..][..shape.channels];
                out.iter_mut().zip(from).for_each(|(out, from)| *out += from);
            }
        }
    }
    if dx.is_empty() {
        return;
    }
    shape.gather_groups(sums, 0, Some(gamma), offset);
    shape.gather_groups(sums, 1, Some(gamma), x_factor);
    // dx = rstd (gamma dy - (sum(gamma dy) + x̂ sum(gamma dy x̂)) / count), x̂ = (x - mean) rstd, sums over a group.
    for i in 0..dy_factor.len() {
        let rstd = dy_factor[i];
        dy_factor[i] = rstd * gamma[i % shape.channels];
        offset[i] *= -rstd / shape.count();
        x_factor[i] *= -rstd * rstd / shape.count();
    }
    shape.normalise_grad(pool, isa, [dy, x], [means, dy_factor, offset, x_factor], sums, dx);
}

/// The gradient of `x` in a batch norm of `count` elements per channel, not all of which are in `x`, with the sums of
/// the gradients of `gamma` and `beta` over all of them.
#[allow(clippy::too_many_arguments)]
pub(crate) fn input_grad_of_batch(
    pool: &ThreadPool,
    isa: Isa,
    shape: &ChannelNormShape,
    count: f32,
    [dy, x, gamma, mean, rstd, dgamma, dbeta]: [&[f32]; 7],
    dx: &mut [f32],
    workspace: &mut [f32],
) {
    shape.check(x, workspace);
    assert_eq!(dy.len(), x.len(), "norm: a gradient of the wrong length");
    let (sums, [dy_factor, offset, x_factor, _]) = shape.split(workspace);
    for c in 0..shape.channels {
        dy_factor[c] = rstd[c] * gamma[c];
        offset[c] = gamma[c] * dbeta[c] * (-rstd[c] / count);
        x_factor[c] = gamma[c] * dgamma[c] * (-rstd[c] * rstd[c] / count);
    }
    shape.normalise_grad(pool, isa, [dy, x], [mean, dy_factor, offset, x_factor], sums, dx);
}

/// `out += (x - mean)²`, over rows.
struct SumSquares<'a> {
    x: &'a [f32],
    mean: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SumSquares<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.len().min(self.mean.len());
        let (mean, out) = (self.mean.as_ptr(), self.out.as_mut_ptr());
        for row in self.x.chunks_exact(n) {
            let mut i = 0;
            while i < n {
                // SAFETY: rows, means and sums have n elements.
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
struct NormaliseRows<'a> {
    x: &'a [f32],
    mean: &'a [f32],
    scale: &'a [f32],
    shift: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for NormaliseRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.mean.len().min(self.scale.len()).min(self.shift.len());
        let (mean, scale, shift) = (self.mean.as_ptr(), self.scale.as_ptr(), self.shift.as_ptr());
        for (row, y) in self.x.chunks_exact(n).zip(self.y.chunks_exact_mut(n)) {
            let mut i = 0;
            while i < n {
                // SAFETY: all rows have n elements.
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

/// `dbeta += dy` and `dgamma += dy · (x - mean) · rstd`, over rows.
struct SumGradients<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    dbeta: &'a mut [f32],
    dgamma: &'a mut [f32],
}

impl Kernel for SumGradients<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.dbeta.len().min(self.dgamma.len()).min(self.mean.len()).min(self.rstd.len());
        let (mean, rstd) = (self.mean.as_ptr(), self.rstd.as_ptr());
        let (dbeta, dgamma) = (self.dbeta.as_mut_ptr(), self.dgamma.as_mut_ptr());
        for (dy, x) in self.dy.chunks_exact(n).zip(self.x.chunks_exact(n)) {
            let mut i = 0;
            while i < n {
                // SAFETY: all rows have n elements.
                unsafe {
                    let dy = s.load_up_to(dy.as_ptr().add(i), n - i);
                    let d = s.sub(s.load_up_to(x.as_ptr().add(i), n - i), s.load_up_to(mean.add(i), n - i));
                    let d = s.mul(d, s.load_up_to(rstd.add(i), n - i));
                    s.store_up_to(dbeta.add(i), s.add(s.load_up_to(dbeta.add(i), n - i), dy), n - i);
                    s.store_up_to(dgamma.add(i), s.mul_add(dy, d, s.load_up_to(dgamma.add(i), n - i)), n - i);
                }
                i += S::LANES;
            }
        }
    }
}

/// `dx = dy_factor · dy + offset + x_factor · (x - mean)`, over rows.
struct NormaliseGradRows<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    mean: &'a [f32],
    dy_factor: &'a [f32],
    offset: &'a [f32],
    x_factor: &'a [f32],
    dx: &'a mut [f32],
}

impl Kernel for NormaliseGradRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.mean.len();
        assert!([self.dy_factor.len(), self.offset.len(), self.x_factor.len()] == [n; 3], "norm: channels differ");
        let (mean, offset) = (self.mean.as_ptr(), self.offset.as_ptr());
        let (dy_factor, x_factor) = (self.dy_factor.as_ptr(), self.x_factor.as_ptr());
        let rows = self.dy.chunks_exact(n).zip(self.x.chunks_exact(n)).zip(self.dx.chunks_exact_mut(n));
        for ((dy, x), dx) in rows {
            let mut i = 0;
            while i < n {
                // SAFETY: all rows have n elements.
                unsafe {
                    let d = s.sub(s.load_up_to(x.as_ptr().add(i), n - i), s.load_up_to(mean.add(i), n - i));
                    let rest = s.mul_add(d, s.load_up_to(x_factor.add(i), n - i), s.load_up_to(offset.add(i), n - i));
                    let dy = s.load_up_to(dy.as_ptr().add(i), n - i);
                    let v = s.mul_add(s.load_up_to(dy_factor.add(i), n - i), dy, rest);
                    s.store_up_to(dx.as_mut_ptr().add(i), v, n - i);
                }
                i += S::LANES;
            }
        }
    }
}
