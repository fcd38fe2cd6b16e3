//! Products of two plain matrices, or of many pairs: B is packed into the workspace on the way.
//! The two products of a linear layer's gradient are of this kind, and the batched products of models.

use super::{
    ALayout, BLayout, Block, Epilogue, FEWEST_ROWS, Gemm, PackPanels, block_scratch, blocks, check_a, check_matrix,
    check_workspace, gemm_workspace, on_matrix_unit, pack_b_parallel, packed_len,
};
use crate::isa::Isa;
use crate::pool::{DisjointMut, Pool};
use crate::simd::MAX_TILE_ROWS;

/// `batch` products `C = epilogue(A B)` of matrices that are not packed.
#[derive(Debug)]
pub struct Matmul<'a> {
    /// How many products.
    pub batch: usize,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// The left-hand sides.
    pub a: &'a [f32],
    /// Distance of the rows of A.
    pub lda: usize,
    /// Which way A lies.
    pub a_layout: ALayout,
    /// Distance of one A from the next; 0 to use the same one.
    pub a_batch_stride: usize,
    /// The right-hand sides.
    pub b: &'a [f32],
    /// Distance of the rows of B.
    pub ldb: usize,
    /// Which way B lies.
    pub b_layout: BLayout,
    /// Distance of one B from the next; 0 to use the same one.
    pub b_batch_stride: usize,
    /// The results.
    pub c: &'a mut [f32],
    /// Distance of the rows of C.
    pub ldc: usize,
    /// Distance of one C from the next.
    pub c_batch_stride: usize,
    /// Multiplies `A B` before everything else.
    pub alpha: f32,
    /// Whether the old C is added to `alpha A B` before the epilogue.
    pub accumulate: bool,
    /// What happens on the way to C, the same for each product; factors and a residual lie as C does, with
    /// `c_batch_stride`.
    pub epilogue: Epilogue<'a>,
    /// Takes the slope of the epilogue's activation where C takes its value, laid out as C.
    pub slope: Option<&'a mut [f32]>,
}

/// How many numbers of workspace [`matmul`] needs.
pub fn matmul_workspace(isa: Isa, threads: usize, batch: usize, m: usize, n: usize, k: usize) -> usize {
    let packed = packed_len(isa, k, n) + ALIGN;
    let undivided = if m <= WHOLE_ROWS { threads * block_scratch(m + MAX_TILE_ROWS, k) } else { 0 };
    let one_at_a_time = packed + gemm_workspace(isa, threads, m, n, k).max(undivided);
    if batch >= 2 { one_at_a_time.max(threads * packed) } else { one_at_a_time }
}

/// The most rows of C for which a plain B is packed where it is used: all of them use it at once, and what is packed stays
/// in the second-level cache.
const WHOLE_ROWS: usize = 192;
const _: () = assert!(WHOLE_ROWS < FEWEST_ROWS, "the matrix unit takes a packed B");

/// Room to move a packed matrix to the start of a cache line.
pub(crate) const ALIGN: usize = 16;

/// The part of the slice that starts at a cache line.
pub(crate) fn aligned(data: &mut [f32], len: usize) -> (&mut [f32], &mut [f32]) {
    let skip = data.as_ptr().align_offset(64).min(ALIGN);
    data[skip..].split_at_mut(len)
}

