//! The backward pass: the weights are recomputed from the saved log-sum-exp, for one block of queries at a time; the
//! whole matrix of weights is never in memory.
//!
//! With `P` the weights, `D` the dropout factors and `dS` the gradient of the scores `S = scale Q Kᵀ + bias`, block by
//! block: `P = exp(S - lse)`, `dP = D ∘ (dO Vᵀ)`, `delta = rowsum(dO ∘ O)`, `dS = P ∘ (dP - delta)`,
//! `dQ = scale dS K`, `dK += scale dSᵀ Q`, `dV += (D ∘ P)ᵀ dO`.

use super::microkernel::{HeadEpilogue, HeadProduct, PanelSource, multiply};
use super::packing::{PREFETCH_ROWS, PackRows, PackTransposed, prefetch_row};
use super::{
    AttentionShape, HeadView, HeadViewMut, MAX_BLOCK_SCORES, OutputView, WeightDropout, check_bias, head_bias,
};
use crate::gemm::{ALIGN, CACHE_SET_STRIDE, aligned, check_workspace};
use crate::isa::Isa;
use crate::simd::math::exp2;
use crate::simd::{Kernel, MAX_LANES, Simd, row};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// The gradient of [`super::AttentionArgs`] with the same shape, scale, inputs, bias and dropout.
#[derive(Debug)]
pub struct AttentionGradArgs<'a> {
    /// Extents.
    pub shape: AttentionShape,
    /// The scale of the forward pass.
    pub scale: f32,
    /// Queries.
    pub q: HeadView<'a>,
    /// Keys.
    pub k: HeadView<'a>,
    /// Values.
    pub v: HeadView<'a>,
    /// The result of the forward pass.
    pub out: HeadView<'a>,
    /// The gradient of the result.
    pub dout: HeadView<'a>,
    /// `lse` of the forward pass.
    pub lse: &'a [f32],
    /// The bias of the forward pass.
    pub bias: Option<(&'a [f32], usize)>,
    /// The dropout of the forward pass.
    pub dropout: Option<WeightDropout<'a>>,
    /// The gradients of queries, keys and values, which are overwritten.
    pub outputs: GradOutputs<'a>,
    /// The gradient of the bias, `[groups, heads, queries, keys]` and the number of groups: the sum over the samples
    /// of a group. It can be computed for an attention without a bias, too.
    pub dbias: Option<(&'a mut [f32], usize)>,
}

impl AttentionGradArgs<'_> {
    fn check(&self) {
        let AttentionShape { batch, heads, queries, keys, .. } = self.shape;
        self.q.check("q", &self.shape, queries);
        self.k.check("k", &self.shape, keys);
        self.v.check("v", &self.shape, keys);
        self.out.check("out", &self.shape, queries);
        self.dout.check("dout", &self.shape, queries);
        assert_eq!(self.lse.len(), batch * heads * queries, "attention: lse has the wrong length");
        if let Some((bias, groups)) = self.bias {
            check_bias("bias", bias.len(), groups, &self.shape);
        }
        if let Some((dbias, groups)) = &self.dbias {
            check_bias("dbias", dbias.len(), *groups, &self.shape);
        }
    }
}

/// Where the gradients of queries, keys and values go.
#[derive(Debug)]
pub enum GradOutputs<'a> {
    /// Three buffers.
    Separate {
        /// Of the queries.
        dq: HeadViewMut<'a>,
        /// Of the keys.
        dk: HeadViewMut<'a>,
        /// Of the values.
        dv: HeadViewMut<'a>,
    },
    /// One buffer `[batch, rows, 3, heads, head_dim]`, with as many keys as queries.
    Packed(&'a mut [f32]),
}

impl GradOutputs<'_> {
    fn into_checked(self, shape: &AttentionShape) -> [OutputView; 3] {
        match self {
            GradOutputs::Separate { dq, dk, dv } => [
                dq.into_checked("dq", shape, shape.queries),
                dk.into_checked("dk", shape, shape.keys),
                dv.into_checked("dv", shape, shape.keys),
            ],
            GradOutputs::Packed(data) => {
                let width = shape.heads * shape.head_dim;
                assert_eq!(shape.queries, shape.keys, "attention: packed gradients need as many keys as queries");
                assert_eq!(
                    data.len(),
                    shape.batch * shape.queries * 3 * width,
                    "attention: packed gradients have the wrong length for {shape:?}"
                );
                let start = data.as_mut_ptr();
                [0, 1, 2].map(|projection| OutputView {
                    start: start.wrapping_add(projection * width),
                    batch_stride: shape.queries * 3 * width,
                    row_stride: 3 * width,
                    head_stride: shape.head_dim,
                })
            }
        }
    }
}

