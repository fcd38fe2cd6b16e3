//! Products on the matrix unit: the loops that bring A and B in pieces to the tile registers.
//! A block of B is in pieces before it is used. The rows of A follow two tiles at a time: the vector units take them to
//! pieces while the matrix unit is at those before them, and they bring the sums of the last square to C. Only rows that
//! several blocks of B wait for are all in pieces first.

mod interleave;
mod partition;
mod split;

use super::matmul::{ALIGN, aligned};
use super::microkernel::Finish;
use super::{Block, Cut, Gemm, Grid};
use crate::activation::{ActivationFn, with_activation};
use crate::amx::{SIDE, STEP, STEP_BYTES, Unit, product};
use crate::pool::{DisjointMut, Pool};
use crate::simd::{Avx512, Simd};

use interleave::{Both, Square};
use partition::{Plan, in_pieces, terms};
use split::{Pieces, Rows, split_columns};

/// Columns of a packed panel, and of the least that is a block: a multiple of a panel and of a square.
const PANEL: usize = Avx512::TILE_VECTORS * Avx512::LANES;
const COLUMNS: usize = 2 * PANEL;
/// Numbers before the scratch of a thread that say which block of B it has in pieces.
const HELD: usize = 16;

/// How many numbers of workspace [`blocks`] needs.
pub(super) fn workspace(threads: usize, m: usize, n: usize, k: usize) -> usize {
    let plan = Plan::new(threads, m, n, k);
    threads * plan.scratch(k) + plan.shared(m, k)
}

/// The product in blocks.
///
/// # Safety
/// The slices must be long enough for the shape; the machine must have AVX-512, and its units be usable by every thread.
pub(super) unsafe fn blocks<U: Unit>(pool: &Pool, gemm: Gemm<'_>, workspace: &mut [f32], unit: impl Fn() -> U + Sync) {
    let Gemm { m, n, k, .. } = gemm;
    let plan = Plan::new(pool.threads(), m, n, k);
    let scratch = plan.scratch(k);
    let (workspace, shared) = workspace.split_at_mut(pool.threads() * scratch);
    for scratch in workspace.chunks_mut(scratch) {
        scratch[0] = 0.0;
    }
    let pieces = plan.shared.then(|| {
        let (shared, _) = aligned(shared, plan.shared(m, k) - ALIGN);
        // SAFETY: there is room for A, and the caller vouches for the machine.
        unsafe { Pieces::new(pool, &gemm, shared) }
    });
    let Grid { rows, columns } = plan.grid;
    let scratches = DisjointMut::new(workspace);
    let cut = Cut::new(gemm, 0);
    let each = rows.parts / rows.shares;
    pool.run_with_worker(rows.parts * columns.parts, &|task, worker| {
        // A thread goes through its rows for one block of B, then for the next.
        let (share, task) = (task / (columns.parts * each), task % (columns.parts * each));
        let (row, rows) = rows.part(share * each + task % each);
        let (column, columns) = columns.part(task / each);
        // SAFETY: the caller vouches for every block; blocks of C do not overlap, and a worker index is used by one thread
        // at a time, which has no other matrix unit.
        unsafe {
            let block = cut.block((row, rows), (column, columns), scratches.slice(worker * scratch, scratch));
            let pieces = pieces.as_ref().map(|pieces| pieces.below(row));
            run(Avx512::new(), &mut unit(), block, pieces, 1.0 + column as f32);
        }
    });
}

/// Where a block's operands and sums are while it is computed.
struct Rooms {
    squares: [*mut f32; 2],
    a: [*mut u8; 2],
    b: *mut u8,
    pieces: Option<Pieces>,
}

