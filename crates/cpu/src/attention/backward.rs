//! The backward pass: the weights are computed again from the saved logarithms, tile by tile, never stored.

use super::forward::{prefetch_row, row_add, row_mul};
use super::microkernel::{AHEAD, Finish, PackKeys, PackValues, Product};
use super::{AttentionShape, Dropout, Output, ScoreTile, View, ViewMut, check_bias};
use crate::gemm::{ALIGN, aligned, check_workspace};
use crate::isa::Isa;
use crate::pool::{DisjointMut, Pool};
use crate::simd::math::exp2;
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::softmax::{row_dot, row_scale};

/// The gradient of an [`super::Attention`] with the same shape, scale, inputs, bias and dropout.
#[derive(Debug)]
pub struct AttentionGrad<'a> {
    /// Sizes.
    pub shape: AttentionShape,
    /// The scale of the forward pass.
    pub scale: f32,
    /// Queries.
    pub q: View<'a>,
    /// Keys.
    pub k: View<'a>,
    /// Values.
    pub v: View<'a>,
    /// The result of the forward pass.
    pub out: View<'a>,
    /// The gradient of the result.
    pub dout: View<'a>,
    /// `lse` of the forward pass.
    pub lse: &'a [f32],
    /// The bias of the forward pass.
    pub bias: Option<(&'a [f32], usize)>,
    /// The dropout of the forward pass.
    pub dropout: Option<Dropout<'a>>,
    /// The gradients of queries, keys and values, which are overwritten.
    pub outputs: GradOutputs<'a>,
    /// The gradient of the bias, `[groups, heads, queries, keys]` and the number of groups: the sum over the samples
    /// of a group. It may be wanted for a bias that is not there.
    pub dbias: Option<(&'a mut [f32], usize)>,
}

/// Where the gradients of queries, keys and values go.
#[derive(Debug)]
pub enum GradOutputs<'a> {
    /// Three buffers.
    Separate {
        /// Of the queries.
        dq: ViewMut<'a>,
        /// Of the keys.
        dk: ViewMut<'a>,
        /// Of the values.
        dv: ViewMut<'a>,
    },
    /// One buffer `[batch, rows, 3, heads, head_dim]`, with as many keys as queries.
    Packed(&'a mut [f32]),
}

/// How many numbers of workspace [`backward`] needs.
pub fn backward_workspace(threads: usize, shape: &AttentionShape) -> usize {
    threads * worker_room(shape)
}

fn worker_room(shape: &AttentionShape) -> usize {
    let tile = ScoreTile::new(shape);
    let rooms = Rooms::new(shape);
    2 * rooms.across + rooms.down + 2 * rooms.tile_down + 2 * tile.len() + tile.stride + ALIGN
}

/// Lengths of what is packed, all multiples of a cache line.
struct Rooms {
    /// Keys or values, a column each.
    across: usize,
    /// Keys, a row each.
    down: usize,
    /// The queries of a tile or what belongs to them, a row each.
    tile_down: usize,
}

impl Rooms {
    fn new(shape: &AttentionShape) -> Rooms {
        let width = shape.head_dim.next_multiple_of(MAX_LANES);
        Rooms {
            across: shape.keys.next_multiple_of(MAX_LANES) * shape.head_dim,
            down: shape.keys * width,
            tile_down: ScoreTile::new(shape).rows * width,
        }
    }
}

/// Computes the gradients on the threads of the pool.
///
/// # Panics
/// If a slice is too short for the shape, or rows of an output overlap.
pub fn backward(pool: &Pool, isa: Isa, grad: AttentionGrad<'_>, workspace: &mut [f32]) {
    let shape = grad.shape;
    let AttentionShape { batch, heads, queries, keys, head_dim } = shape;
    grad.q.check("q", &shape, queries);
    grad.k.check("k", &shape, keys);
    grad.v.check("v", &shape, keys);
    grad.out.check("out", &shape, queries);
    grad.dout.check("dout", &shape, queries);
    assert_eq!(grad.lse.len(), batch * heads * queries, "attention: lse has the wrong length");
    if let Some((bias, groups)) = grad.bias {
        check_bias("bias", bias.len(), groups, &shape);
    }
    if let Some((dbias, groups)) = &grad.dbias {
        check_bias("dbias", dbias.len(), *groups, &shape);
    }
    let [dq, dk, dv] = match grad.outputs {
        GradOutputs::Separate { dq, dk, dv } => {
            [dq.check("dq", &shape, queries), dk.check("dk", &shape, keys), dv.check("dv", &shape, keys)]
        }
        GradOutputs::Packed(data) => packed_outputs(data, &shape),
    };
    let room = worker_room(&shape);
    check_workspace("attention gradient", workspace.len(), room * pool.threads());
    if batch * heads * queries == 0 || head_dim == 0 {
        return;
    }
    assert!(keys > 0, "attention: no keys");

    // The samples of a group add to the same gradient of the bias: they are one task, in order.
    let (groups, dbias) = match grad.dbias {
        Some((dbias, groups)) => (groups, Some(DisjointMut::new(dbias))),
        None => (batch, None),
    };
    let workspaces = DisjointMut::new(workspace);
    pool.run_with_worker(groups * heads, &|task, worker| {
        let (group, h) = (task / heads, task % heads);
        // SAFETY: tasks have a head of the bias's gradient of their own, and a worker index is used by one thread at
        // a time.
        let (mut dbias, workspace) = unsafe {
            (
                dbias.as_ref().map(|p| p.slice(task * queries * keys, queries * keys)),
                workspaces.slice(worker * room, room),
            )
        };
        if let Some(dbias) = &mut dbias {
            dbias.fill(0.0);
        }
        for b in (group..batch).step_by(groups) {
            isa.dispatch(Head {
                shape,
                tile: ScoreTile::new(&shape),
                scale: grad.scale,
                b,
                h,
                q: grad.q,
                k: grad.k,
                v: grad.v,
                out: grad.out,
                dout: grad.dout,
                lse: &grad.lse[(b * heads + h) * queries..][..queries],
                bias: grad
                    .bias
                    .map(|(bias, groups)| &bias[((b % groups) * heads + h) * queries * keys..][..queries * keys]),
                dropout: grad.dropout,
                dq,
                dk,
                dv,
                dbias: dbias.as_deref_mut(),
                workspace: &mut *workspace,
            });
        }
    });
}

fn packed_outputs(data: &mut [f32], shape: &AttentionShape) -> [Output; 3] {
    let width = shape.heads * shape.head_dim;
    assert_eq!(shape.queries, shape.keys, "attention: packed gradients need as many keys as queries");
    assert_eq!(
        data.len(),
        shape.batch * shape.queries * 3 * width,
        "attention: packed gradients have the wrong length for {shape:?}"
    );
    let start = data.as_mut_ptr();
    [0, 1, 2].map(|part| Output {
        start: start.wrapping_add(part * width),
        batch_stride: shape.queries * 3 * width,
        row_stride: 3 * width,
        head_stride: shape.head_dim,
    })
}

/// One head of one sample; the views have been checked, and the outputs of this head belong to this task.
struct Head<'a> {
    shape: AttentionShape,
    tile: ScoreTile,
    scale: f32,
    b: usize,
    h: usize,
    q: View<'a>,
    k: View<'a>,
    v: View<'a>,
    out: View<'a>,
    dout: View<'a>,
    lse: &'a [f32],
    bias: Option<&'a [f32]>,
    dropout: Option<Dropout<'a>>,
    dq: Output,
    dk: Output,
    dv: Output,
    dbias: Option<&'a mut [f32]>,
    workspace: &'a mut [f32],
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let AttentionShape { heads, queries, keys, head_dim, .. } = self.shape;
        let (b, h, stride) = (self.b, self.h, self.tile.stride);
        let rooms = Rooms::new(&self.shape);
        let (keys_across, rest) = aligned(self.workspace, rooms.across);
        let (values_across, rest) = rest.split_at_mut(rooms.across);
        let (keys_down, rest) = rest.split_at_mut(rooms.down);
        let (queries_down, rest) = rest.split_at_mut(rooms.tile_down);
        let (douts_down, rest) = rest.split_at_mut(rooms.tile_down);
        let (weights, rest) = rest.split_at_mut(self.tile.len());
        let (dscores, rest) = rest.split_at_mut(self.tile.len());
        let factors = &mut rest[..stride];
        for (view, dst) in [(self.k, &mut *keys_across), (self.v, &mut *values_across)] {
            s.vectorize(PackKeys { view, b, h, keys, head_dim, dst: dst.as_mut_ptr() });
        }
        // Rows of whole vectors are read where they lie, unless they are so far apart that they compete for the same
        // places in the cache.
        let rows_of = |view: View<'_>, first: usize, count: usize, dst: &mut [f32]| {
            if head_dim % MAX_LANES == 0 && !view.row_stride.is_multiple_of(1024) {
                return (view.at(b, first, h), view.row_stride);
            }
            s.vectorize(PackValues { view, b, h, first, keys: count, head_dim, dst: dst.as_mut_ptr() });
            (dst.as_ptr(), 0)
        };
        let keys_down = rows_of(self.k, 0, keys, keys_down);

        // Without a bias the scale is left to the exponential.
        let exp_scale = if self.bias.is_some() { 1.0 } else { self.scale };
        let mut query = 0;
        while query < queries {
            let rows = self.tile.rows.min(queries - query);
            let queries_down = rows_of(self.q, query, rows, queries_down);
            let douts_down = rows_of(self.dout, query, rows, douts_down);
            for (view, packed, c) in
                [(self.q, &*keys_across, &mut *weights), (self.dout, &*values_across, &mut *dscores)]
            {
                s.vectorize(Product {
                    rows,
                    columns: keys,
                    k: head_dim,
                    a: view.at(b, query, h),
                    lda: view.row_stride,
                    transposed: false,
                    b: packed.as_ptr(),
                    ldb: 0,
                    out: c.as_mut_ptr(),
                    ldo: stride,
                    finish: Finish::Plain,
                    meanwhile: std::ptr::null_mut(),
                });
            }
            for r in 0..rows {
                let row = query + r;
                let w = weights[r * stride..][..keys].as_mut_ptr();
                let ds = dscores[r * stride..][..keys].as_mut_ptr();
                // SAFETY: rows of scores, bias and factors have `keys` numbers, rows of the views `head_dim`.
                unsafe {
                    if let Some(bias) = self.bias {
                        row_scale(s, w, keys, self.scale);
                        row_add(s, w, bias[row * keys..][..keys].as_ptr(), keys);
                    }
                    prefetch_row(s, self.out.at(b, row + AHEAD, h), head_dim);
                    let out = self.out.at(b, row, h);
                    let delta = row_dot(s, self.dout.at(b, row, h), out, head_dim);
                    if let Some(dropout) = self.dropout {
                        let index = ((b * heads + h) * queries + row) * keys;
                        (dropout.factors)(index as u64, &mut factors[..keys]);
                        row_mul(s, ds, factors.as_ptr(), keys);
                    }
                    row_softmax_grad(s, w, ds, keys, exp_scale, self.lse[row], delta);
                    if self.dropout.is_some() {
                        row_mul(s, w, factors.as_ptr(), keys);
                    }
                    if let Some(dbias) = &mut self.dbias {
                        row_add(s, dbias[row * keys..][..keys].as_mut_ptr(), ds, keys);
                    }
                }
            }
            s.vectorize(Product {
                rows,
                columns: head_dim,
                k: keys,
                a: dscores.as_ptr(),
                lda: stride,
                transposed: false,
                b: keys_down.0,
                ldb: keys_down.1,
                out: self.dq.at(b, query, h),
                ldo: self.dq.row_stride,
                finish: Finish::Times { factor: self.scale, add: false },
                meanwhile: std::ptr::null_mut(),
            });
            for (a, (right, ldb), factor, output) in
                [(&*dscores, queries_down, self.scale, self.dk), (&*weights, douts_down, 1.0, self.dv)]
            {
                s.vectorize(Product {
                    rows: keys,
                    columns: head_dim,
                    k: rows,
                    a: a.as_ptr(),
                    lda: stride,
                    transposed: true,
                    b: right,
                    ldb,
                    out: output.at(b, 0, h),
                    ldo: output.row_stride,
                    finish: Finish::Times { factor, add: query > 0 },
                    meanwhile: std::ptr::null_mut(),
                });
            }
            query += rows;
        }
    }
}

/// Turns scores, yet to be scaled, into weights, and the gradient of the weights into that of the scores.
///
/// # Safety
/// `n` numbers at `w` and `ds` must be readable and writable.
#[inline(always)]
unsafe fn row_softmax_grad<S: Simd>(s: S, w: *mut f32, ds: *mut f32, n: usize, scale: f32, lse: f32, delta: f32) {
    let lse = s.splat(-lse * std::f32::consts::LOG2_E);
    let scale = s.splat(scale * std::f32::consts::LOG2_E);
    let delta = s.splat(delta);
    let mut i = 0;
    while i < n {
        // SAFETY: reads and writes stay below n.
        unsafe {
            // No weight is above 1, however its score was rounded.
            let x = s.min(s.splat(0.0), s.mul_add(s.load_up_to(w.add(i), n - i), scale, lse));
            let p = exp2(s, x);
            let d = s.mul(p, s.sub(s.load_up_to(ds.add(i), n - i), delta));
            s.store_up_to(w.add(i), p, n - i);
            s.store_up_to(ds.add(i), d, n - i);
        }
        i += S::LANES;
    }
}
