//! Matrix products `C = epilogue(A B)`, structured as in BLIS ("BLIS: A Framework for Rapidly Instantiating BLAS
//! Functionality", Van Zee and van de Geijn 2015), with B packed beforehand and the epilogue applied while a tile is in
//! registers or the nearest cache.
//!
//! `k` alone decides the order in which the terms of an element are added, so the bits of a result depend neither on
//! the number of threads nor on the register tile that the element falls into. Only AMX, which computes products of
//! many rows, has another order of summation.

#[cfg(target_arch = "x86_64")]
mod amx;
mod epilogue;
mod loops;
mod macrokernel;
mod matmul;
mod microkernel;
mod pack;
mod pipelined;
mod rank1;
mod tasks;

#[cfg(target_arch = "x86_64")]
use crate::amx::Amx;
use crate::isa::Isa;
use crate::thread_pool::{DisjointMut, ThreadPool};
use macrokernel::{BlockB, GemmBlock, block_scratch};

pub use epilogue::Epilogue;
pub(crate) use epilogue::SumsToC;
pub(crate) use loops::{LoopBody, for_each_tile, kc};
pub(crate) use matmul::{ALIGN, aligned};
pub use matmul::{Matmul, matmul, matmul_workspace};
pub(crate) use microkernel::TileBuffer;
pub use pack::{BLayout, pack_b, pack_b_parallel, packed_len};
pub(crate) use rank1::{KLoop, MicroPanels};
pub(crate) use tasks::{MC, TaskGrid};

/// How A lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ALayout {
    /// `[m, k]` with row stride `lda`.
    RowMajor,
    /// `[k, m]` with row stride `lda`: the product is of the transpose.
    Transposed,
}

/// One matrix product with a packed right-hand side.
#[derive(Debug)]
pub struct Gemm<'a> {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// The left-hand side.
    pub a: &'a [f32],
    /// Row stride of `a`.
    pub lda: usize,
    /// Layout of `a`.
    pub a_layout: ALayout,
    /// The right-hand side from [`pack_b`], for the same instruction set.
    pub b: &'a [f32],
    /// The result, `[m, n]`.
    pub c: &'a mut [f32],
    /// Row stride of `c`.
    pub ldc: usize,
    /// Whether the old C is added to `A B` before the epilogue.
    pub accumulate: bool,
    /// The epilogue.
    pub epilogue: Epilogue<'a>,
    /// Receives the derivative of the epilogue's activation at each element, laid out as C.
    pub d_activation: Option<&'a mut [f32]>,
}

impl<'a> Gemm<'a> {
    /// `C = A B` of dense matrices, with A row-major and B packed.
    pub fn dense([m, n, k]: [usize; 3], a: &'a [f32], b: &'a [f32], c: &'a mut [f32]) -> Gemm<'a> {
        let (a_layout, accumulate, d_activation) = (ALayout::RowMajor, false, None);
        let epilogue = Epilogue::default();
        Gemm { m, n, k, a, lda: k, a_layout, b, c, ldc: n, accumulate, epilogue, d_activation }
    }
}

/// Elements of workspace that [`gemm`] needs.
pub fn gemm_workspace(isa: Isa, threads: usize, m: usize, n: usize, k: usize) -> usize {
    let without_amx = threads * block_scratch(TaskGrid::new(isa, threads, m, n, false).rows.longest(), k);
    #[cfg(target_arch = "x86_64")]
    if uses_amx(isa, m, k, ALayout::RowMajor) {
        return without_amx.max(amx::workspace(threads, m, n, k));
    }
    without_amx
}

/// Computes the product on the threads of the pool.
///
/// # Panics
/// If a slice is too short for the shape, or B is packed for another instruction set's length.
pub fn gemm(pool: &ThreadPool, isa: Isa, gemm: Gemm<'_>, workspace: &mut [f32]) {
    assert_eq!(gemm.b.len(), packed_len(isa, gemm.k, gemm.n), "packed B for k={} n={}", gemm.k, gemm.n);
    run_tasks(pool, isa, gemm, None, workspace);
}

/// Elements of 4 KiB: rows that are a multiple of this apart compete for the same sets of a first-level cache.
pub(crate) const CACHE_SET_STRIDE: usize = 1024;

/// With fewer rows, splitting B into bf16x3 for AMX takes longer than AMX saves.
const AMX_MIN_ROWS: usize = 512;

fn uses_amx(isa: Isa, m: usize, k: usize, layout: ALayout) -> bool {
    isa == Isa::Amx && m >= AMX_MIN_ROWS && k > 0 && layout == ALayout::RowMajor
}

/// Computes the blocks of a product as tasks. `ldb` is the row stride of a B `[k, n]` that is not packed, which
/// [`matmul`] has checked.
fn run_tasks(pool: &ThreadPool, isa: Isa, gemm: Gemm<'_>, ldb: Option<usize>, workspace: &mut [f32]) {
    let Gemm { m, n, k, .. } = gemm;
    let grid = TaskGrid::new(isa, pool.threads(), m, n, ldb.is_some());
    check_a(gemm.a.len(), m, k, gemm.lda, gemm.a_layout);
    check_matrix("C", gemm.c.len(), m, n, gemm.ldc);
    gemm.epilogue.check(m, n);
    if let Some(d_activation) = &gemm.d_activation {
        check_matrix("activation derivative", d_activation.len(), m, n, gemm.ldc);
    }
    let scratch = block_scratch(grid.rows.longest(), k);
    check_workspace("gemm", workspace.len(), pool.threads() * scratch);
    if m == 0 || n == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if uses_amx(isa, m, k, gemm.a_layout) {
        assert!(ldb.is_none(), "AMX takes a packed B");
        check_workspace("gemm", workspace.len(), amx::workspace(pool.threads(), m, n, k));
        assert!(isa.is_available(), "this machine has no {isa}");
        // SAFETY: the checks above cover the shape; the machine has AVX-512 and AMX, and a task makes one `Amx`.
        return unsafe { amx::run_tasks(pool, gemm, workspace, || Amx::new()) };
    }

    let TaskGrid { rows, columns } = grid;
    let scratches = DisjointMut::new(workspace);
    let shared = SharedGemm::new(gemm, ldb);
    // ic is the outer loop, so that a thread has the same rows of A and C in all its tasks.
    pool.run_with_worker(rows.blocks * columns.blocks, &|task, worker| {
        let (rows, columns) = (rows.block(task / columns.blocks), columns.block(task % columns.blocks));
        // SAFETY: the checks above cover every block; blocks of C do not overlap, and one thread at a time has a worker
        // index.
        unsafe { shared.block(rows, columns, scratches.slice(worker * scratch, scratch)).run(isa) };
    });
}

/// A product whose blocks several threads compute.
struct SharedGemm<'a> {
    /// Its own `c` and `d_activation` are empty: they are below.
    gemm: Gemm<'a>,
    /// As for [`run_tasks`].
    ldb: Option<usize>,
    c: DisjointMut<'a, f32>,
    d_activation: Option<DisjointMut<'a, f32>>,
}

