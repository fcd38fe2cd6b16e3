//! Matrix products `C = epilogue(A B)` with B packed beforehand and the epilogue applied while a tile is at hand.
//! The terms of an element are always added in the order that `k` alone decides, so the bits of the result do not
//! depend on the number of threads, nor on which tile the element falls into. Only a matrix unit, which takes products of
//! many rows, has an order of its own, so that with it they depend on whether there are that many.

#[cfg(target_arch = "x86_64")]
mod amx;
mod macrokernel;
mod matmul;
mod microkernel;
mod pack;
mod pipelined;
mod rank1;

use crate::activation::Activation;
#[cfg(target_arch = "x86_64")]
use crate::amx::Amx;
use crate::isa::Isa;
use crate::pool::{DisjointMut, Pool};
use crate::simd::TileShape;

pub(crate) use macrokernel::{Block, block_scratch};
pub(crate) use matmul::{ALIGN, aligned};
pub use matmul::{Matmul, matmul, matmul_workspace};
pub(crate) use pack::PackPanels;
pub use pack::{BLayout, pack_b, pack_b_parallel, packed_len};
pub(crate) use rank1::{Groups, Operands};

/// How A lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ALayout {
    /// `[m, k]`, rows `lda` apart.
    RowMajor,
    /// `[k, m]`, rows `lda` apart: the product is of the transpose.
    Transposed,
}

/// What happens to `A B` on its way to C: `residual + factor * scale * activation(A B + bias)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to each column.
    pub bias: Option<&'a [f32]>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// Multiplies each column after the activation.
    pub scale: Option<&'a [f32]>,
    /// Multiplies each element: `[m, n]` with rows this far apart. It must not be C itself.
    pub factor: Option<(&'a [f32], usize)>,
    /// Added last: `[m, n]` with rows this far apart. It must not be C itself.
    pub residual: Option<(&'a [f32], usize)>,
}

impl<'a> Epilogue<'a> {
    /// The epilogue of the part of C that starts at this row and column.
    pub(crate) fn part(self, row: usize, column: usize) -> Epilogue<'a> {
        Epilogue {
            bias: self.bias.map(|x| &x[column..]),
            activation: self.activation,
            scale: self.scale.map(|x| &x[column..]),
            factor: self.factor.map(|(x, ld)| (&x[row * ld + column..], ld)),
            residual: self.residual.map(|(x, ld)| (&x[row * ld + column..], ld)),
        }
    }

    pub(crate) fn check(&self, m: usize, n: usize) {
        if let Some(bias) = self.bias {
            assert!(bias.len() >= n, "bias of {} for {n} columns", bias.len());
        }
        if let Some(scale) = self.scale {
            assert!(scale.len() >= n, "scale of {} for {n} columns", scale.len());
        }
        for (name, matrix) in [("factor", self.factor), ("residual", self.residual)] {
            if let Some((x, ld)) = matrix {
                check_matrix(name, x.len(), m, n, ld);
            }
        }
    }
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
    /// Distance of the rows of `a`.
    pub lda: usize,
    /// Which way `a` lies.
    pub a_layout: ALayout,
    /// The right-hand side from [`pack_b`], for the same instruction set.
    pub b: &'a [f32],
    /// The result, `[m, n]`.
    pub c: &'a mut [f32],
    /// Distance of the rows of `c`.
    pub ldc: usize,
    /// Multiplies `A B` before everything else.
    pub alpha: f32,
    /// Whether the old C is added to `alpha A B` before the epilogue.
    pub accumulate: bool,
    /// What happens on the way to C.
    pub epilogue: Epilogue<'a>,
    /// Takes the slope of the epilogue's activation where C takes its value, laid out as C.
    pub slope: Option<&'a mut [f32]>,
}

