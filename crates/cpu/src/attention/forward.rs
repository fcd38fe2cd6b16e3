//! The forward pass: scores of a block of queries, softmax, weighted sum of the values.

use super::exponentials::{Exponentials, FinishExponentials};
use super::microkernel::{HeadEpilogue, HeadProduct, PanelSource, multiply};
use super::packing::{PackRows, PackTransposed, prefetch_row};
use super::{
    AttentionShape, HeadView, HeadViewMut, MAX_BLOCK_SCORES, OutputView, WeightDropout, check_bias, head_bias,
};
use crate::gemm::{ALIGN, aligned, check_workspace};
use crate::isa::Isa;
use crate::simd::{Kernel, MAX_LANES, Simd, row};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// `out = dropout(softmax(scale * q kᵀ + bias)) v`, head by head.
#[derive(Debug)]
pub struct AttentionArgs<'a> {
    /// Extents.
    pub shape: AttentionShape,
    /// Multiplies the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Queries.
    pub q: HeadView<'a>,
    /// Keys.
    pub k: HeadView<'a>,
    /// Values.
    pub v: HeadView<'a>,
    /// The result, a row for each query, with strides of its own.
    pub out: HeadViewMut<'a>,
    /// Receives the natural logarithm of the sum of exponentials, `[batch, heads, queries]`, for the gradient.
    pub lse: Option<&'a mut [f32]>,
    /// Receives the weights before dropout, `[batch, heads, queries, keys]`.
    pub weights: Option<&'a mut [f32]>,
    /// `[groups, heads, queries, keys]` and the number of groups; sample `b` uses group `b % groups`.
    pub bias: Option<(&'a [f32], usize)>,
    /// Dropout of the weights.
    pub dropout: Option<WeightDropout<'a>>,
}

impl AttentionArgs<'_> {
    fn check(&self) {
        let AttentionShape { batch, heads, queries, keys, .. } = self.shape;
        let rows = batch * heads * queries;
        self.q.check("q", &self.shape, queries);
        self.k.check("k", &self.shape, keys);
        self.v.check("v", &self.shape, keys);
        if let Some(lse) = &self.lse {
            assert_eq!(lse.len(), rows, "attention: lse has the wrong length");
        }
        if let Some(weights) = &self.weights {
            assert_eq!(weights.len(), rows * keys, "attention: weights have the wrong length");
        }
        if let Some((bias, groups)) = self.bias {
            check_bias("bias", bias.len(), groups, &self.shape);
        }
    }
}

/// Elements of workspace that [`forward`] needs.
pub fn forward_workspace(isa: Isa, threads: usize, shape: &AttentionShape) -> usize {
    ForwardBlocking::new(isa, threads, shape).workspace_len(threads)
}

/// The most queries of a block: their scores stay in the first-level cache at the usual key counts.
const MAX_BLOCK_QUERIES: usize = 12;
/// From this many heads per thread on, whole heads balance the load well enough.
const HEADS_PER_THREAD: usize = 6;

/// How queries are divided into blocks and tasks, and the lengths of the buffers in the workspace, which are whole
/// cache lines.
#[derive(Clone, Copy)]
struct ForwardBlocking {
    block_queries: usize,
    /// Elements from one row of scores to the next.
    score_stride: usize,
    /// Queries of a task: a whole head; or, where there are too few heads for the threads, two blocks, the fewest that
    /// can be pipelined.
    task_queries: usize,
    packed_keys_len: usize,
    /// 0 where the values are read in place.
    packed_values_len: usize,
}

impl ForwardBlocking {
    fn new(isa: Isa, threads: usize, shape: &AttentionShape) -> Self {
        let AttentionShape { batch, heads, queries, keys, head_dim } = *shape;
        let score_stride = keys.next_multiple_of(MAX_LANES);
        let tile_rows = isa.dispatch(HeadTileRows);
        let tiles = queries.div_ceil(tile_rows).max(1);
        let max_tiles = (MAX_BLOCK_SCORES / score_stride.max(1)).min(MAX_BLOCK_QUERIES) / tile_rows;
        let blocks = tiles.div_ceil(max_tiles.max(1));
        let block_queries = tiles.div_ceil(blocks) * tile_rows;
        let whole_heads = threads == 1 || batch * heads >= HEADS_PER_THREAD * threads;
        // Values whose rows are whole vectors are read in place.
        let in_place = head_dim.is_multiple_of(MAX_LANES);
        ForwardBlocking {
            block_queries,
            score_stride,
            task_queries: if whole_heads { queries.max(1) } else { 2 * block_queries },
            packed_keys_len: score_stride * head_dim,
            packed_values_len: if in_place { 0 } else { keys * head_dim.next_multiple_of(MAX_LANES) },
        }
    }

