//! The forward pass: scores of a tile of queries, softmax, weighted sum of the values.

use super::exponentials::{Exponentials, Rest};
use super::microkernel::{Finish, LINE, PackKeys, PackValues, Product};
use super::{AttentionShape, Dropout, Output, View, ViewMut, check_bias};
use crate::gemm::{ALIGN, aligned, check_workspace};
use crate::isa::Isa;
use crate::pool::{DisjointMut, Pool};
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::softmax::{row_max, row_scale};

/// `out = dropout(softmax(scale * q kᵀ + bias)) v`, head by head.
#[derive(Debug)]
pub struct Attention<'a> {
    /// Sizes.
    pub shape: AttentionShape,
    /// Multiplies the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Queries.
    pub q: View<'a>,
    /// Keys.
    pub k: View<'a>,
    /// Values.
    pub v: View<'a>,
    /// The result, laid out as the queries are.
    pub out: ViewMut<'a>,
    /// Takes the logarithm of the sum of exponentials, `[batch, heads, queries]`, for the gradient.
    pub lse: Option<&'a mut [f32]>,
    /// Takes the weights before dropout, `[batch, heads, queries, keys]`.
    pub weights: Option<&'a mut [f32]>,
    /// `[groups, heads, queries, keys]` and the number of groups; sample `b` uses group `b % groups`.
    pub bias: Option<(&'a [f32], usize)>,
    /// Dropout of the weights.
    pub dropout: Option<Dropout<'a>>,
}

/// How many numbers of workspace [`forward`] needs.
pub fn forward_workspace(isa: Isa, threads: usize, shape: &AttentionShape) -> usize {
    Plan::new(isa, threads, shape).workspace(threads)
}

/// The most queries of a tile: their scores stay in the first-level cache at the usual lengths.
const TILE_QUERIES: usize = 12;
/// The most scores of a tile, which share the second-level cache with keys and values.
const TILE_SCORES: usize = 48 * 1024;
/// Heads for each thread that even out without being divided.
const HEADS_PER_THREAD: usize = 6;

/// How the work is divided. All sizes are multiples of a cache line.
#[derive(Clone, Copy)]
struct Plan {
    /// Queries of a tile.
    rows: usize,
    /// Distance of the rows of scores.
    stride: usize,
    /// Queries of a task: two tiles, one of which overlaps the other, where there are too few heads for the threads, else
    /// a head.
    task: usize,
    /// Lengths of what is packed of a head.
    keys: usize,
    values: usize,
}

impl Plan {
    fn new(isa: Isa, threads: usize, shape: &AttentionShape) -> Plan {
        let AttentionShape { batch, heads, queries, keys, head_dim } = *shape;
        let stride = keys.next_multiple_of(MAX_LANES);
        let unit = isa.dispatch(TileRows);
        let tiles = queries.div_ceil(unit).max(1);
        let most = (TILE_SCORES / stride.max(1)).min(TILE_QUERIES) / unit;
        let parts = tiles.div_ceil(most.max(1));
        let rows = tiles.div_ceil(parts) * unit;
        let whole = threads == 1 || batch * heads >= HEADS_PER_THREAD * threads;
        Plan {
            rows,
            stride,
            task: if whole { queries.max(1) } else { 2 * rows },
            keys: stride * head_dim,
            // Rows of whole vectors are read where they lie.
            values: if head_dim % MAX_LANES == 0 { 0 } else { keys * head_dim.next_multiple_of(MAX_LANES) },
        }
    }

    fn packed(&self) -> usize {
        self.keys + self.values
    }

    /// What a thread needs for a tile: scores, sums and largest scores.
    fn tile(&self) -> usize {
        self.rows * (self.stride + MAX_LANES) + self.rows.next_multiple_of(MAX_LANES)
    }

    /// What a thread needs beside what is packed: two tiles, factors of dropout and of rows.
    fn own(&self) -> usize {
        2 * self.tile() + self.stride + self.rows.next_multiple_of(MAX_LANES)
    }

    /// What a thread needs, the number of the packed head included.
    fn room(&self) -> usize {
        MAX_LANES + self.packed() + self.own()
    }

