//! One block of C on one thread: quantised rows times packed panels, tile by tile. The sums of a tile stay in registers
//! over the whole of k; what turns them into numbers of C follows while they are in the nearest cache.

use super::path::{Dot, DotKernel, MAX_TILE_COLUMNS, MAX_TILE_ROWS};
use crate::activation::{ActivationFn, with_activation};
use crate::gemm::Epilogue;
use crate::simd::Simd;

/// Bytes in a cache line.
const LINE: usize = 64;

/// Where the sums of a tile go.
#[repr(C, align(64))]
struct TileBuffer([i32; MAX_TILE_ROWS * MAX_TILE_COLUMNS]);

/// The product of some quantised rows with some panels of weights.
///
/// Making one is a promise: `m` rows of A with their scales and offsets, the panels, scales and sums of `n` columns and
/// `m` x `n` of C, bias, scale and residual are valid, and nobody else uses that C.
pub(super) struct Block<'a> {
    pub m: usize,
    pub n: usize,
    /// Groups of terms of each sum.
    pub groups: usize,
    pub a: *const u8,
    /// Bytes from one row of A to the next.
    pub stride: usize,
    pub row_scales: *const f32,
    pub row_offsets: *const i32,
    /// Packed panels, the first of them that of column 0.
    pub b: *const i8,
    pub column_scales: *const f32,
    pub weight_sums: *const i32,
    pub c: *mut f32,
    pub ldc: usize,
    pub epilogue: Epilogue<'a>,
}

impl DotKernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let width = D::TILE_VECTORS * D::Float::LANES;
        let panel = self.groups * D::GROUP * width;
        let mut buffer = TileBuffer([0; MAX_TILE_ROWS * MAX_TILE_COLUMNS]);
        let mut column = 0;
        while column < self.n {
            let columns = width.min(self.n - column);
            let vectors = columns.div_ceil(D::Float::LANES);
            let mut row = 0;
            while row < self.m {
                let rows = D::TILE_ROWS.min(self.m - row);
                // SAFETY: the block's own promise covers this tile of it.
                unsafe {
                    let c = self.c.add(row * self.ldc + column);
                    let b = self.b.add(column * self.groups * D::GROUP);
                    prefetch(d, c, self.ldc, rows, columns);
                    if let Some((residual, ld)) = self.epilogue.residual {
                        prefetch(d, residual.as_ptr().wrapping_add(row * ld + column), ld, rows, columns);
                    }
                    // The first tiles of a panel ask for the panel after it.
                    let fetched = row / D::TILE_ROWS * self.groups * LINE;
                    let soon = if fetched < panel { b.wrapping_add(panel + fetched) } else { b };
                    let args = TileArgs {
                        groups: self.groups,
                        a: self.a.add(row * self.stride),
                        stride: self.stride,
                        b,
                        out: buffer.0.as_mut_ptr(),
                        soon,
                    };
                    tile(d, rows, vectors, args);
                    d.vectorize(Finish {
                        sums: buffer.0.as_ptr(),
                        stride: width,
                        rows,
                        columns,
                        row_scales: self.row_scales.add(row),
                        row_offsets: self.row_offsets.add(row),
                        column_scales: self.column_scales.add(column),
                        weight_sums: self.weight_sums.add(column),
                        c,
                        ldc: self.ldc,
                        epilogue: self.epilogue.part(row, column),
                    });
                }
                row += rows;
            }
            column += columns;
        }
    }
}

/// Asks for the lines of a few short rows.
#[inline(always)]
fn prefetch<D: Dot>(d: D, start: *const f32, ld: usize, rows: usize, columns: usize) {
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            d.float().prefetch(start.wrapping_add(row * ld + column));
            column += LINE / 4;
        }
    }
}

/// Operands of a tile.
#[derive(Clone, Copy)]
struct TileArgs {
    groups: usize,
    a: *const u8,
    stride: usize,
    /// One packed panel.
    b: *const i8,
    out: *mut i32,
    /// Memory that is wanted soon, one cache line for each group; it need not be valid.
    soon: *const i8,
}

struct Tile<const ROWS: usize, const VECTORS: usize>(TileArgs);