    fn packed_len(&self) -> usize {
        self.packed_keys_len + self.packed_values_len
    }

    /// Scores, sums by lane, and maxima of a block.
    fn block_len(&self) -> usize {
        self.block_queries * (self.score_stride + MAX_LANES) + self.block_queries.next_multiple_of(MAX_LANES)
    }

    /// Two blocks, dropout factors of a row of scores, and a factor for each query.
    fn scratch_len(&self) -> usize {
        2 * self.block_len() + self.score_stride + self.block_queries.next_multiple_of(MAX_LANES)
    }

    /// The index of the packed head, in a cache line, its packed keys and values, and scratch.
    fn worker_len(&self) -> usize {
        MAX_LANES + self.packed_len() + self.scratch_len()
    }

    fn workspace_len(&self, threads: usize) -> usize {
        threads * self.worker_len() + ALIGN
    }
}

struct HeadTileRows;

impl Kernel for HeadTileRows {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::HEAD_TILE_ROWS
    }
}

/// Computes attention on the threads of the pool.
///
/// # Panics
/// If a slice is too short for the shape, or rows of the output overlap.
pub fn forward(pool: &ThreadPool, isa: Isa, args: AttentionArgs<'_>, workspace: &mut [f32]) {
    args.check();
    let AttentionArgs { shape, scale, q, k, v, out, lse, weights, bias, dropout } = args;
    let AttentionShape { batch, heads, queries, keys, head_dim } = shape;
    let out = out.into_checked("out", &shape, queries);
    let blocking = ForwardBlocking::new(isa, pool.threads(), &shape);
    let needed = blocking.workspace_len(pool.threads());
    check_workspace("attention", workspace.len(), needed);
    if batch * heads * queries == 0 || head_dim == 0 {
        return;
    }
    assert!(keys > 0, "attention: no keys");
    assert!(batch * heads < u32::MAX as usize, "attention: too many heads");

    let workspace = aligned(workspace, needed - ALIGN).0;
    // The first element of a worker's own workspace holds the index of its packed head, as bits; at first no head is
    // packed.
    workspace.chunks_exact_mut(blocking.worker_len()).for_each(|own| own[0] = f32::from_bits(u32::MAX));
    let workspaces = DisjointMut::new(workspace);
    let (lse, weights) = (lse.map(DisjointMut::new), weights.map(DisjointMut::new));
    let tasks_per_head = queries.div_ceil(blocking.task_queries);
    pool.run_with_worker(batch * heads * tasks_per_head, &|task, worker| {
        let (head, first_query) = (task / tasks_per_head, task % tasks_per_head * blocking.task_queries);
        let (b, h) = (head / heads, head % heads);
        let query_count = blocking.task_queries.min(queries - first_query);
        let row = head * queries + first_query;
        // SAFETY: the ranges of workers do not overlap, and a worker index is used by one thread at a time.
        let own = unsafe { workspaces.slice(worker * blocking.worker_len(), blocking.worker_len()) };
        let (packed_head, rest) = own.split_at_mut(MAX_LANES);
        let (packed, scratch) = rest.split_at_mut(blocking.packed_len());
        let (packed_keys, packed_values) = packed.split_at_mut(blocking.packed_keys_len);
        // The tasks of a head follow one another, so that a thread rarely packs a head more than once.
        if packed_head[0].to_bits() != head as u32 {
            packed_head[0] = f32::from_bits(head as u32);
            isa.dispatch(PackTransposed { view: k, b, h, rows: keys, head_dim, packed: &mut *packed_keys });
            if !packed_values.is_empty() {
                isa.dispatch(PackRows { view: v, b, h, first: 0, rows: keys, head_dim, packed: &mut *packed_values });
            }
        }
        isa.dispatch(HeadQueries {
            shape,
            blocking,
            scale,
            b,
            h,
            first_query,
            query_count,
            q,
            v,
            packed_keys,
            packed_values,
            out,
            // SAFETY: tasks have disjoint rows of lse and weights.
            lse: lse.as_ref().map(|lse| unsafe { lse.slice(row, query_count) }),
            // SAFETY: as above.
            weights: weights.as_ref().map(|weights| unsafe { weights.slice(row * keys, query_count * keys) }),
            bias: head_bias(bias, &shape, b, h),
            dropout,
            scratch,
        });
    });
}

