//! The forward pass: scores of a tile of queries, softmax, weighted sum of the values.

use super::{AttentionShape, Dropout, Output, ScoreTile, View, ViewMut, check_bias, packed_room};
use crate::gemm::{ALIGN, ALayout, BLayout, Block, Epilogue, PackPanels, aligned, check_workspace, packed_len};
use crate::isa::Isa;
use crate::pool::{Parts, Pool};
use crate::simd::{Kernel, Simd};
use crate::softmax::{row_exp, row_max, row_scale};

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
    threads * worker_room(isa, shape)
}

fn worker_room(isa: Isa, shape: &AttentionShape) -> usize {
    let AttentionShape { keys, head_dim, .. } = *shape;
    let tile = ScoreTile::new(shape);
    packed_room(isa, head_dim, keys) + packed_room(isa, keys, head_dim) + tile.len() + ALIGN + tile.stride + tile.rows
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
    let room = worker_room(isa, &shape);
    check_workspace("attention", workspace.len(), room * pool.threads());
    if rows == 0 || head_dim == 0 {
        return;
    }
    assert!(keys > 0, "attention: no keys");

    let tile = ScoreTile::new(&shape);
    let part_rows = rows_per_task(pool.threads(), batch * heads, queries);
    let parts = queries.div_ceil(part_rows);
    let lse = attention.lse.map(Parts::new);
    let weights = attention.weights.map(Parts::new);
    let workspaces = Parts::new(workspace);
    pool.run_with_worker(batch * heads * parts, &|task, worker| {
        let (head, part) = (task / parts, task % parts);
        let (b, h) = (head / heads, head % heads);
        let first = part * part_rows;
        let count = part_rows.min(queries - first);
        let row = head * queries + first;
        // SAFETY: tasks have rows of lse and weights of their own, and a worker index is used by one thread at a time.
        unsafe {
            isa.dispatch(Rows {
                isa,
                shape,
                tile,
                scale: attention.scale,
                b,
                h,
                first,
                count,
                q: attention.q,
                k: attention.k,
                v: attention.v,
                out,
                lse: lse.as_ref().map(|p| p.slice(row, count)),
                weights: weights.as_ref().map(|p| p.slice(row * keys, count * keys)),
                bias: attention
                    .bias
                    .map(|(bias, groups)| &bias[((b % groups) * heads + h) * queries * keys..][..queries * keys]),
                dropout: attention.dropout,
                workspace: workspaces.slice(worker * room, room),
            });
        }
    });
}

/// With few heads their queries are shared out too, at the price of packing keys and values again for each part: in as
/// many parts as keep the threads busy, and evenly so if that takes few more.
fn rows_per_task(threads: usize, heads: usize, queries: usize) -> usize {
    if threads == 1 {
        return queries;
    }
    let enough = (3 * threads).div_ceil(heads);
    let even = (enough..enough + threads).find(|parts| (parts * heads).is_multiple_of(threads));
    let parts = if enough == 1 { 1 } else { even.unwrap_or(enough) };
    // Parts much smaller than this cost more in packing than they compute.
    queries.div_ceil(parts).next_multiple_of(8).max(24)
}

/// Some queries of one head; the views have been checked.
struct Rows<'a> {
    isa: Isa,
    shape: AttentionShape,
    tile: ScoreTile,
    scale: f32,
    b: usize,
    h: usize,
    first: usize,
    count: usize,
    q: View<'a>,
    k: View<'a>,
    v: View<'a>,
    out: Output,
    lse: Option<&'a mut [f32]>,
    weights: Option<&'a mut [f32]>,
    /// Of this group and head, `[queries, keys]`.
    bias: Option<&'a [f32]>,
    dropout: Option<Dropout<'a>>,
    workspace: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let AttentionShape { heads, queries, keys, head_dim, .. } = self.shape;
        let (b, h, stride) = (self.b, self.h, self.tile.stride);
        let (packed_k, rest) = aligned(self.workspace, packed_len(self.isa, head_dim, keys));
        let (packed_v, rest) = aligned(rest, packed_len(self.isa, keys, head_dim));
        let (scores, rest) = aligned(rest, self.tile.len());
        let (factors, rest) = rest.split_at_mut(stride);
        let inverse = &mut rest[..self.tile.rows];
        s.vectorize(PackPanels {
            src: self.k.at(b, 0, h),
            layout: BLayout::RowsAreN,
            ld: self.k.row_stride,
            k: head_dim,
            n: keys,
            dst: packed_k.as_mut_ptr(),
        });
        s.vectorize(PackPanels {
            src: self.v.at(b, 0, h),
            layout: BLayout::RowsAreK,
            ld: self.v.row_stride,
            k: keys,
            n: head_dim,
            dst: packed_v.as_mut_ptr(),
        });

        // Without a bias the scale is left to the exponential, and the scores go to the tile as they are.
        let (block_scale, exp_scale) =
            if self.bias.is_none() && self.scale > 0.0 { (1.0, self.scale) } else { (self.scale, 1.0) };
        let mut done = 0;
        while done < self.count {
            let rows = self.tile.rows.min(self.count - done);
            let query = self.first + done;
            s.vectorize(Block {
                m: rows,
                n: keys,
                k: head_dim,
                a: self.q.at(b, query, h),
                lda: self.q.row_stride,
                a_layout: ALayout::RowMajor,
                b: packed_k.as_ptr(),
                c: scores.as_mut_ptr(),
                ldc: stride,
                alpha: block_scale,
                accumulate: false,
                epilogue: Epilogue::default(),
                scratch: &mut [],
            });
            for r in 0..rows {
                let row = &mut scores[r * stride..][..keys];
                let p = row.as_mut_ptr();
                if let Some(bias) = self.bias {
                    let bias = &bias[(query + r) * keys..][..keys];
                    // SAFETY: both rows have `keys` numbers.
                    unsafe { row_add(s, p, bias.as_ptr(), keys) };
                }
                // SAFETY: the row has `keys` numbers.
                let (largest, sum) = unsafe {
                    let largest = row_max(s, p, keys);
                    (largest, row_exp(s, p, keys, largest, exp_scale, p))
                };
                inverse[r] = 1.0 / sum;
                if let Some(lse) = &mut self.lse {
                    lse[done + r] = largest * exp_scale + sum.ln();
                }
                if let Some(weights) = &mut self.weights {
                    let weights = &mut weights[(done + r) * keys..][..keys];
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
            s.vectorize(Block {
                m: rows,
                n: head_dim,
                k: keys,
                a: scores.as_ptr(),
                lda: stride,
                a_layout: ALayout::RowMajor,
                b: packed_v.as_ptr(),
                c: self.out.at(b, query, h),
                ldc: self.out.row_stride,
                alpha: 1.0,
                accumulate: false,
                epilogue: Epilogue::default(),
                scratch: &mut [],
            });
            for (r, &inverse) in inverse[..rows].iter().enumerate() {
                // SAFETY: a row of the checked output has `head_dim` numbers, and it belongs to this task.
                unsafe { row_scale(s, self.out.at(b, query + r, h), head_dim, inverse) };
            }
            done += rows;
        }
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