    fn workspace(&self, threads: usize) -> usize {
        threads * self.room() + ALIGN
    }
}

/// The rows of attention's register tile.
struct TileRows;

impl Kernel for TileRows {
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
pub fn forward(pool: &Pool, isa: Isa, attention: Attention<'_>, workspace: &mut [f32]) {
    let shape = attention.shape;
    let AttentionShape { batch, heads, queries, keys, head_dim } = shape;
    let rows = batch * heads * queries;
    attention.q.check("q", &shape, queries);
    attention.k.check("k", &shape, keys);
    attention.v.check("v", &shape, keys);
    let out = attention.out.check("out", &shape, queries);
    if let Some(lse) = &attention.lse {
        assert_eq!(lse.len(), rows, "attention: lse has the wrong length");
    }
    if let Some(weights) = &attention.weights {
        assert_eq!(weights.len(), rows * keys, "attention: weights have the wrong length");
    }
    if let Some((bias, groups)) = attention.bias {
        check_bias("bias", bias.len(), groups, &shape);
    }
    let plan = Plan::new(isa, pool.threads(), &shape);
    let room = plan.workspace(pool.threads());
    check_workspace("attention", workspace.len(), room);
    if rows == 0 || head_dim == 0 {
        return;
    }
    assert!(keys > 0, "attention: no keys");
    assert!(batch * heads < u32::MAX as usize, "attention: too many heads");

    let workspace = aligned(workspace, room - ALIGN).0;
    // No head is packed yet.
    workspace.chunks_exact_mut(plan.room()).for_each(|own| own[0] = f32::from_bits(u32::MAX));
    let workspaces = DisjointMut::new(workspace);
    let lse = attention.lse.map(DisjointMut::new);
    let weights = attention.weights.map(DisjointMut::new);
    let parts = queries.div_ceil(plan.task);
    pool.run_with_worker(batch * heads * parts, &|task, worker| {
        let (head, first) = (task / parts, task % parts * plan.task);
        let (b, h) = (head / heads, head % heads);
        let count = plan.task.min(queries - first);
        let row = head * queries + first;
        // SAFETY: tasks have rows of lse and weights of their own, and a worker index is used by one thread at a time.
        unsafe {
            let (packed_head, rest) = workspaces.slice(worker * plan.room(), plan.room()).split_at_mut(MAX_LANES);
            let (packed, own) = rest.split_at_mut(plan.packed());
            // The tasks of a head follow one another, so that a thread seldom packs a head more than once.
            if packed_head[0].to_bits() != head as u32 {
                packed_head[0] = f32::from_bits(head as u32);
                let (packed_k, packed_v) = packed.split_at_mut(plan.keys);
                isa.dispatch(PackKeys { view: attention.k, b, h, keys, head_dim, dst: packed_k.as_mut_ptr() });
                if !packed_v.is_empty() {
                    isa.dispatch(PackValues {
                        view: attention.v,
                        b,
                        h,
                        first: 0,
                        keys,
                        head_dim,
                        dst: packed_v.as_mut_ptr(),
                    });
                }
            }
            isa.dispatch(Rows {
                shape,
                plan,
                scale: attention.scale,
                b,
                h,
                first,
                count,
                q: attention.q,
                v: attention.v,
                packed: packed.as_ptr(),
                out,
                lse: lse.as_ref().map(|p| p.slice(row, count)),
                weights: weights.as_ref().map(|p| p.slice(row * keys, count * keys)),
                bias: attention
                    .bias
                    .map(|(bias, groups)| &bias[((b % groups) * heads + h) * queries * keys..][..queries * keys]),
                dropout: attention.dropout,
                own,
            });
        }
    });
}

/// Some queries of one head; the views have been checked.
struct Rows<'a> {
    shape: AttentionShape,
    plan: Plan,
    scale: f32,
    b: usize,
    h: usize,
    first: usize,
    count: usize,
    q: View<'a>,
    v: View<'a>,
    /// Keys, and values if they are packed.
    packed: *const f32,
    out: Output,
    lse: Option<&'a mut [f32]>,
    weights: Option<&'a mut [f32]>,
    /// Of this group and head, `[queries, keys]`.
    bias: Option<&'a [f32]>,
    dropout: Option<Dropout<'a>>,
    own: &'a mut [f32],
}

