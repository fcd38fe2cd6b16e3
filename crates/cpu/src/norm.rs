//! Layer and RMS normalisation over the last axis, optionally fused with the residual addition before them, and their
//! gradients.
//! The variance is the biased one, computed in a second pass over the row, so that a large mean costs no accuracy.

use crate::gemm::check_workspace;
use crate::isa::Isa;
use crate::simd::{Kernel, Simd, row};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// `out = (x - mean) / sqrt(variance + eps) * gamma + beta` for each of `rows` rows of `dim` elements.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct LayerNormArgs<'a> {
    pub rows: usize,
    pub dim: usize,
    pub x: &'a [f32],
    /// A value that is added to `x` first, and where the sum goes, each `[rows, dim]`.
    pub residual: Option<(&'a [f32], &'a mut [f32])>,
    pub gamma: Option<&'a [f32]>,
    pub beta: Option<&'a [f32]>,
    pub eps: f32,
    /// Whether the mean is subtracted; otherwise it is taken as 0 (RMS norm).
    pub centred: bool,
    pub out: &'a mut [f32],
    /// Receives the mean of each row, for the gradient.
    pub mean: Option<&'a mut [f32]>,
    /// Receives `1 / sqrt(variance + eps)` of each row, for the gradient.
    pub rstd: Option<&'a mut [f32]>,
}

impl<'a> LayerNormArgs<'a> {
    /// A layer norm without residual, parameters and statistics.
    pub fn new([rows, dim]: [usize; 2], x: &'a [f32], eps: f32, out: &'a mut [f32]) -> Self {
        LayerNormArgs {
            rows,
            dim,
            x,
            residual: None,
            gamma: None,
            beta: None,
            eps,
            centred: true,
            out,
            mean: None,
            rstd: None,
        }
    }
}

/// Normalises rows on the threads of the pool.
///
/// # Panics
/// If a length does not fit the shape.
pub fn layer_norm(pool: &ThreadPool, isa: Isa, args: LayerNormArgs<'_>) {
    let LayerNormArgs { rows, dim, x, residual, gamma, beta, eps, centred, out, mean, rstd } = args;
    let (added, sum) = residual.unzip();
    let total = rows * dim;
    for (name, len, expected) in [
        ("x", Some(x.len()), total),
        ("residual", added.map(<[f32]>::len), total),
        ("sum", sum.as_deref().map(<[f32]>::len), total),
        ("gamma", gamma.map(<[f32]>::len), dim),
        ("beta", beta.map(<[f32]>::len), dim),
        ("out", Some(out.len()), total),
        ("mean", mean.as_deref().map(<[f32]>::len), rows),
        ("rstd", rstd.as_deref().map(<[f32]>::len), rows),
    ] {
        check(name, len, expected);
    }
    let chunk = rows_per_task(dim);
    let (sum, out) = (sum.map(DisjointMut::new), DisjointMut::new(out));
    let (mean, rstd) = (mean.map(DisjointMut::new), rstd.map(DisjointMut::new));
    pool.run(rows.div_ceil(chunk), &|task| {
        let first = task * chunk;
        let rows = chunk.min(rows - first);
        let (start, len) = (first * dim, rows * dim);
        // SAFETY: the rows of tasks are disjoint.
        unsafe {
            isa.dispatch(LayerNormRows {
                x: &x[start..][..len],
                added: added.map(|added| &added[start..][..len]),
                gamma,
                beta,
                eps,
                centred,
                dim,
                sum: sum.as_ref().map(|sum| sum.slice(start, len)),
                out: out.slice(start, len),
                mean: mean.as_ref().map(|mean| mean.slice(first, rows)),
                rstd: rstd.as_ref().map(|rstd| rstd.slice(first, rows)),
            });
        }
    });
}

/// Elements of one task, about 64 KiB: enough to outweigh its scheduling.
const TASK_ELEMENTS: usize = 16 * 1024;

fn rows_per_task(dim: usize) -> usize {
    (TASK_ELEMENTS / dim.max(1)).max(1)
}

fn check(name: &str, len: Option<usize>, expected: usize) {
    assert_eq!(len.unwrap_or(expected), expected, "layer norm: {name} has the wrong length");
}

