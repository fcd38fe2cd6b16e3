//! Products on the matrix unit: the loops that bring A and B in pieces to the tile registers.
//! A block of B is in pieces before it is used. The rows of A follow two tiles at a time: the vector units take them to
//! pieces while the matrix unit is at those before them, and they bring the sums of the last square to C. Only rows that
//! several blocks of B wait for are all in pieces first.

use std::arch::x86_64::*;

use super::matmul::{ALIGN, aligned};
use super::tile::Finish;
use super::{Block, Division, Gemm, Grid};
use crate::activation::{Function, with_function};
use crate::amx::{Chores, PIECES, SIDE, STEP, STEP_BYTES, TILE, Unit, product, split};
use crate::pool::{Parts, Pool};
use crate::simd::{Avx512, Simd};

/// The most terms that are summed in the tiles before they go to C.
const BLOCK_TERMS: usize = 768;
/// Columns of a packed panel, and of the least that is a block: a multiple of a panel and of a square.
const PANEL: usize = Avx512::TILE_VECTORS * Avx512::LANES;
const COLUMNS: usize = 2 * PANEL;
/// Numbers of B that fit into the second-level cache in pieces, and leave room for those of A.
const BLOCK_OF_B: usize = 150 << 10;
/// Rows of C that a block of B should be used for.
const ROWS: usize = 384;
/// Tasks per thread that even out what other processes take away.
const TASKS_PER_THREAD: usize = 3;
/// Blocks of B that it is not worth taking to pieces for each thread.
const MANY_BLOCKS: usize = 3;
/// Numbers of A up to which there is room for all of them in pieces.
const SHARED: usize = 5 << 20;
/// Rows of a square that are brought to C at a time.
const FINISHED: usize = 4;
/// Numbers before the scratch of a thread that say which block of B it has in pieces.
const HELD: usize = 16;
/// Bytes of the pieces of a number.
const BYTES: usize = 2 * PIECES;

/// How many numbers of workspace [`blocks`] needs.
pub(super) fn workspace(threads: usize, m: usize, n: usize, k: usize) -> usize {
    let plan = Plan::new(threads, m, n, k);
    threads * plan.scratch(k) + plan.shared(m, k)
}

/// The number of terms summed at a time, decided by `k` alone.
fn terms(k: usize) -> usize {
    k.div_ceil(k.div_ceil(BLOCK_TERMS).max(1)).next_multiple_of(STEP)
}

/// f32 that take as much room as the pieces of `n` numbers.
fn in_pieces(n: usize) -> usize {
    n * BYTES / 4
}

/// How a product is divided.
struct Plan {
    grid: Grid,
    /// Whether A is in pieces before the tasks begin.
    shared: bool,
}

impl Plan {
    /// Wide blocks of C, as long as there are enough.
    fn new(threads: usize, m: usize, n: usize, k: usize) -> Plan {
        let units = n.div_ceil(COLUMNS).max(1);
        let least = units.div_ceil((BLOCK_OF_B / (terms(k) * COLUMNS)).max(1));
        let wanted = if threads > 1 { threads * TASKS_PER_THREAD } else { 1 };
        if m >= threads * ROWS && least < MANY_BLOCKS {
            // Threads with many rows have them to themselves. A block of B stays where it is from one task to the next if it
            // has all the terms.
            let parts = if k <= BLOCK_TERMS { (m / threads / ROWS).clamp(1, TASKS_PER_THREAD) } else { 1 };
            let rows = Division::new(m, SIDE, parts * threads, threads);
            return Plan { grid: Grid { rows, columns: Division::new(n, COLUMNS, least, 1) }, shared: false };
        }
        // Others share B, and A in pieces.
        let goal = wanted.min(units).max(least);
        let columns = (least..=goal).rev().find(|c| units.is_multiple_of(*c)).unwrap_or(goal);
        let rows = Division::new(m, SIDE, threads.div_ceil(columns), 1);
        let shared = columns > 1 && m * k <= SHARED;
        Plan { grid: Grid { rows, columns: Division::new(n, COLUMNS, columns, 1) }, shared }
    }

    /// How many numbers of scratch a thread wants.
    fn scratch(&self, k: usize) -> usize {
        HELD + 2 * SIDE * SIDE + in_pieces((2 * SIDE + self.grid.columns.longest()) * terms(k)) + ALIGN
    }