/// The numbers of a tile of queries.
struct Tile<'a> {
    /// Scores, then the weights before they are divided by their sum.
    scores: &'a mut [f32],
    /// The largest score of each lane of each row, then the sums.
    lanes: &'a mut [f32],
    /// The largest score of each row.
    tops: &'a mut [f32],
    /// Its place among the queries of the task.
    first: usize,
    rows: usize,
}

impl<'a> Tile<'a> {
    #[inline(always)]
    fn new(plan: &Plan, own: &'a mut [f32]) -> Tile<'a> {
        let (scores, rest) = own.split_at_mut(plan.rows * plan.stride);
        let (lanes, tops) = rest.split_at_mut(plan.rows * MAX_LANES);
        Tile { scores, lanes, tops, first: 0, rows: 0 }
    }
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let plan = self.plan;
        let (first, rest) = std::mem::take(&mut self.own).split_at_mut(plan.tile());
        let (second, rest) = rest.split_at_mut(plan.tile());
        let (factors, inverse) = rest.split_at_mut(plan.stride);
        let (mut tile, mut before) = (Tile::new(&plan, first), Tile::new(&plan, second));
        let mut done = 0;
        // While the values of one tile are summed up, the scores of the next become weights.
        while done < self.count || before.rows > 0 {
            tile.first = done;
            tile.rows = plan.rows.min(self.count - done);
            done += tile.rows;
            self.score(s, &mut tile);
            let mut exponentials = Exponentials {
                scores: tile.scores.as_mut_ptr(),
                stride: plan.stride,
                rows: tile.rows,
                keys: self.shape.keys,
                scale: self.exp_scale(),
                tops: tile.tops.as_ptr(),
                sums: tile.lanes.as_mut_ptr(),
            };
            self.weigh(s, &mut before, factors, inverse, &mut exponentials);
            s.vectorize(Rest(&mut exponentials));
            std::mem::swap(&mut tile, &mut before);
        }
    }
}