/// Some queries of one head. The views have been checked, and only this task writes these rows of the output.
struct HeadQueries<'a> {
    shape: AttentionShape,
    blocking: ForwardBlocking,
    scale: f32,
    /// The sample and the head.
    b: usize,
    h: usize,
    first_query: usize,
    query_count: usize,
    q: HeadView<'a>,
    v: HeadView<'a>,
    packed_keys: &'a [f32],
    /// Empty where the values are read in place.
    packed_values: &'a [f32],
    out: OutputView,
    lse: Option<&'a mut [f32]>,
    weights: Option<&'a mut [f32]>,
    /// `[queries, keys]`
    bias: Option<&'a [f32]>,
    dropout: Option<WeightDropout<'a>>,
    scratch: &'a mut [f32],
}

struct QueryBlock<'a> {
    /// `[rows][score_stride]`: scores, then the weights before they are divided by their sum.
    scores: &'a mut [f32],
    /// `[rows][LANES]`: the maximum of each lane, then the sum of each lane.
    lanes: &'a mut [f32],
    /// The maximum of each row.
    maxima: &'a mut [f32],
    /// The first query, counted from the first of the task.
    offset: usize,
    rows: usize,
}

impl<'a> QueryBlock<'a> {
    #[inline(always)]
    fn new(blocking: &ForwardBlocking, memory: &'a mut [f32]) -> Self {
        let (scores, rest) = memory.split_at_mut(blocking.block_queries * blocking.score_stride);
        let (lanes, maxima) = rest.split_at_mut(blocking.block_queries * MAX_LANES);
        QueryBlock { scores, lanes, maxima, offset: 0, rows: 0 }
    }

    #[inline(always)]
    fn lanes_of<S: Simd>(&self, s: S, row: usize) -> S::V {
        let lanes = &self.lanes[row * S::LANES..][..S::LANES];
        // SAFETY: the slice has LANES elements.
        unsafe { s.load(lanes.as_ptr()) }
    }
}

impl Kernel for HeadQueries<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let blocking = self.blocking;
        let (next, rest) = std::mem::take(&mut self.scratch).split_at_mut(blocking.block_len());
        let (current, rest) = rest.split_at_mut(blocking.block_len());
        let (dropout_factors, inverse_sums) = rest.split_at_mut(blocking.score_stride);
        let (mut next, mut current) = (QueryBlock::new(&blocking, next), QueryBlock::new(&blocking, current));
        let mut scored = 0;
        // Software pipelining: the exponentials of the next block are interleaved with the weighted sums of the
        // current.
        while scored < self.query_count || current.rows > 0 {
            next.offset = scored;
            next.rows = blocking.block_queries.min(self.query_count - scored);
            scored += next.rows;
            self.score(s, &mut next);
            let mut exponentials = Exponentials::new(
                [next.rows, self.shape.keys],
                self.exp_scale(),
                (next.scores, blocking.score_stride),
                next.maxima,
                next.lanes,
            );
            self.finish_weights(s, &mut current, dropout_factors, inverse_sums);
            self.sum_values(s, &current, inverse_sums, &mut exponentials);
            s.vectorize(FinishExponentials(&mut exponentials));
            std::mem::swap(&mut next, &mut current);
        }
    }
}