struct LayerNormRows<'a> {
    x: &'a [f32],
    added: Option<&'a [f32]>,
    gamma: Option<&'a [f32]>,
    beta: Option<&'a [f32]>,
    eps: f32,
    centred: bool,
    dim: usize,
    sum: Option<&'a mut [f32]>,
    out: &'a mut [f32],
    mean: Option<&'a mut [f32]>,
    rstd: Option<&'a mut [f32]>,
}

impl Kernel for LayerNormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let dim = self.dim;
        if dim == 0 {
            return;
        }
        let rows = self.out.len() / dim;
        let mut first = 0;
        while first < rows {
            let count = INTERLEAVED_ROWS.min(rows - first);
            self.normalise(s, first, count);
            first += count;
        }
    }
}

/// Rows that go through each step together: their horizontal sums are independent, so that the latencies overlap.
const INTERLEAVED_ROWS: usize = 4;

impl LayerNormRows<'_> {
    #[inline(always)]
    fn normalise<S: Simd>(&mut self, s: S, first: usize, count: usize) {
        let dim = self.dim;
        let (start, len) = (first * dim, count * dim);
        let mut x = &self.x[start..][..len];
        if let (Some(added), Some(sum)) = (self.added, &mut self.sum) {
            let sum = &mut sum[start..][..len];
            row::add_into(s, x, &added[start..][..len], sum);
            x = sum;
        }
        let (mut mean, mut rstd) = ([0.0; INTERLEAVED_ROWS], [0.0; INTERLEAVED_ROWS]);
        if self.centred {
            for (x, mean) in x.chunks_exact(dim).zip(&mut mean) {
                *mean = row::mean(s, x);
            }
        }
        for ((x, &mean), rstd) in x.chunks_exact(dim).zip(&mean).zip(&mut rstd) {
            *rstd = 1.0 / (row::variance(s, x, mean) + self.eps).sqrt();
        }
        if let Some(means) = &mut self.mean {
            means[first..][..count].copy_from_slice(&mean[..count]);
        }
        if let Some(rstds) = &mut self.rstd {
            rstds[first..][..count].copy_from_slice(&rstd[..count]);
        }
        let out = &mut self.out[start..][..len];
        for (r, (x, out)) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
            let (mean, rstd) = (s.splat(mean[r]), s.splat(rstd[r]));
            let mut i = 0;
            while i < dim {
                let n = dim - i;
                // SAFETY: rows, gamma and beta have `dim` elements.
                unsafe {
                    let mut v = s.mul(s.sub(s.load_up_to(x.as_ptr().add(i), n), mean), rstd);
                    if let Some(gamma) = self.gamma {
                        v = s.mul(v, s.load_up_to(gamma.as_ptr().add(i), n));
                    }
                    if let Some(beta) = self.beta {
                        v = s.add(v, s.load_up_to(beta.as_ptr().add(i), n));
                    }
                    s.store_up_to(out.as_mut_ptr().add(i), v, n);
                }
                i += S::LANES;
            }
        }
    }
}

/// The most chunks: each takes partial sums of the parameters' gradients, and one thread adds these up.
const MAX_CHUNKS: usize = 64;
/// The fewest rows that are worth a task and partial sums.
const MIN_CHUNK_ROWS: usize = 16;

/// The number of chunks of rows, and the rows of one. The shape alone decides them, and with them the order of
/// summation.
fn chunks(rows: usize) -> (usize, usize) {
    let per_chunk = rows.div_ceil(MAX_CHUNKS).max(MIN_CHUNK_ROWS);
    (rows.div_ceil(per_chunk), per_chunk)
}

/// Elements of workspace that [`layer_norm_grad`] needs.
pub fn layer_norm_grad_workspace(rows: usize, dim: usize) -> usize {
    chunks(rows).0 * 2 * dim
}