/// How many numbers of workspace [`gemm`] needs.
pub fn gemm_workspace(isa: Isa, threads: usize, m: usize, n: usize, k: usize) -> usize {
    let vectors = threads * block_scratch(Grid::new(isa, threads, m, n, false).rows.longest(), k);
    #[cfg(target_arch = "x86_64")]
    if on_matrix_unit(isa, m, k, ALayout::RowMajor) {
        return vectors.max(amx::workspace(threads, m, n, k));
    }
    vectors
}

/// Computes the product on the threads of the pool.
///
/// # Panics
/// If a slice is too short for the shape, or B is packed for another instruction set's length.
pub fn gemm(pool: &Pool, isa: Isa, gemm: Gemm<'_>, workspace: &mut [f32]) {
    assert_eq!(gemm.b.len(), packed_len(isa, gemm.k, gemm.n), "packed B for k={} n={}", gemm.k, gemm.n);
    blocks(pool, isa, gemm, 0, workspace);
}

/// Fewer rows are not worth taking B to pieces for the matrix unit.
const FEWEST_ROWS: usize = 512;

/// Whether a product is one for the matrix unit, if the instruction set has it.
fn on_matrix_unit(isa: Isa, m: usize, k: usize, layout: ALayout) -> bool {
    isa == Isa::Amx && m >= FEWEST_ROWS && k > 0 && layout == ALayout::RowMajor
}

/// The product in blocks. `ldb` is 0 for a packed B, else the distance of the rows of a plain one, `[k, n]`.
fn blocks(pool: &Pool, isa: Isa, gemm: Gemm<'_>, ldb: usize, workspace: &mut [f32]) {
    let Gemm { m, n, k, .. } = gemm;
    let grid = Grid::new(isa, pool.threads(), m, n, ldb > 0);
    check_a(gemm.a.len(), m, k, gemm.lda, gemm.a_layout);
    check_matrix("C", gemm.c.len(), m, n, gemm.ldc);
    gemm.epilogue.check(m, n);
    if let Some(slope) = &gemm.slope {
        check_matrix("slope", slope.len(), m, n, gemm.ldc);
    }
    let scratch = block_scratch(grid.rows.longest(), k);
    check_workspace("gemm", workspace.len(), pool.threads() * scratch);
    if m == 0 || n == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if on_matrix_unit(isa, m, k, gemm.a_layout) {
        assert_eq!(ldb, 0, "the matrix unit takes a packed B");
        check_workspace("gemm", workspace.len(), amx::workspace(pool.threads(), m, n, k));
        assert!(isa.is_available(), "this machine has no {isa}");
        // SAFETY: the checks above cover the shape; the machine has AVX-512 and the unit, of which a task has one.
        return unsafe { amx::blocks(pool, gemm, workspace, || Amx::new()) };
    }

    let Grid { rows, columns } = grid;
    let scratches = DisjointMut::new(workspace);
    let cut = Cut::new(gemm, ldb);
    // Column blocks are the inner loop, so that a thread has rows of its own, in A as in C.
    pool.run_with_worker(rows.parts * columns.parts, &|task, worker| {
        let (rows, columns) = (rows.part(task / columns.parts), columns.part(task % columns.parts));
        // SAFETY: the checks above cover every block; blocks of C do not overlap, and a worker index is used by one
        // thread at a time.
        isa.dispatch(unsafe { cut.block(rows, columns, scratches.slice(worker * scratch, scratch)) });
    });
}

/// A product whose blocks are computed by several threads.
struct Cut<'a> {
    /// Without what is written.
    gemm: Gemm<'a>,
    /// As for [`blocks`].
    ldb: usize,
    c: DisjointMut<'a, f32>,
    slope: Option<DisjointMut<'a, f32>>,
}