impl<'a> SharedGemm<'a> {
    fn new(mut gemm: Gemm<'a>, ldb: Option<usize>) -> SharedGemm<'a> {
        let c = DisjointMut::new(std::mem::take(&mut gemm.c));
        let d_activation = gemm.d_activation.take().map(DisjointMut::new);
        SharedGemm { gemm, ldb, c, d_activation }
    }

    /// The block of these rows and columns, each given as start and length.
    fn block<'s>(
        &'s self,
        (row, rows): (usize, usize),
        (column, columns): (usize, usize),
        scratch: &'s mut [f32],
    ) -> GemmBlock<'s> {
        let gemm = &self.gemm;
        let a = match gemm.a_layout {
            ALayout::RowMajor => row * gemm.lda,
            ALayout::Transposed => row,
        };
        let b = gemm.b.as_ptr();
        let c = row * gemm.ldc + column;
        GemmBlock {
            m: rows,
            n: columns,
            k: gemm.k,
            a: gemm.a.as_ptr().wrapping_add(a),
            lda: gemm.lda,
            a_layout: gemm.a_layout,
            b: match self.ldb {
                // A block starts at a panel, and the panels before it have `column` columns of `k` elements.
                None => BlockB::Packed(b.wrapping_add(column * gemm.k)),
                Some(ldb) => BlockB::RowMajor(b.wrapping_add(column), ldb),
            },
            c: self.c.at(c),
            ldc: gemm.ldc,
            accumulate: gemm.accumulate,
            epilogue: gemm.epilogue.at(row, column),
            d_activation: self.d_activation.as_ref().map_or(std::ptr::null_mut(), |d_activation| d_activation.at(c)),
            scratch,
        }
    }
}

pub(crate) fn check_a(len: usize, m: usize, k: usize, lda: usize, layout: ALayout) {
    match layout {
        ALayout::RowMajor => check_matrix("A", len, m, k, lda),
        ALayout::Transposed => check_matrix("A", len, k, m, lda),
    }
}

pub(crate) fn check_matrix(name: &str, len: usize, rows: usize, columns: usize, ld: usize) {
    assert!(rows <= 1 || ld >= columns, "{name}: rows of {columns} are only {ld} apart");
    let needed = if rows == 0 || columns == 0 { 0 } else { (rows - 1) * ld + columns };
    assert!(len >= needed, "{name}: {len} elements for {rows} x {columns} with rows {ld} apart");
}

pub(crate) fn check_workspace(name: &str, len: usize, needed: usize) {
    assert!(len >= needed, "{name}: workspace of {len}, needs {needed}");
}