impl Rows<'_> {
    /// Whether the scores are scaled before the exponential, which without a bias does it on the way.
    #[inline(always)]
    fn early(&self) -> bool {
        self.bias.is_some() || self.scale <= 0.0
    }

    #[inline(always)]
    fn exp_scale(&self) -> f32 {
        if self.early() { 1.0 } else { self.scale }
    }

    /// The scores of a tile, and the largest of each row.
    #[inline(always)]
    fn score<S: Simd>(&mut self, s: S, tile: &mut Tile<'_>) {
        let AttentionShape { keys, head_dim, .. } = self.shape;
        let (b, h, stride) = (self.b, self.h, self.plan.stride);
        let (rows, query) = (tile.rows, self.first + tile.first);
        for r in rows..2 * rows {
            prefetch_row(s, self.q.at(b, query + r, h), head_dim);
        }
        tile.lanes.fill(f32::NEG_INFINITY);
        s.vectorize(Product {
            rows,
            columns: keys,
            k: head_dim,
            a: self.q.at(b, query, h),
            lda: self.q.row_stride,
            transposed: false,
            b: self.packed,
            ldb: 0,
            out: tile.scores.as_mut_ptr(),
            ldo: stride,
            finish: Finish::Largest(tile.lanes.as_mut_ptr()),
            meanwhile: std::ptr::null_mut(),
        });
        // What is slow to come is computed for all rows at once: one need not wait for the other.
        for r in 0..rows {
            let p = tile.scores[r * stride..][..keys].as_mut_ptr();
            // SAFETY: all rows have `keys` numbers, and there is a vector of the largest of each.
            tile.tops[r] = unsafe {
                if self.early() {
                    row_scale(s, p, keys, self.scale);
                    if let Some(bias) = self.bias {
                        row_add(s, p, bias[(query + r) * keys..][..keys].as_ptr(), keys);
                    }
                    row_max(s, p, keys)
                } else {
                    s.largest(s.load(tile.lanes[r * S::LANES..][..S::LANES].as_ptr()))
                }
            };
            let last = keys % S::LANES;
            if last > 0 {
                // SAFETY: rows are of whole vectors.
                unsafe {
                    let p = p.add(keys - last);
                    s.store(p, s.first_or(s.load(p), last, s.splat(f32::NEG_INFINITY)));
                }
            }
        }
    }

    /// The weighted sums of the values.
    #[inline(always)]
    fn weigh<S: Simd>(
        &mut self,
        s: S,
        tile: &mut Tile<'_>,
        factors: &mut [f32],
        inverse: &mut [f32],
        meanwhile: &mut Exponentials,
    ) {
        let AttentionShape { heads, queries, keys, head_dim, .. } = self.shape;
        let (b, h, stride) = (self.b, self.h, self.plan.stride);
        let (rows, query) = (tile.rows, self.first + tile.first);
        let exp_scale = self.exp_scale();
        for r in 0..rows {
            let row = &mut tile.scores[r * stride..][..keys];
            let p = row.as_mut_ptr();
            // SAFETY: there is a vector of sums of each row.
            let sum = s.sum(unsafe { s.load(tile.lanes[r * S::LANES..][..S::LANES].as_ptr()) });
            if let Some(lse) = &mut self.lse {
                lse[tile.first + r] = tile.tops[r] * exp_scale + sum.ln();
            }
            inverse[r] = 1.0 / sum;
            if let Some(weights) = &mut self.weights {
                let weights = &mut weights[(tile.first + r) * keys..][..keys];
                weights.copy_from_slice(row);
                // SAFETY: the row has `keys` numbers.
                unsafe { row_scale(s, weights.as_mut_ptr(), keys, inverse[r]) };
            }
            if let Some(dropout) = self.dropout {
                let index = ((b * heads + h) * queries + query + r) * keys;
                (dropout.factors)(index as u64, &mut factors[..keys]);
                // SAFETY: both rows have `keys` numbers.
                unsafe { row_mul(s, p, factors.as_ptr(), keys) };
            }
        }
        let (values, ldb) = match self.plan.values {
            0 => (self.v.at(b, 0, h), self.v.row_stride),
            _ => (self.packed.wrapping_add(self.plan.keys), 0),
        };
        s.vectorize(Product {
            rows,
            columns: head_dim,
            k: keys,
            a: tile.scores.as_ptr(),
            lda: stride,
            transposed: false,
            b: values,
            ldb,
            out: self.out.at(b, query, h),
            ldo: self.out.row_stride,
            finish: Finish::Scale(inverse.as_ptr()),
            meanwhile,
        });
    }
}

/// Asks for a row of `n` numbers, which need not be valid.
#[inline(always)]
pub(super) fn prefetch_row<S: Simd>(s: S, x: *const f32, n: usize) {
    let mut i = 0;
    while i < n {
        s.prefetch(x.wrapping_add(i));
        i += LINE;
    }
}

/// `x += y`.
///
/// # Safety
/// `n` numbers must be readable at `y` and writable at `x`.
#[inline(always)]
pub(super) unsafe fn row_add<S: Simd>(s: S, x: *mut f32, y: *const f32, n: usize) {
    let mut i = 0;
    while i < n {
        // SAFETY: reads and writes stay below n.
        unsafe {
            let v = s.add(s.load_up_to(x.add(i), n - i), s.load_up_to(y.add(i), n - i));
            s.store_up_to(x.add(i), v, n - i);
        }
        i += S::LANES;
    }
}

/// `x *= y`.
///
/// # Safety
/// `n` numbers must be readable at `y` and writable at `x`.
#[inline(always)]
pub(super) unsafe fn row_mul<S: Simd>(s: S, x: *mut f32, y: *const f32, n: usize) {
    let mut i = 0;
    while i < n {
        // SAFETY: reads and writes stay below n.
        unsafe {
            let v = s.mul(s.load_up_to(x.add(i), n - i), s.load_up_to(y.add(i), n - i));
            s.store_up_to(x.add(i), v, n - i);
        }
        i += S::LANES;
    }
}