/// Computes the products on the threads of the pool.
///
/// # Panics
/// If a slice is too short for the shape, or results overlap.
pub fn matmul(pool: &Pool, isa: Isa, mm: Matmul<'_>, workspace: &mut [f32]) {
    let Matmul { batch, m, n, k, .. } = mm;
    let needed = matmul_workspace(isa, pool.threads(), batch, m, n, k);
    check_workspace("matmul", workspace.len(), needed);
    if batch == 0 || m == 0 || n == 0 {
        return;
    }
    let last = batch - 1;
    let rest = |name: &str, len: usize, stride: usize| {
        len.checked_sub(last * stride)
            .unwrap_or_else(|| panic!("{name}: {len} elements for {batch} matrices {stride} apart"))
    };
    check_a(rest("A", mm.a.len(), mm.a_batch_stride), m, k, mm.lda, mm.a_layout);
    let (rows, columns) = match mm.b_layout {
        BLayout::RowsAreN => (n, k),
        BLayout::RowsAreK => (k, n),
    };
    check_matrix("B", rest("B", mm.b.len(), mm.b_batch_stride), rows, columns, mm.ldb);
    check_matrix("C", rest("C", mm.c.len(), mm.c_batch_stride), m, n, mm.ldc);
    assert!(
        batch == 1 || mm.c_batch_stride >= (m - 1) * mm.ldc + n,
        "C: matrices of {m} x {n} overlap when {} apart",
        mm.c_batch_stride
    );
    for (name, matrix) in [("factor", mm.epilogue.factor), ("residual", mm.epilogue.residual)] {
        if let Some((x, ld)) = matrix {
            check_matrix(name, rest(name, x.len(), mm.c_batch_stride), m, n, ld);
        }
    }
    if let Some(slope) = &mm.slope {
        check_matrix("slope", rest("slope", slope.len(), mm.c_batch_stride), m, n, mm.ldc);
    }
    mm.epilogue.check(m, n);

    let mut slope = mm.slope;
    let epilogue = |i: usize| Epilogue {
        factor: mm.epilogue.factor.map(|(x, ld)| (&x[i * mm.c_batch_stride..], ld)),
        residual: mm.epilogue.residual.map(|(x, ld)| (&x[i * mm.c_batch_stride..], ld)),
        ..mm.epilogue
    };
    let packed = packed_len(isa, k, n);
    // Few large products are shared out one after the other, many small ones each to a thread. The matrix unit gets its
    // own in either case, since it adds in another order.
    if batch < 2 * pool.threads() || on_matrix_unit(isa, m, k, mm.a_layout) {
        for i in 0..batch {
            let src = &mm.b[i * mm.b_batch_stride..];
            let plain = mm.b_layout == BLayout::RowsAreK && m <= WHOLE_ROWS && k > 0 && mm.ldb > 0;
            let (packed_b, workspace) = aligned(workspace, packed);
            if !plain {
                pack_b_parallel(pool, isa, src, mm.b_layout, mm.ldb, k, n, packed_b);
            }
            let one = Gemm {
                m,
                n,
                k,
                a: &mm.a[i * mm.a_batch_stride..],
                lda: mm.lda,
                a_layout: mm.a_layout,
                b: if plain { src } else { packed_b },
                c: &mut mm.c[i * mm.c_batch_stride..],
                ldc: mm.ldc,
                alpha: mm.alpha,
                accumulate: mm.accumulate,
                epilogue: epilogue(i),
                slope: slope.as_deref_mut().map(|slope| &mut slope[i * mm.c_batch_stride..]),
            };
            blocks(pool, isa, one, if plain { mm.ldb } else { 0 }, workspace);
        }
        return;
    }
    let each = packed + ALIGN;
    let workspaces = DisjointMut::new(workspace);
    let c = DisjointMut::new(mm.c);
    let slope = slope.map(DisjointMut::new);
    pool.run_with_worker(batch, &|i, worker| {
        // SAFETY: the checks above cover every product; the C of different products do not overlap, and a worker
        // index is used by one thread at a time.
        unsafe {
            let (b, _) = aligned(workspaces.slice(worker * each, each), packed);
            isa.dispatch(PackPanels {
                src: mm.b.as_ptr().add(i * mm.b_batch_stride),
                layout: mm.b_layout,
                ld: mm.ldb,
                k,
                n,
                dst: b.as_mut_ptr(),
            });
            isa.dispatch(Block {
                m,
                n,
                k,
                a: mm.a.as_ptr().add(i * mm.a_batch_stride),
                lda: mm.lda,
                a_layout: mm.a_layout,
                b: b.as_ptr(),
                ldb: 0,
                c: c.at(i * mm.c_batch_stride),
                ldc: mm.ldc,
                alpha: mm.alpha,
                accumulate: mm.accumulate,
                epilogue: epilogue(i),
                slope: slope.as_ref().map_or(std::ptr::null_mut(), |p| p.at(i * mm.c_batch_stride)),
                scratch: &mut [],
            });
        }
    });
}