/// Computes a block. `name` tells its part of B from others.
///
/// # Safety
/// As [`Block`] says. The scratch is as long as the plan says and starts with the name of the part of B that it holds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn run<U: Unit>(s: Avx512, unit: &mut U, mut block: Block<'_>, pieces: Option<Pieces>, name: f32) {
    let most = terms(block.k);
    let (held, scratch) = std::mem::take(&mut block.scratch).split_at_mut(HELD);
    let room = scratch.len() - ALIGN;
    let (scratch, _) = aligned(scratch, room);
    let (squares, scratch) = scratch.split_at_mut(2 * SIDE * SIDE);
    let (a, b) = scratch.split_at_mut(in_pieces(2 * SIDE * most));
    assert!(b.len() >= in_pieces(block.n.next_multiple_of(SIDE) * most), "no room for B in pieces");
    let (first_square, second_square) = squares.split_at_mut(SIDE * SIDE);
    let (first_rows, second_rows) = a.split_at_mut(in_pieces(SIDE * most));
    let rooms = Rooms {
        squares: [first_square.as_mut_ptr(), second_square.as_mut_ptr()],
        a: [first_rows.as_mut_ptr().cast(), second_rows.as_mut_ptr().cast()],
        b: b.as_mut_ptr().cast(),
        pieces,
    };
    // Where nothing else comes before it, the bias is what the sums start with.
    let bias = if block.alpha == 1.0 && !block.accumulate { block.epilogue.bias.take() } else { None };
    let mut start = 0;
    while start < block.k {
        let terms = most.min(block.k - start);
        let activation = if start + terms == block.k { block.epilogue.activation } else { Default::default() };
        // SAFETY: the rooms are as large as the operands in pieces; the block vouches for the rest.
        unsafe {
            if terms < block.k || held[0] != name {
                split_columns(&block, start, terms, rooms.b);
                held[0] = if terms < block.k { 0.0 } else { name };
            }
            let bias = if start == 0 { bias } else { None };
            with_activation!(activation, f => squares_of(s, unit, f, &block, start, terms, bias, &rooms));
        }
        start += terms;
    }
}

/// Adds some terms to all squares of a block. After the last of them the epilogue follows, in it the function.
///
/// # Safety
/// As for [`run`], with these terms of B in pieces.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[allow(clippy::too_many_arguments)]
unsafe fn squares_of<U: Unit, F: ActivationFn>(
    s: Avx512,
    unit: &mut U,
    f: F,
    block: &Block<'_>,
    start: usize,
    terms: usize,
    bias: Option<&[f32]>,
    rooms: &Rooms,
) {
    let steps = terms.div_ceil(STEP);
    let across = block.n.div_ceil(SIDE);
    let last = start + terms == block.k;
    let add = block.accumulate || start > 0;
    let epilogue = if last { block.epilogue } else { Default::default() };
    let slope = if last { block.slope } else { std::ptr::null_mut() };
    let usual = block.alpha == 1.0
        && slope.is_null()
        && epilogue.bias.is_none()
        && epilogue.scale.is_none()
        && epilogue.factor.is_none();
    let rows_from = |row: usize, to: *mut u8| {
        // Rows that are in pieces already are none, as are those after the last.
        let rows = if rooms.pieces.is_some() { 0 } else { SIDE.min(block.m.saturating_sub(row)) };
        Rows::new(block.a.wrapping_add(row * block.lda + start), block.lda, rows, terms, to)
    };
    let mut chores = Both { s, f, rows: rows_from(0, rooms.a[0]), each: 0, square: Square::none() };
    chores.rows.split(usize::MAX);
    let mut row = 0;
    let mut count = 0;
    while row < block.m {
        let rows = SIDE.min(block.m - row);
        unit.configure(rows);
        chores.rows = rows_from(row + SIDE, rooms.a[(row / SIDE + 1) % 2]);
        chores.each = (chores.rows.rows * steps).div_ceil(2 * steps * across);
        let a = match rooms.pieces {
            Some(pieces) => pieces.start.wrapping_add(pieces.offset(row, start, terms)),
            None => rooms.a[row / SIDE % 2],
        };
        for i in 0..across {
            let column = i * SIDE;
            let columns = SIDE.min(block.n - column);
            let mut starts = Start([0.0; SIDE]);
            if let Some(bias) = bias {
                starts.0[..columns].copy_from_slice(&bias[column..][..columns]);
            }
            let sums = rooms.squares[count % 2];
            count += 1;
            // SAFETY: the rows and columns of the square are in pieces, and the block vouches for its part of C.
            unsafe {
                let b = rooms.b.add(i * steps * STEP_BYTES);
                product(unit, a, b, steps, starts.0.as_ptr(), sums, &mut chores);
                chores.square.finish(s, f, usize::MAX);
                let at = row * block.ldc + column;
                let c = block.c.add(at);
                if usual && columns == SIDE {
                    let (plus, plus_stride) = match epilogue.residual {
                        Some((x, ld)) => (x.as_ptr().wrapping_add(row * ld + column), ld),
                        None => (std::ptr::null(), 0),
                    };
                    chores.square = Square { sums, rows, add, c, ldc: block.ldc, plus, plus_stride };
                } else {
                    s.vectorize(Finish {
                        tile: sums,
                        stride: SIDE,
                        rows,
                        columns,
                        c,
                        ldc: block.ldc,
                        alpha: block.alpha,
                        add,
                        epilogue: last.then(|| epilogue.part(row, column)),
                        slope: if slope.is_null() { slope } else { slope.add(at) },
                    });
                }
            }
        }
        chores.rows.split(usize::MAX);
        row += rows;
    }
    // SAFETY: the last square is one of the block's.
    unsafe { chores.square.finish(s, f, usize::MAX) };
}