/// Elements of workspace that [`backward`] needs.
pub fn backward_workspace(threads: usize, shape: &AttentionShape) -> usize {
    threads * BackwardBlocking::new(shape).worker_len()
}

/// Blocks are multiples of this many queries: about the rows of a register tile, but the same on every instruction set.
const QUERY_UNIT: usize = 8;

/// How queries are divided into blocks, and the lengths of the buffers in a worker's workspace, which are whole cache
/// lines. The shape alone decides them, and with them the order in which `dK` and `dV` are summed over blocks.
#[derive(Clone, Copy)]
struct BackwardBlocking {
    block_queries: usize,
    /// Elements from one row of scores to the next.
    score_stride: usize,
    /// Keys or values, transposed.
    transposed_len: usize,
    /// Keys, as rows.
    keys_len: usize,
    /// The queries, or rows of `dout`, of a block.
    block_rows_len: usize,
}

impl BackwardBlocking {
    fn new(shape: &AttentionShape) -> Self {
        // One cache line more than needed keeps rows from competing for the same cache sets.
        let score_stride = shape.keys.next_multiple_of(MAX_LANES) + MAX_LANES;
        let max_queries = (MAX_BLOCK_SCORES / score_stride).max(QUERY_UNIT);
        let blocks = shape.queries.div_ceil(max_queries).max(1);
        let block_queries = shape.queries.div_ceil(blocks).next_multiple_of(QUERY_UNIT);
        let row = shape.head_dim.next_multiple_of(MAX_LANES);
        BackwardBlocking {
            block_queries,
            score_stride,
            transposed_len: shape.keys.next_multiple_of(MAX_LANES) * shape.head_dim,
            keys_len: shape.keys * row,
            block_rows_len: block_queries * row,
        }
    }

    fn block_scores_len(&self) -> usize {
        self.block_queries * self.score_stride
    }

    fn worker_len(&self) -> usize {
        let packed = 2 * self.transposed_len + self.keys_len + 2 * self.block_rows_len;
        packed + 2 * self.block_scores_len() + self.score_stride + ALIGN
    }
}

/// Computes the gradients on the threads of the pool.
///
/// # Panics
/// If a slice is too short for the shape, or rows of an output overlap.
pub fn backward(pool: &ThreadPool, isa: Isa, args: AttentionGradArgs<'_>, workspace: &mut [f32]) {
    args.check();
    let AttentionGradArgs { shape, scale, q, k, v, out, dout, lse, bias, dropout, outputs, dbias } = args;
    let AttentionShape { batch, heads, queries, keys, head_dim } = shape;
    let [dq, dk, dv] = outputs.into_checked(&shape);
    let blocking = BackwardBlocking::new(&shape);
    let worker_len = blocking.worker_len();
    check_workspace("attention gradient", workspace.len(), worker_len * pool.threads());
    if batch * heads * queries == 0 || head_dim == 0 {
        return;
    }
    assert!(keys > 0, "attention: no keys");

    // The samples of a group add to the same gradient of the bias: one task, in a fixed order.
    let (groups, dbias) = match dbias {
        Some((dbias, groups)) => (groups, Some(DisjointMut::new(dbias))),
        None => (batch, None),
    };
    let workspaces = DisjointMut::new(workspace);
    pool.run_with_worker(groups * heads, &|task, worker| {
        let (group, h) = (task / heads, task % heads);
        // SAFETY: tasks have disjoint heads of the bias's gradient, and a worker index is used by one thread at a
        // time.
        let (mut dbias, workspace) = unsafe {
            (
                dbias.as_ref().map(|dbias| dbias.slice(task * queries * keys, queries * keys)),
                workspaces.slice(worker * worker_len, worker_len),
            )
        };
        if let Some(dbias) = &mut dbias {
            dbias.fill(0.0);
        }
        for b in (group..batch).step_by(groups) {
            isa.dispatch(HeadGrad {
                shape,
                blocking,
                scale,
                b,
                h,
                q,
                k,
                v,
                out,
                dout,
                lse: &lse[(b * heads + h) * queries..][..queries],
                bias: head_bias(bias, &shape, b, h),
                dropout,
                dq,
                dk,
                dv,
                dbias: dbias.as_deref_mut(),
                workspace: &mut *workspace,
            });
        }
    });
}