impl<const ROWS: usize, const VECTORS: usize> DotKernel for Tile<ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<D: Dot>(self, d: D) {
        // Known at compile time: the shapes that do not exist on this path cost no code.
        if ROWS > D::TILE_ROWS || VECTORS > D::TILE_VECTORS {
            unreachable!("tile larger than the registers");
        }
        let TileArgs { groups, a, stride, mut b, out, mut soon } = self.0;
        let lanes = D::Float::LANES;
        let mut sums = [[d.zero(); VECTORS]; ROWS];
        let mut row = [a; ROWS];
        // SAFETY: whoever made the arguments vouches for ROWS rows of A, the panel, and ROWS rows of output.
        unsafe {
            for (r, p) in row.iter_mut().enumerate() {
                *p = a.add(r * stride);
            }
            for i in 0..groups {
                let mut right = [d.load_right(b); VECTORS];
                for j in 1..VECTORS {
                    right[j] = d.load_right(b.add(j * lanes * D::GROUP));
                }
                d.float().prefetch(soon.cast());
                soon = soon.wrapping_add(LINE);
                for r in 0..ROWS {
                    let left = d.load_left(row[r].add(i * D::GROUP * D::LEFT_BYTES));
                    for j in 0..VECTORS {
                        sums[r][j] = d.dot(left, right[j], sums[r][j]);
                    }
                }
                b = b.add(D::TILE_VECTORS * lanes * D::GROUP);
            }
            for r in 0..ROWS {
                for j in 0..VECTORS {
                    d.store_sums(out.add((r * D::TILE_VECTORS + j) * lanes), sums[r][j]);
                }
            }
        }
    }
}

/// Computes the sums of `rows` x `vectors` vectors into `args.out`.
///
/// # Safety
/// The operands must be readable and the output writable to that extent.
#[inline(always)]
unsafe fn tile<D: Dot>(d: D, rows: usize, vectors: usize, args: TileArgs) {
    macro_rules! shapes {
        ($($rows:literal),*) => {
            match (rows, vectors) {
                $(
                    ($rows, 1) => d.vectorize(Tile::<$rows, 1>(args)),
                    ($rows, 2) => d.vectorize(Tile::<$rows, 2>(args)),
                    ($rows, 3) => d.vectorize(Tile::<$rows, 3>(args)),
                )*
                _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
            }
        };
    }
    shapes!(1, 2, 3, 4, 5, 6, 7, 8)
}

/// Takes the sums of a tile to C.
#[derive(Clone, Copy)]
pub(super) struct Finish<'a> {
    pub sums: *const i32,
    /// Distance of the rows of the tile.
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
    pub row_scales: *const f32,
    pub row_offsets: *const i32,
    pub column_scales: *const f32,
    pub weight_sums: *const i32,
    pub c: *mut f32,
    pub ldc: usize,
    pub epilogue: Epilogue<'a>,
}

impl DotKernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        with_activation!(self.epilogue.activation, f => d.vectorize(FinishWith { finish: self, f }));
    }
}

struct FinishWith<'a, F> {
    finish: Finish<'a>,
    f: F,
}

impl<F: ActivationFn> DotKernel for FinishWith<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let s = d.float();
        let lanes = D::Float::LANES;
        let finish = self.finish;
        let Epilogue { bias, scale, residual, .. } = finish.epilogue;
        let mut column = 0;
        while column < finish.columns {
            let n = finish.columns - column;
            // SAFETY: whoever made this vouches for `columns` of C, bias, scale and residual, and for whole vectors of
            // what is packed.
            unsafe {
                let column_scale = s.load(finish.column_scales.add(column));
                let weight_sums = finish.weight_sums.add(column);
                let bias = match bias {
                    Some(bias) => s.load_up_to(bias.as_ptr().add(column), n),
                    None => s.splat(0.0),
                };
                let scale = match scale {
                    Some(scale) => s.load_up_to(scale.as_ptr().add(column), n),
                    None => s.splat(1.0),
                };
                for row in 0..finish.rows {
                    let c = finish.c.add(row * finish.ldc + column);
                    let sums = finish.sums.add(row * finish.stride + column);
                    let total = d.load_total(sums, *finish.row_offsets.add(row), weight_sums);
                    let row_scale = s.splat(*finish.row_scales.add(row));
                    let x = s.mul(s.mul(total, column_scale), row_scale);
                    let mut x = s.mul(self.f.value(s, s.add(x, bias)), scale);
                    if let Some((residual, ld)) = residual {
                        x = s.add(x, s.load_up_to(residual.as_ptr().add(row * ld + column), n));
                    }
                    s.store_up_to(c, x, n);
                }
            }
            column += lanes;
        }
    }
}