/// The gradient of [`LayerNormArgs`].
#[derive(Debug)]
#[allow(missing_docs)]
pub struct LayerNormGradArgs<'a> {
    pub rows: usize,
    pub dim: usize,
    pub dy: &'a [f32],
    /// The rows that were normalised: the sum, where a residual was added.
    pub x: &'a [f32],
    pub gamma: Option<&'a [f32]>,
    pub mean: &'a [f32],
    pub rstd: &'a [f32],
    pub centred: bool,
    /// The gradient through the residual connection, added to `dx`.
    pub residual_grad: Option<&'a [f32]>,
    pub dx: &'a mut [f32],
    pub dgamma: Option<&'a mut [f32]>,
    pub dbeta: Option<&'a mut [f32]>,
}

/// Computes the gradients on the threads of the pool.
///
/// # Panics
/// If a length does not fit the shape.
pub fn layer_norm_grad(pool: &ThreadPool, isa: Isa, args: LayerNormGradArgs<'_>, workspace: &mut [f32]) {
    let LayerNormGradArgs { rows, dim, dy, x, gamma, mean, rstd, centred, residual_grad, dx, dgamma, dbeta } = args;
    let total = rows * dim;
    for (name, len, expected) in [
        ("dy", Some(dy.len()), total),
        ("x", Some(x.len()), total),
        ("gamma", gamma.map(<[f32]>::len), dim),
        ("mean", Some(mean.len()), rows),
        ("rstd", Some(rstd.len()), rows),
        ("residual_grad", residual_grad.map(<[f32]>::len), total),
        ("dx", Some(dx.len()), total),
        ("dgamma", dgamma.as_deref().map(<[f32]>::len), dim),
        ("dbeta", dbeta.as_deref().map(<[f32]>::len), dim),
    ] {
        check(name, len, expected);
    }
    let needed = layer_norm_grad_workspace(rows, dim);
    check_workspace("layer norm gradient", workspace.len(), needed);
    let workspace = &mut workspace[..needed];
    let (tasks, per_chunk) = chunks(rows);
    {
        let dx = DisjointMut::new(dx);
        let partial = DisjointMut::new(&mut *workspace);
        pool.run(tasks, &|task| {
            let first = task * per_chunk;
            let rows = per_chunk.min(rows - first);
            let (start, len) = (first * dim, rows * dim);
            // SAFETY: the rows and partial sums of tasks are disjoint.
            unsafe {
                isa.dispatch(LayerNormGradRows {
                    dy: &dy[start..][..len],
                    x: &x[start..][..len],
                    gamma,
                    mean: &mean[first..][..rows],
                    rstd: &rstd[first..][..rows],
                    centred,
                    residual_grad: residual_grad.map(|residual_grad| &residual_grad[start..][..len]),
                    dim,
                    dx: dx.slice(start, len),
                    partial: partial.slice(task * 2 * dim, 2 * dim),
                });
            }
        });
    }
    for (row_of_sums, gradient) in [(0, dgamma), (1, dbeta)] {
        if let Some(gradient) = gradient {
            gradient.fill(0.0);
            for chunk in 0..tasks {
                let partial = &workspace[(2 * chunk + row_of_sums) * dim..][..dim];
                for (total, x) in gradient.iter_mut().zip(partial) {
                    *total += x;
                }
            }
        }
    }
}

struct LayerNormGradRows<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    gamma: Option<&'a [f32]>,
    mean: &'a [f32],
    rstd: &'a [f32],
    centred: bool,
    residual_grad: Option<&'a [f32]>,
    dim: usize,
    dx: &'a mut [f32],
    /// Partial sums over these rows, `[2][dim]`: of dgamma, then of dbeta.
    partial: &'a mut [f32],
}

impl Kernel for LayerNormGradRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.dim;
        let (dgamma, dbeta) = self.partial.split_at_mut(dim);
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        for row in 0..self.mean.len() {
            let grad = RowGrad {
                dy: self.dy[row * dim..][..dim].as_ptr(),
                x: self.x[row * dim..][..dim].as_ptr(),
                gamma: self.gamma.map(<[f32]>::as_ptr),
                residual_grad: self.residual_grad.map(|residual_grad| residual_grad[row * dim..][..dim].as_ptr()),
                dx: self.dx[row * dim..][..dim].as_mut_ptr(),
                dgamma: dgamma.as_mut_ptr(),
                dbeta: dbeta.as_mut_ptr(),
                mean: s.splat(self.mean[row]),
                rstd: s.splat(self.rstd[row]),
                centred: self.centred,
            };
            // SAFETY: all pointers are to `dim` elements.
            unsafe { grad.compute(s, dim) };
        }
    }
}