/// One head of one sample. The views have been checked, and only this task writes this head of the outputs.
struct HeadGrad<'a> {
    shape: AttentionShape,
    blocking: BackwardBlocking,
    scale: f32,
    b: usize,
    h: usize,
    q: HeadView<'a>,
    k: HeadView<'a>,
    v: HeadView<'a>,
    out: HeadView<'a>,
    dout: HeadView<'a>,
    lse: &'a [f32],
    bias: Option<&'a [f32]>,
    dropout: Option<WeightDropout<'a>>,
    dq: OutputView,
    dk: OutputView,
    dv: OutputView,
    dbias: Option<&'a mut [f32]>,
    workspace: &'a mut [f32],
}

impl Kernel for HeadGrad<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let AttentionShape { queries, keys, head_dim, .. } = self.shape;
        let (b, h, blocking) = (self.b, self.h, self.blocking);
        let (keys_t, rest) = aligned(std::mem::take(&mut self.workspace), blocking.transposed_len);
        let (values_t, rest) = rest.split_at_mut(blocking.transposed_len);
        let (packed_keys, rest) = rest.split_at_mut(blocking.keys_len);
        let (packed_queries, rest) = rest.split_at_mut(blocking.block_rows_len);
        let (packed_douts, rest) = rest.split_at_mut(blocking.block_rows_len);
        let (weights, rest) = rest.split_at_mut(blocking.block_scores_len());
        let (dscores, rest) = rest.split_at_mut(blocking.block_scores_len());
        let dropout_factors = &mut rest[..blocking.score_stride];

        for (view, packed) in [(self.k, &mut *keys_t), (self.v, &mut *values_t)] {
            s.vectorize(PackTransposed { view, b, h, rows: keys, head_dim, packed });
        }
        let key_rows = self.panels_of(s, self.k, 0, keys, packed_keys);
        let mut query = 0;
        while query < queries {
            let block = QueryRange { first: query, rows: blocking.block_queries.min(queries - query) };
            let query_rows = self.panels_of(s, self.q, block.first, block.rows, packed_queries);
            let dout_rows = self.panels_of(s, self.dout, block.first, block.rows, packed_douts);
            // `weights` holds the scores and `dscores` the gradient of the weights until `softmax_grad` replaces them.
            self.multiply_keys(s, block, self.q, keys_t, weights);
            self.multiply_keys(s, block, self.dout, values_t, dscores);
            self.softmax_grad(s, block, weights, dscores, dropout_factors);
            self.write_dq(s, block, dscores, key_rows);
            self.add_to_keys(s, block, dscores, query_rows, self.scale, self.dk);
            self.add_to_keys(s, block, weights, dout_rows, 1.0, self.dv);
            query += block.rows;
        }
    }
}

#[derive(Clone, Copy)]
struct QueryRange {
    first: usize,
    rows: usize,
}