    /// How many numbers the threads have together.
    fn shared(&self, m: usize, k: usize) -> usize {
        if self.shared { in_pieces(m.next_multiple_of(SIDE) * k.next_multiple_of(STEP)) + ALIGN } else { 0 }
    }
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
    let scratches = Parts::new(workspace);
    let c = Parts::new(gemm.c);
    let slope = gemm.slope.map(Parts::new);
    let each = rows.parts / rows.shares;
    pool.run_with_worker(rows.parts * columns.parts, &|task, worker| {
        // A thread goes through its rows for one block of B, then for the next.
        let (share, task) = (task / (columns.parts * each), task % (columns.parts * each));
        let (row, rows) = rows.part(share * each + task % each);
        let (column, columns) = columns.part(task / each);
        // SAFETY: the caller vouches for every block; blocks of C do not overlap, and a worker index is used by one thread
        // at a time, which has no other matrix unit.
        unsafe {
            let block = Block {
                m: rows,
                n: columns,
                k,
                a: gemm.a.as_ptr().add(row * gemm.lda),
                lda: gemm.lda,
                a_layout: gemm.a_layout,
                b: gemm.b.as_ptr().add(column * k),
                ldb: 0,
                c: c.at(row * gemm.ldc + column),
                ldc: gemm.ldc,
                alpha: gemm.alpha,
                accumulate: gemm.accumulate,
                epilogue: gemm.epilogue.part(row, column),
                slope: slope.as_ref().map_or(std::ptr::null_mut(), |p| p.at(row * gemm.ldc + column)),
                scratch: scratches.slice(worker * scratch, scratch),
            };
            let pieces = pieces.as_ref().map(|pieces| pieces.below(row));
            run(Avx512::new(), &mut unit(), block, pieces, 1.0 + column as f32);
        }
    });
}

/// All of A in pieces: for each block of terms two tiles of rows after the other.
#[derive(Clone, Copy)]
struct Pieces {
    start: *const u8,
    /// Rows in all, a multiple of `SIDE`.
    rows: usize,
    /// Where the rows of a block begin.
    row: usize,
}

// SAFETY: what it points to is written before there is one.
unsafe impl Send for Pieces {}
// SAFETY: as above.
unsafe impl Sync for Pieces {}

impl Pieces {
    /// # Safety
    /// A must be readable, and there must be room; the machine must have AVX-512.
    unsafe fn new(pool: &Pool, gemm: &Gemm<'_>, room: &mut [f32]) -> Pieces {
        let Gemm { m, k, lda, .. } = *gemm;
        let most = terms(k);
        let room = Parts::new(room);
        let pieces = Pieces { start: room.at(0).cast(), rows: m.next_multiple_of(SIDE), row: 0 };
        pool.run(m.div_ceil(SIDE), &|i| {
            let row = i * SIDE;
            for start in (0..k).step_by(most) {
                let terms = most.min(k - start);
                let from = gemm.a.as_ptr().wrapping_add(row * lda + start);
                let to = room.at(0).cast::<u8>().wrapping_add(pieces.offset(row, start, terms));
                // SAFETY: the caller vouches for A, the room and the machine.
                unsafe { Rows::new(from, lda, SIDE.min(m - row), terms, to).split(usize::MAX) };
            }
        });
        pieces
    }

    fn below(self, row: usize) -> Pieces {
        Pieces { row: self.row + row, ..self }
    }

