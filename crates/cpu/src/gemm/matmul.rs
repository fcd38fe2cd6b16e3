//! Batched products of matrices that are not packed; B is packed into the workspace.

use super::pack::{PackPanels, pack_panels};
use super::{
    ALayout, AMX_MIN_ROWS, BLayout, BlockB, Epilogue, Gemm, GemmBlock, block_scratch, check_a, check_matrix,
    check_workspace, gemm_workspace, pack_b_parallel, packed_len, run_tasks, uses_amx,
};
use crate::isa::Isa;
use crate::simd::MAX_TILE_ROWS;
use crate::thread_pool::{DisjointMut, ThreadPool};

/// `batch` products `C = epilogue(A B)` of matrices that are not packed.
#[derive(Debug)]
pub struct Matmul<'a> {
    /// Number of products.
    pub batch: usize,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// The left-hand sides.
    pub a: &'a [f32],
    /// Row stride of A.
    pub lda: usize,
    /// Layout of A.
    pub a_layout: ALayout,
    /// Distance from one A to the next; 0 if all products share one.
    pub a_batch_stride: usize,
    /// The right-hand sides.
    pub b: &'a [f32],
    /// Row stride of B.
    pub ldb: usize,
    /// Layout of B.
    pub b_layout: BLayout,
    /// Distance from one B to the next; 0 if all products share one.
    pub b_batch_stride: usize,
    /// The results.
    pub c: &'a mut [f32],
    /// Row stride of C.
    pub ldc: usize,
    /// Distance from one C to the next.
    pub c_batch_stride: usize,
    /// Whether the old C is added to `A B` before the epilogue.
    pub accumulate: bool,
    /// The epilogue of every product; factors and residuals of the products are `c_batch_stride` apart.
    pub epilogue: Epilogue<'a>,
    /// Receives the derivative of the epilogue's activation at each element, laid out as C.
    pub d_activation: Option<&'a mut [f32]>,
}