/// One row of the gradient.
struct RowGrad<S: Simd> {
    dy: *const f32,
    x: *const f32,
    gamma: Option<*const f32>,
    residual_grad: Option<*const f32>,
    dx: *mut f32,
    dgamma: *mut f32,
    dbeta: *mut f32,
    mean: S::V,
    rstd: S::V,
    centred: bool,
}

impl<S: Simd> RowGrad<S> {
    /// Vectors are whole except the last: inlined with a constant length, their loads and stores have no branches.
    ///
    /// # Safety
    /// `dim` elements must be valid at all pointers.
    #[inline(always)]
    unsafe fn compute(&self, s: S, dim: usize) {
        let (mut sum, mut product) = (s.splat(0.0), s.splat(0.0));
        let whole = dim - dim % S::LANES;
        // SAFETY: vectors end at `dim`.
        unsafe {
            let mut i = 0;
            while i < whole {
                self.add_sums(s, i, S::LANES, &mut sum, &mut product);
                i += S::LANES;
            }
            if i < dim {
                self.add_sums(s, i, dim - i, &mut sum, &mut product);
            }
            let scaled_mean = if self.centred { s.sum(sum) / dim as f32 } else { 0.0 };
            let (scaled_mean, product_mean) = (s.splat(scaled_mean), s.splat(s.sum(product) / dim as f32));
            let mut i = 0;
            while i < whole {
                self.write_dx(s, i, S::LANES, scaled_mean, product_mean);
                i += S::LANES;
            }
            if i < dim {
                self.write_dx(s, i, dim - i, scaled_mean, product_mean);
            }
        }
    }

    /// `dy`, `dy gamma` and the normalised row; lanes past the end have dy = 0.
    ///
    /// # Safety
    /// `n` elements from `i` on must be valid.
    #[inline(always)]
    unsafe fn load(&self, s: S, i: usize, n: usize) -> [S::V; 3] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let dy = s.load_up_to(self.dy.add(i), n);
            let normalised = s.mul(s.sub(s.load_up_to(self.x.add(i), n), self.mean), self.rstd);
            let scaled = match self.gamma {
                Some(gamma) => s.mul(dy, s.load_up_to(gamma.add(i), n)),
                None => dy,
            };
            [dy, scaled, normalised]
        }
    }

    /// Adds to the sums over the row (`dy gamma` and `dy gamma normalised`), and to those over rows (dgamma and dbeta).
    ///
    /// # Safety
    /// As for [`Self::load`].
    #[inline(always)]
    unsafe fn add_sums(&self, s: S, i: usize, n: usize, sum: &mut S::V, product: &mut S::V) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let [dy, scaled, normalised] = self.load(s, i, n);
            *sum = s.add(*sum, scaled);
            *product = s.mul_add(scaled, normalised, *product);
            let dgamma = s.mul_add(dy, normalised, s.load_up_to(self.dgamma.add(i), n));
            s.store_up_to(self.dgamma.add(i), dgamma, n);
            let dbeta = s.add(dy, s.load_up_to(self.dbeta.add(i), n));
            s.store_up_to(self.dbeta.add(i), dbeta, n);
        }
    }

    /// `dx = rstd (dy gamma - scaled_mean - normalised product_mean) + residual_grad`, with the row's means of
    /// `dy gamma` and of `dy gamma normalised`.
    ///
    /// # Safety
    /// As for [`Self::load`].
    #[inline(always)]
    unsafe fn write_dx(&self, s: S, i: usize, n: usize, scaled_mean: S::V, product_mean: S::V) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let [_, scaled, normalised] = self.load(s, i, n);
            let mut dx = s.mul(s.neg_mul_add(normalised, product_mean, s.sub(scaled, scaled_mean)), self.rstd);
            if let Some(residual_grad) = self.residual_grad {
                dx = s.add(dx, s.load_up_to(residual_grad.add(i), n));
            }
            s.store_up_to(self.dx.add(i), dx, n);
        }
    }
}