impl HeadGrad<'_> {
    /// Rows as the right-hand side of a product: in place where they are whole vectors that do not compete for the
    /// same cache sets.
    #[inline(always)]
    fn panels_of<S: Simd>(
        &self,
        s: S,
        view: HeadView<'_>,
        first: usize,
        rows: usize,
        packed: &mut [f32],
    ) -> PanelSource {
        let (b, h, head_dim) = (self.b, self.h, self.shape.head_dim);
        if head_dim.is_multiple_of(MAX_LANES) && !view.row_stride.is_multiple_of(CACHE_SET_STRIDE) {
            return PanelSource::Rows(view.at(b, first, h), view.row_stride);
        }
        s.vectorize(PackRows { view, b, h, first, rows, head_dim, packed: &mut *packed });
        PanelSource::Packed(packed.as_ptr())
    }

    /// `out = view keysᵀ`, for the queries of a block and transposed keys or values.
    #[inline(always)]
    fn multiply_keys<S: Simd>(&self, s: S, block: QueryRange, view: HeadView<'_>, keys_t: &[f32], out: &mut [f32]) {
        let product = HeadProduct {
            rows: block.rows,
            columns: self.shape.keys,
            k: self.shape.head_dim,
            a: view.at(self.b, block.first, self.h),
            lda: view.row_stride,
            transposed: false,
            b: PanelSource::Packed(keys_t.as_ptr()),
            out: out.as_mut_ptr(),
            ldo: self.blocking.score_stride,
            epilogue: HeadEpilogue::Store,
        };
        // SAFETY: the view has these queries, all keys are packed, and rows of scores have room for whole vectors.
        unsafe { multiply(s, product, None) };
    }

    /// Turns scores into weights, with dropout, and the gradient of the weights into that of the scores, both in place.
    #[inline(always)]
    fn softmax_grad<S: Simd>(
        &mut self,
        s: S,
        block: QueryRange,
        scores: &mut [f32],
        dweights: &mut [f32],
        dropout_factors: &mut [f32],
    ) {
        let AttentionShape { heads, queries, keys, head_dim, .. } = self.shape;
        let (b, h, stride) = (self.b, self.h, self.blocking.score_stride);
        // Without a bias the exponential applies the scale.
        let exp_scale = if self.bias.is_some() { 1.0 } else { self.scale };
        let factors = &mut dropout_factors[..keys];
        for r in 0..block.rows {
            let row = block.first + r;
            let scores = &mut scores[r * stride..][..keys];
            let dweights = &mut dweights[r * stride..][..keys];
            if let Some(bias) = self.bias {
                row::scale(s, scores, self.scale);
                row::add(s, scores, &bias[row * keys..][..keys]);
            }
            prefetch_row(s, self.out.at(b, row + PREFETCH_ROWS, h), head_dim);
            let delta = row::dot(s, self.dout.row(b, row, h, head_dim), self.out.row(b, row, h, head_dim));
            if let Some(dropout) = self.dropout {
                let index = ((b * heads + h) * queries + row) * keys;
                (dropout.factors)(index as u64, factors);
                row::mul(s, dweights, factors);
            }
            softmax_grad_row(s, scores, dweights, exp_scale, self.lse[row], delta);
            if self.dropout.is_some() {
                row::mul(s, scores, factors);
            }
            if let Some(dbias) = &mut self.dbias {
                row::add(s, &mut dbias[row * keys..][..keys], dweights);
            }
        }
    }

    /// `dQ = scale dS K` for the queries of a block.
    #[inline(always)]
    fn write_dq<S: Simd>(&self, s: S, block: QueryRange, dscores: &[f32], key_rows: PanelSource) {
        let product = HeadProduct {
            rows: block.rows,
            columns: self.shape.head_dim,
            k: self.shape.keys,
            a: dscores.as_ptr(),
            lda: self.blocking.score_stride,
            transposed: false,
            b: key_rows,
            out: self.dq.at(self.b, block.first, self.h),
            ldo: self.dq.row_stride,
            epilogue: HeadEpilogue::Scale { factor: self.scale, accumulate: false },
        };
        // SAFETY: there are `rows` rows of scores and `keys` rows of keys, and only this task writes this head.
        unsafe { multiply(s, product, None) };
    }

    /// `out += factor · scoresᵀ rows`, with terms for the queries of a block; the first block overwrites `out`.
    #[inline(always)]
    fn add_to_keys<S: Simd>(
        &self,
        s: S,
        block: QueryRange,
        scores: &[f32],
        rows: PanelSource,
        factor: f32,
        out: OutputView,
    ) {
        let product = HeadProduct {
            rows: self.shape.keys,
            columns: self.shape.head_dim,
            k: block.rows,
            a: scores.as_ptr(),
            lda: self.blocking.score_stride,
            transposed: true,
            b: rows,
            out: out.at(self.b, 0, self.h),
            ldo: out.row_stride,
            epilogue: HeadEpilogue::Scale { factor, accumulate: block.first > 0 },
        };
        // SAFETY: scores and right-hand side have a row for each query of the block, and only this task writes this
        // head.
        unsafe { multiply(s, product, None) };
    }
}

/// `p = exp(scale * score - lse)` and `ds = p * (dp - delta)`, both in place.
#[inline(always)]
fn softmax_grad_row<S: Simd>(s: S, scores: &mut [f32], dweights: &mut [f32], scale: f32, lse: f32, delta: f32) {
    let n = scores.len().min(dweights.len());
    let (scores, dweights) = (scores.as_mut_ptr(), dweights.as_mut_ptr());
    // For `exp2` instead of `exp`.
    let minus_lse = s.splat(-lse * std::f32::consts::LOG2_E);
    let scale = s.splat(scale * std::f32::consts::LOG2_E);
    let delta = s.splat(delta);
    let mut i = 0;
    while i < n {
        // SAFETY: reads and writes stay below n.
        unsafe {
            // Rounding must not take a weight above 1.
            let x = s.min(s.splat(0.0), s.mul_add(s.load_up_to(scores.add(i), n - i), scale, minus_lse));
            let p = exp2(s, x);
            let d = s.mul(p, s.sub(s.load_up_to(dweights.add(i), n - i), delta));
            s.store_up_to(scores.add(i), p, n - i);
            s.store_up_to(dweights.add(i), d, n - i);
        }
        i += S::LANES;
    }
}