impl<'a> Matmul<'a> {
    /// One product `C = A B` without an epilogue; matrices come with their row stride and layout.
    pub fn single(
        [m, n, k]: [usize; 3],
        (a, lda, a_layout): (&'a [f32], usize, ALayout),
        (b, ldb, b_layout): (&'a [f32], usize, BLayout),
        (c, ldc): (&'a mut [f32], usize),
    ) -> Matmul<'a> {
        Matmul {
            batch: 1,
            m,
            n,
            k,
            a,
            lda,
            a_layout,
            a_batch_stride: 0,
            b,
            ldb,
            b_layout,
            b_batch_stride: 0,
            c,
            ldc,
            c_batch_stride: 0,
            accumulate: false,
            epilogue: Epilogue::default(),
            d_activation: None,
        }
    }
}

/// Elements of workspace that [`matmul`] needs.
pub fn matmul_workspace(isa: Isa, threads: usize, batch: usize, m: usize, n: usize, k: usize) -> usize {
    let packed = packed_len(isa, k, n) + ALIGN;
    // Undivided rows are one block: `m`, at most rounded up to a register tile.
    let undivided = if m <= MAX_UNDIVIDED_ROWS { threads * block_scratch(m + MAX_TILE_ROWS, k) } else { 0 };
    let one_by_one = packed + gemm_workspace(isa, threads, m, n, k).max(undivided);
    if batch >= 2 { one_by_one.max(threads * packed) } else { one_by_one }
}

/// The most rows of C that stay in one block, for which each panel of a row-major B is packed just before its use: then
/// it is packed only once, and read from the second-level cache.
const MAX_UNDIVIDED_ROWS: usize = 192;
const _: () = assert!(MAX_UNDIVIDED_ROWS < AMX_MIN_ROWS, "AMX takes a packed B");

/// Elements to reserve so that a packed matrix can start at a cache line.
pub(crate) const ALIGN: usize = 16;

/// The first `len` elements from the first cache line on, and the rest.
pub(crate) fn aligned(data: &mut [f32], len: usize) -> (&mut [f32], &mut [f32]) {
    let skip = data.as_ptr().align_offset(64).min(ALIGN);
    data[skip..].split_at_mut(len)
}

/// Computes the products on the threads of the pool.
///
/// # Panics
/// If a slice is too short for the shape, or results overlap.
pub fn matmul(pool: &ThreadPool, isa: Isa, mm: Matmul<'_>, workspace: &mut [f32]) {
    let Matmul { batch, m, n, k, .. } = mm;
    let needed = matmul_workspace(isa, pool.threads(), batch, m, n, k);
    check_workspace("matmul", workspace.len(), needed);
    if batch == 0 || m == 0 || n == 0 {
        return;
    }
    let last = batch - 1;
    let last_len = |name: &str, len: usize, stride: usize| {
        len.checked_sub(last * stride)
            .unwrap_or_else(|| panic!("{name}: {len} elements for {batch} matrices {stride} apart"))
    };
    check_a(last_len("A", mm.a.len(), mm.a_batch_stride), m, k, mm.lda, mm.a_layout);
    let (rows, columns) = match mm.b_layout {
        BLayout::RowsAreN => (n, k),
        BLayout::RowsAreK => (k, n),
    };
    check_matrix("B", last_len("B", mm.b.len(), mm.b_batch_stride), rows, columns, mm.ldb);
    check_matrix("C", last_len("C", mm.c.len(), mm.c_batch_stride), m, n, mm.ldc);
    assert!(
        batch == 1 || mm.c_batch_stride >= (m - 1) * mm.ldc + n,
        "C: matrices of {m} x {n} overlap when {} apart",
        mm.c_batch_stride
    );
    for (name, matrix) in [("factor", mm.epilogue.factor), ("residual", mm.epilogue.residual)] {
        if let Some((x, ld)) = matrix {
            check_matrix(name, last_len(name, x.len(), mm.c_batch_stride), m, n, ld);
        }
    }
    if let Some(d_activation) = &mm.d_activation {
        let name = "activation derivative";
        check_matrix(name, last_len(name, d_activation.len(), mm.c_batch_stride), m, n, mm.ldc);
    }
    mm.epilogue.check(m, n);

    let mut d_activation = mm.d_activation;
    let epilogue = |i: usize| Epilogue {
        factor: mm.epilogue.factor.map(|(x, ld)| (&x[i * mm.c_batch_stride..], ld)),
        residual: mm.epilogue.residual.map(|(x, ld)| (&x[i * mm.c_batch_stride..], ld)),
        ..mm.epilogue
    };
    let packed = packed_len(isa, k, n);
    // Few large products are computed one after the other by all threads; of many small ones, each by one thread. That
    // path has no AMX, and AMX has another order of summation: a product for AMX must stay on it whatever the batch.
    if batch < 2 * pool.threads() || uses_amx(isa, m, k, mm.a_layout) {
        for i in 0..batch {
            let src = &mm.b[i * mm.b_batch_stride..];
            // Panels of such a B are packed one by one into the scratch of a block, just before their use.
            let unpacked_b = mm.b_layout == BLayout::RowsAreK && m <= MAX_UNDIVIDED_ROWS && k > 0 && mm.ldb > 0;
            let (packed_b, workspace) = aligned(workspace, packed);
            if !unpacked_b {
                pack_b_parallel(pool, isa, src, mm.b_layout, mm.ldb, k, n, packed_b);
            }
            let one = Gemm {
                m,
                n,
                k,
                a: &mm.a[i * mm.a_batch_stride..],
                lda: mm.lda,
                a_layout: mm.a_layout,
                b: if unpacked_b { src } else { packed_b },
                c: &mut mm.c[i * mm.c_batch_stride..],
                ldc: mm.ldc,
                accumulate: mm.accumulate,
                epilogue: epilogue(i),
                d_activation: d_activation.as_deref_mut().map(|d| &mut d[i * mm.c_batch_stride..]),
            };
            run_tasks(pool, isa, one, unpacked_b.then_some(mm.ldb), workspace);
        }
        return;
    }
    let workspace_len = packed + ALIGN;
    let workspaces = DisjointMut::new(workspace);
    let c = DisjointMut::new(mm.c);
    let d_activation = d_activation.map(DisjointMut::new);
    pool.run_with_worker(batch, &|i, worker| {
        // SAFETY: the checks above cover every product; the C of different products do not overlap, and one thread at a
        // time has a worker index.
        unsafe {
            let (b, _) = aligned(workspaces.slice(worker * workspace_len, workspace_len), packed);
            let src = mm.b.as_ptr().add(i * mm.b_batch_stride);
            pack_panels(isa, PackPanels { src, layout: mm.b_layout, ld: mm.ldb, k, n, dst: b.as_mut_ptr() });
            let block = GemmBlock {
                m,
                n,
                k,
                a: mm.a.as_ptr().add(i * mm.a_batch_stride),
                lda: mm.lda,
                a_layout: mm.a_layout,
                b: BlockB::Packed(b.as_ptr()),
                c: c.at(i * mm.c_batch_stride),
                ldc: mm.ldc,
                accumulate: mm.accumulate,
                epilogue: epilogue(i),
                d_activation: d_activation.as_ref().map_or(std::ptr::null_mut(), |d| d.at(i * mm.c_batch_stride)),
                scratch: &mut [],
            };
            block.run(isa);
        }
    });
}
