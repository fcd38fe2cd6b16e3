//! Sums over the rows of a matrix, such as the gradient of a bias.
//! Rows are summed in chunks that the shape alone decides, then the chunks in order.

use crate::gemm::check_workspace;
use crate::isa::Isa;
use crate::pool::{DisjointMut, Pool};
use crate::simd::{Kernel, Simd};

fn chunks(rows: usize) -> (usize, usize) {
    let per_chunk = rows.div_ceil(64).max(32);
    (rows.div_ceil(per_chunk), per_chunk)
}

/// How many numbers of workspace [`column_sum`] needs.
pub fn column_sum_workspace(rows: usize, cols: usize) -> usize {
    chunks(rows).0 * cols
}

/// `out[c] = sum over r of x[r, c]`.
///
/// # Panics
/// If a length does not fit the shape.
pub fn column_sum(pool: &Pool, isa: Isa, rows: usize, cols: usize, x: &[f32], out: &mut [f32], workspace: &mut [f32]) {
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
            // SAFETY: tasks have partial sums of their own.
            let out = unsafe { partial.slice(task * cols, cols) };
            let x = &x[start * cols..][..rows * cols];
            isa.dispatch(SumRows { x, cols, out });
        });
    }
    isa.dispatch(SumRows { x: workspace, cols, out });
}

struct SumRows<'a> {
    x: &'a [f32],
    cols: usize,
    out: &'a mut [f32],
}

impl Kernel for SumRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.out.fill(0.0);
        if self.cols == 0 {
            return;
        }
        let n = self.cols.min(self.out.len());
        let out = self.out.as_mut_ptr();
        for row in self.x.chunks_exact(self.cols) {
            let mut i = 0;
            while i < n {
                // SAFETY: the row and the output have at least n numbers.
                unsafe {
                    let v = s.load_up_to(row.as_ptr().add(i), n - i);
                    let v = s.add(s.load_up_to(out.add(i), n - i), v);
                    s.store_up_to(out.add(i), v, n - i);
                }
                i += S::LANES;
            }
        }
    }
}