/// What the sums of a row start with.
#[repr(C, align(64))]
struct Start([f32; SIDE]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::amx::Emulated;
    use crate::gemm::{ALayout, BLayout, Epilogue, pack_b, packed_len};
    use crate::isa::Isa;

    /// Numbers of very different sizes, the same in every run.
    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        (0..n).map(|_| (next() as f32 / 8_388_608.0 - 1.0) * [1.0, 0.01, 30.0][next() as usize % 3]).collect()
    }

    fn check(threads: usize, [m, n, k]: [usize; 3], usual: bool) {
        let (lda, ldc) = (k + 3, n + 5);
        let (a, b) = (numbers(m * lda, 1), numbers(k * n, 2));
        let (bias, scale, residual) = (numbers(n, 3), numbers(n, 4), numbers(m * ldc, 5));
        let before = numbers(m * ldc, 6);
        let mut c = before.clone();
        let mut packed = vec![0.0; packed_len(Isa::Avx512, k, n)];
        pack_b(Isa::Avx512, &b, BLayout::RowsAreK, n, k, n, &mut packed);
        let epilogue = Epilogue {
            bias: Some(&bias),
            activation: Some(Activation::Relu),
            scale: (!usual).then_some(&scale),
            factor: None,
            residual: Some((&residual, ldc)),
        };
        let gemm = Gemm {
            m,
            n,
            k,
            a: &a,
            lda,
            a_layout: ALayout::RowMajor,
            b: &packed,
            c: &mut c,
            ldc,
            alpha: if usual { 1.0 } else { -0.5 },
            accumulate: !usual,
            epilogue,
            slope: None,
        };
        let mut room = vec![f32::NAN; workspace(threads, m, n, k)];
        // SAFETY: the slices are as long as the shape wants, and whoever calls has looked for AVX-512.
        unsafe { blocks(&Pool::new(threads), gemm, &mut room, Emulated::new) };
        for (at, got) in c.iter().enumerate() {
            let (i, j) = (at / ldc, at % ldc);
            if j >= n {
                assert_eq!(*got, before[at], "beyond the columns of {m} x {n} x {k}");
                continue;
            }
            let terms = (0..k).map(|t| f64::from(a[i * lda + t]) * f64::from(b[t * n + j]));
            let size: f64 = terms.clone().map(f64::abs).sum();
            let sum: f64 = terms.sum();
            let (sum, scale) =
                if usual { (sum, 1.0) } else { (f64::from(before[at]) - 0.5 * sum, f64::from(scale[j])) };
            let want = scale * (sum + f64::from(bias[j])).max(0.0) + f64::from(residual[at]);
            let unit = f64::from(f32::EPSILON);
            // A step rounds the sum six times; the roundings add up as a random walk. A pair of pieces left out would be a
            // hundred times as much.
            let roundings = 1.0 + (1.5 * k.div_ceil(STEP) as f64).sqrt();
            let allowed = unit * (scale.abs() * (roundings * size + 100.0) + want.abs() + 30.0);
            let off = (f64::from(*got) - want).abs();
            assert!(off <= allowed, "{m} x {n} x {k}, usual {usual}: {got} for {want} at {i}, {j}");
        }
    }

    #[test]
    fn products_in_pieces_are_right() {
        if !Isa::Avx512.is_available() {
            eprintln!("skipped: this machine has no avx512");
            return;
        }
        for usual in [false, true] {
            // Squares in part and whole, one term and a few more than a step, rows left over in either tile.
            for shape in [[24, 1, 1], [32, 32, 32], [33, 48, 33], [49, 100, 65], [64, 97, 31]] {
                check(1, shape, usual);
                check(3, shape, usual);
            }
        }
        // More than one block of terms; several blocks of B, which the rows are in pieces for; many rows for each thread.
        for (shape, shared) in [([40, 96, 1600], false), ([70, 600, 800], true), ([1600, 40, 40], false)] {
            let [m, n, k] = shape;
            assert_eq!(Plan::new(2, m, n, k).shared, shared);
            check(2, shape, true);
            check(2, shape, false);
        }
    }
}