    fn offset(&self, row: usize, start: usize, terms: usize) -> usize {
        (start * self.rows + (self.row + row) * terms.next_multiple_of(STEP)) * BYTES
    }
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
            with_function!(activation, f => squares_of(s, unit, f, &block, start, terms, bias, &rooms));
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
unsafe fn squares_of<U: Unit, F: Function>(
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
    let mut configured = [0, 0];
    let mut row = 0;
    let mut count = 0;
    while row < block.m {
        let rows = SIDE.min(block.m - row);
        let shape = [rows.min(16) as u8, rows.saturating_sub(16).max(1) as u8];
        if shape != configured {
            unit.configure(shape);
            configured = shape;
        }
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

/// Takes some terms of B to pieces: for each square's columns one step after the other.
///
/// # Safety
/// The block vouches for B; `to` has room.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn split_columns(block: &Block<'_>, start: usize, terms: usize, to: *mut u8) {
    let steps = terms.div_ceil(STEP);
    for column in (0..block.n.next_multiple_of(SIDE)).step_by(16) {
        let from = block.b.wrapping_add(column / PANEL * PANEL * block.k + column % PANEL + start * PANEL);
        let to = to.wrapping_add(column / SIDE * steps * STEP_BYTES + column % SIDE / 16 * PIECES * TILE);
        // Panels are whole; columns after the last and terms after the last are zero.
        let terms = if column < block.n { terms } else { 0 };
        for step in 0..steps {
            for i in 0..STEP / 2 {
                let term = step * STEP + i;
                let row = |term: usize| (if term < terms { u16::MAX } else { 0 }, from.wrapping_add(term * PANEL));
                let ((x_mask, x), (y_mask, y)) = (row(term), row(term + STEP / 2));
                // SAFETY: masked lanes are not read, the others are B's; asking for a line does not fault.
                unsafe {
                    // Those of the step after the next.
                    _mm_prefetch::<_MM_HINT_T0>(x.wrapping_add(2 * STEP * PANEL).cast());
                    _mm_prefetch::<_MM_HINT_T0>(y.wrapping_add(2 * STEP * PANEL).cast());
                    let (x, y) = (_mm512_maskz_loadu_ps(x_mask, x), _mm512_maskz_loadu_ps(y_mask, y));
                    split(x, y, to.add(step * STEP_BYTES + i * 64), TILE);
                }
            }
        }
    }
}

/// A mask of the first `n` lanes, or of all.
fn first(n: usize) -> u16 {
    if n >= 16 { u16::MAX } else { (1 << n) - 1 }
}

/// Rows of A on their way to pieces.
struct Rows {
    from: *const f32,
    lda: usize,
    rows: usize,
    terms: usize,
    to: *mut u8,
    /// Where it is: the row, and the step in it.
    row: usize,
    step: usize,
}

impl Rows {
    fn new(from: *const f32, lda: usize, rows: usize, terms: usize, to: *mut u8) -> Rows {
        Rows { from, lda, rows, terms, to, row: 0, step: 0 }
    }

    /// Takes the next so many steps of rows to pieces, or those that are left.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn split(&mut self, mut count: usize) {
        let steps = self.terms.div_ceil(STEP);
        while count > 0 && self.row < self.rows {
            let some = count.min(steps - self.step);
            let mut from = self.from.wrapping_add(self.row * self.lda + self.step * STEP);
            let to = self.step * STEP_BYTES + self.row / 16 * PIECES * TILE + self.row % 16 * 64;
            let mut to = self.to.wrapping_add(to);
            for step in self.step..self.step + some {
                // SAFETY: masked lanes are not read, the others are A's, and there is room for the pieces of all steps.
                unsafe {
                    let next = from.wrapping_add(STEP / 2);
                    let (x, y) = if (step + 1) * STEP <= self.terms {
                        (_mm512_loadu_ps(from), _mm512_loadu_ps(next))
                    } else {
                        let left = self.terms - step * STEP;
                        let x = _mm512_maskz_loadu_ps(first(left), from);
                        (x, _mm512_maskz_loadu_ps(first(left.saturating_sub(STEP / 2)), next))
                    };
                    split(x, y, to, TILE);
                }
                from = from.wrapping_add(STEP);
                to = to.wrapping_add(STEP_BYTES);
            }
            count -= some;
            self.step += some;
            if self.step == steps {
                (self.row, self.step) = (self.row + 1, 0);
            }
        }
    }
}

/// A square of sums on its way to C through a function, and nothing else but sums.
struct Square {
    sums: *const f32,
    rows: usize,
    /// Whether C holds the sum so far.
    add: bool,
    c: *mut f32,
    ldc: usize,
    /// What is added last, if it is not null, and the distance of its rows.
    plus: *const f32,
    plus_stride: usize,
}

impl Square {
    fn none() -> Square {
        let (sums, c, plus) = (std::ptr::null(), std::ptr::null_mut(), std::ptr::null());
        Square { sums, rows: 0, add: false, c, ldc: 0, plus, plus_stride: 0 }
    }

    /// Brings the next so many rows to C, or those that are left.
    ///
    /// # Safety
    /// The rows must be readable, and those of C writable.
    #[inline(always)]
    unsafe fn finish<F: Function>(&mut self, s: Avx512, f: F, rows: usize) {
        let rows = rows.min(self.rows);
        for _ in 0..rows {
            for j in [0, Avx512::LANES] {
                // SAFETY: the caller vouches for the memory.
                unsafe {
                    let c = self.c.add(j);
                    let mut x = s.load(self.sums.add(j));
                    if self.add {
                        x = s.add(x, s.load(c));
                    }
                    x = f.value(s, x);
                    if !self.plus.is_null() {
                        x = s.add(x, s.load(self.plus.add(j)));
                    }
                    s.store(c, x);
                }
            }
            self.sums = self.sums.wrapping_add(SIDE);
            self.c = self.c.wrapping_add(self.ldc);
            self.plus = self.plus.wrapping_add(self.plus_stride);
        }
        self.rows -= rows;
    }
}

/// The next rows of A, and the last square of C.
struct Both<F> {
    s: Avx512,
    f: F,
    rows: Rows,
    /// Steps of rows at a time.
    each: usize,
    square: Square,
}

impl<F: Function> Chores for Both<F> {
    #[inline(always)]
    fn some(&mut self) {
        // SAFETY: `s` proves that the instructions are available; the square is one of the block's.
        unsafe {
            self.rows.split(self.each);
            self.square.finish(self.s, self.f, FINISHED);
        }
    }
}

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
            activation: Activation::Relu,
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

    #[test]
    fn the_parts_of_a_plan_cover_the_result() {
        for threads in [1, 2, 3, 16, 64] {
            for [m, n, k] in [[24, 1, 1], [197, 768, 768], [197, 3072, 768], [1576, 192, 768], [12608, 3072, 768]] {
                let Grid { rows, columns } = Plan::new(threads, m, n, k).grid;
                for (division, length) in [(rows, m), (columns, n)] {
                    let mut end = 0;
                    for i in 0..division.parts {
                        let (start, part) = division.part(i);
                        assert_eq!(start, end, "{threads} threads, {m} x {n} x {k}");
                        assert!(part <= division.longest());
                        end = start + part;
                    }
                    assert_eq!(end, length);
                }
            }
        }
    }
}
