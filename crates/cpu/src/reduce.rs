//! Sums over the rows of a matrix, such as the gradient of a bias.
//! Rows are summed in chunks whose size depends on the shape alone, then the chunks in order.

use crate::gemm::check_workspace;
use crate::isa::Isa;
use crate::simd::{Kernel, Simd, row};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// The most chunks: each takes a row of partial sums, and one thread adds these up.
const MAX_CHUNKS: usize = 64;
/// The fewest rows that are worth a task and a row of partial sums.
const MIN_CHUNK_ROWS: usize = 32;

/// The number of chunks, and the rows of one.
fn chunks(rows: usize) -> (usize, usize) {
    let per_chunk = rows.div_ceil(MAX_CHUNKS).max(MIN_CHUNK_ROWS);
    (rows.div_ceil(per_chunk), per_chunk)
}

/// Elements of workspace that [`column_sum`] needs.
pub fn column_sum_workspace(rows: usize, cols: usize) -> usize {
    chunks(rows).0 * cols
}

/// `out[c] = sum over r of x[r, c]`.
///
/// # Panics
/// If a length does not fit the shape.
pub fn column_sum(
    pool: &ThreadPool,
    isa: Isa,
    rows: usize,
    cols: usize,
    x: &[f32],
    out: &mut [f32],
    workspace: &mut [f32],
) {
    assert_eq!(x.len(), rows * cols, "column sum: input of the wrong length");
    assert_eq!(out.len(), cols, "column sum: output of the wrong length");
    let needed = column_sum_workspace(rows, cols);
    check_workspace("column sum", workspace.len(), needed);
    let (tasks, per_chunk) = chunks(rows);
    if tasks <= 1 {
        isa.dispatch(SumRows { x, cols, out });
        return;
    }
    let workspace = &mut workspace[..needed];
    {
        let partial = DisjointMut::new(&mut *workspace);
        pool.run(tasks, &|task| {
            let start = task * per_chunk;
            let rows = per_chunk.min(rows - start);
            // SAFETY: the partial sums of tasks are disjoint.
            let out = unsafe { partial.slice(task * cols, cols) };
            let x = &x[start * cols..][..rows * cols];
            isa.dispatch(SumRows { x, cols, out });
        });
    }
    isa.dispatch(SumRows { x: workspace, cols, out });
}

/// `out[c] = sum over r of x[r, c]`, in the order of the rows.
pub(crate) struct SumRows<'a> {
    pub x: &'a [f32],
    pub cols: usize,
    pub out: &'a mut [f32],
}

impl Kernel for SumRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.out.fill(0.0);
        if self.cols == 0 {
            return;
        }
        for row in self.x.chunks_exact(self.cols) {
            row::add(s, self.out, row);
        }
    }
}