impl<'a> Cut<'a> {
    fn new(mut gemm: Gemm<'a>, ldb: usize) -> Cut<'a> {
        let (c, slope) = (DisjointMut::new(std::mem::take(&mut gemm.c)), gemm.slope.take().map(DisjointMut::new));
        Cut { gemm, ldb, c, slope }
    }

    /// The block of these rows and columns: where they start, and how many.
    ///
    /// # Safety
    /// They must be inside the product, which has been checked, and blocks that are alive at the same time must not overlap.
    unsafe fn block<'s>(
        &'s self,
        (row, rows): (usize, usize),
        (column, columns): (usize, usize),
        scratch: &'s mut [f32],
    ) -> Block<'s> {
        let gemm = &self.gemm;
        let a = match gemm.a_layout {
            ALayout::RowMajor => row * gemm.lda,
            ALayout::Transposed => row,
        };
        let b = if self.ldb == 0 { column * gemm.k } else { column };
        let c = row * gemm.ldc + column;
        Block {
            m: rows,
            n: columns,
            k: gemm.k,
            a: gemm.a.as_ptr().wrapping_add(a),
            lda: gemm.lda,
            a_layout: gemm.a_layout,
            b: gemm.b.as_ptr().wrapping_add(b),
            ldb: self.ldb,
            c: self.c.at(c),
            ldc: gemm.ldc,
            alpha: gemm.alpha,
            accumulate: gemm.accumulate,
            epilogue: gemm.epilogue.part(row, column),
            slope: self.slope.as_ref().map_or(std::ptr::null_mut(), |slope| slope.at(c)),
            scratch,
        }
    }
}

/// The blocks of C that are tasks.
pub(crate) struct Grid {
    pub rows: Division,
    pub columns: Division,
}

/// Rows of A that a block keeps in the second-level cache.
const BLOCK_ROWS: usize = 96;
/// Tasks per thread that even out what other processes take away.
const TASKS_PER_THREAD: usize = 6;

impl Grid {
    /// `whole` leaves the rows undivided.
    fn new(isa: Isa, threads: usize, m: usize, n: usize, whole: bool) -> Grid {
        let (tile_rows, tile_columns) = isa.dispatch(TileShape);
        Grid::of(threads, [m, n], [tile_rows, tile_columns], if whole { m } else { BLOCK_ROWS })
    }

    /// Blocks of at most about `most` rows of a result of this size, in tiles of this one.
    pub fn of(threads: usize, [m, n]: [usize; 2], [tile_rows, tile_columns]: [usize; 2], most: usize) -> Grid {
        let few = m.div_ceil(most.max(1)).max(1);
        // Threads that have rows of their own have equally many.
        let shares = if few >= threads { threads } else { 1 };
        let row_blocks = few.next_multiple_of(shares);
        let wanted = if threads > 1 { threads * TASKS_PER_THREAD } else { 1 };
        let column_blocks = wanted.div_ceil(row_blocks);
        Grid {
            rows: Division::new(m, tile_rows, row_blocks, shares),
            columns: Division::new(n, tile_columns, column_blocks, 1),
        }
    }
}

/// A length in shares that differ by one at most, each in about equal parts that are multiples of a unit but for the
/// last.
pub(crate) struct Division {
    length: usize,
    unit: usize,
    pub parts: usize,
    shares: usize,
}

impl Division {
    /// `parts` is a multiple of `shares`.
    fn new(length: usize, unit: usize, parts: usize, shares: usize) -> Division {
        let most = (length / shares).div_ceil(unit);
        if most == 0 {
            return Division { length, unit, parts: 1, shares: 1 };
        }
        Division { length, unit, parts: (parts / shares).clamp(1, most) * shares, shares }
    }

    /// Where a part starts, and its length.
    pub fn part(&self, i: usize) -> (usize, usize) {
        let each = self.parts / self.shares;
        let share = |i: usize| i * self.length / self.shares;
        let (start, end) = (share(i / each), share(i / each + 1));
        let units = (end - start).div_ceil(self.unit);
        let bound = |i: usize| (start + i * units / each * self.unit).min(end);
        (bound(i % each), bound(i % each + 1) - bound(i % each))
    }

    fn longest(&self) -> usize {
        let units = self.length.div_ceil(self.shares).div_ceil(self.unit);
        units.div_ceil(self.parts / self.shares) * self.unit
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