impl HeadQueries<'_> {
    /// Whether scores are scaled before the exponential, instead of by it: a bias is added to scaled scores, and a
    /// scale that is not positive changes which score is the maximum.
    #[inline(always)]
    fn scales_early(&self) -> bool {
        self.bias.is_some() || self.scale <= 0.0
    }

    #[inline(always)]
    fn exp_scale(&self) -> f32 {
        if self.scales_early() { 1.0 } else { self.scale }
    }

    /// The scores of a block, padded to whole vectors with minus infinity, and the maximum of each row.
    #[inline(always)]
    fn score<S: Simd>(&mut self, s: S, block: &mut QueryBlock<'_>) {
        let AttentionShape { keys, head_dim, .. } = self.shape;
        let (b, h, stride) = (self.b, self.h, self.blocking.score_stride);
        let (rows, query) = (block.rows, self.first_query + block.offset);
        // The queries of the next block.
        for r in rows..2 * rows {
            prefetch_row(s, self.q.at(b, query + r, h), head_dim);
        }
        block.lanes.fill(f32::NEG_INFINITY);
        let product = HeadProduct {
            rows,
            columns: keys,
            k: head_dim,
            a: self.q.at(b, query, h),
            lda: self.q.row_stride,
            transposed: false,
            b: PanelSource::Packed(self.packed_keys.as_ptr()),
            out: block.scores.as_mut_ptr(),
            ldo: stride,
            epilogue: HeadEpilogue::StoreAndMax(block.lanes.as_mut_ptr()),
        };
        // SAFETY: the view has these queries, all keys are packed, and the block has `rows` rows of scores of whole
        // vectors and of lanes.
        unsafe { multiply(s, product, None) };
        // A separate loop: the horizontal maxima of the rows are independent, and their latencies overlap.
        for r in 0..rows {
            let scores = &mut block.scores[r * stride..][..stride];
            block.maxima[r] = if self.scales_early() {
                row::scale(s, &mut scores[..keys], self.scale);
                if let Some(bias) = self.bias {
                    row::add(s, &mut scores[..keys], &bias[(query + r) * keys..][..keys]);
                }
                row::max(s, &scores[..keys])
            } else {
                s.largest(block.lanes_of(s, r))
            };
            let last = keys % S::LANES;
            if last > 0 {
                let padded = &mut block.scores[r * stride + keys - last..][..S::LANES];
                // SAFETY: the slice has LANES elements.
                unsafe {
                    let v = s.first_or(s.load(padded.as_ptr()), last, s.splat(f32::NEG_INFINITY));
                    s.store(padded.as_mut_ptr(), v);
                }
            }
        }
    }

    /// Log-sum-exp, inverse sums and dropout of a block whose exponentials are known, and the weights if requested.
    #[inline(always)]
    fn finish_weights<S: Simd>(
        &mut self,
        s: S,
        block: &mut QueryBlock<'_>,
        dropout_factors: &mut [f32],
        inverse_sums: &mut [f32],
    ) {
        let AttentionShape { heads, queries, keys, .. } = self.shape;
        let exp_scale = self.exp_scale();
        for (r, inverse_sum) in inverse_sums[..block.rows].iter_mut().enumerate() {
            let sum = s.sum(block.lanes_of(s, r));
            let exponentials = &mut block.scores[r * self.blocking.score_stride..][..keys];
            *inverse_sum = 1.0 / sum;
            let row = block.offset + r;
            if let Some(lse) = &mut self.lse {
                lse[row] = block.maxima[r] * exp_scale + sum.ln();
            }
            if let Some(weights) = &mut self.weights {
                let weights = &mut weights[row * keys..][..keys];
                weights.copy_from_slice(exponentials);
                row::scale(s, weights, *inverse_sum);
            }
            if let Some(dropout) = self.dropout {
                let index = ((self.b * heads + self.h) * queries + self.first_query + row) * keys;
                (dropout.factors)(index as u64, &mut dropout_factors[..keys]);
                row::mul(s, exponentials, &dropout_factors[..keys]);
            }
        }
    }

    /// The weighted sums of the values, interleaved with the exponentials of the next block.
    #[inline(always)]
    fn sum_values<S: Simd>(
        &mut self,
        s: S,
        block: &QueryBlock<'_>,
        inverse_sums: &[f32],
        exponentials: &mut Exponentials<'_>,
    ) {
        let AttentionShape { keys, head_dim, .. } = self.shape;
        let (b, h, query) = (self.b, self.h, self.first_query + block.offset);
        let values = match self.packed_values {
            [] => PanelSource::Rows(self.v.at(b, 0, h), self.v.row_stride),
            packed => PanelSource::Packed(packed.as_ptr()),
        };
        let product = HeadProduct {
            rows: block.rows,
            columns: head_dim,
            k: keys,
            a: block.scores.as_ptr(),
            lda: self.blocking.score_stride,
            transposed: false,
            b: values,
            out: self.out.at(b, query, h),
            ldo: self.out.row_stride,
            epilogue: HeadEpilogue::ScaleRows(inverse_sums.as_ptr()),
        };
        // SAFETY: the block has `rows` rows of weights and inverse sums, values that are read in place have rows of
        // whole vectors, and only this task writes these rows of the output.
        unsafe { multiply(s, product, Some(exponentials)) };
    }
}
