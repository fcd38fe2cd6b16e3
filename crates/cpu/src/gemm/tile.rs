//! The register tile: a few rows of A times one panel of B, summed over k without touching memory in between.
//! Every tile shape performs the same operations for an element, so results do not depend on where tiles end.

use super::{ALayout, Epilogue};
use crate::activation::{Function, with_function};
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, MAX_TILE_VECTORS, Simd};

/// Numbers in a cache line.
pub(super) const LINE: usize = 16;

/// Where a tile goes when it cannot go to C directly.
#[repr(C, align(64))]
pub(super) struct TileBuffer(pub [f32; MAX_TILE_ROWS * MAX_TILE_VECTORS * MAX_LANES]);

/// Operands of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileArgs {
    pub k: usize,
    pub a: *const f32,
    pub lda: usize,
    /// One packed panel.
    pub b: *const f32,
    pub out: *mut f32,
    pub out_stride: usize,
    /// Memory that is wanted soon, one cache line for each of the k steps; it need not be valid.
    pub soon: *const f32,
}

struct Tile<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(TileArgs);

impl<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool> Kernel for Tile<ROWS, VECTORS, TRANSPOSED> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // Known at compile time: the shapes that do not exist for this instruction set cost no code.
        if ROWS > S::TILE_ROWS || VECTORS > S::TILE_VECTORS {
            unreachable!("tile larger than the registers");
        }
        let TileArgs { k, a, lda, mut b, out, out_stride, mut soon } = self.0;
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        let mut row = [a; ROWS];
        let mut column = a;
        // SAFETY: whoever made the arguments vouches for ROWS x k of A, k full rows of the panel, and ROWS x VECTORS
        // vectors of output.
        unsafe {
            if !TRANSPOSED {
                for (r, p) in row.iter_mut().enumerate() {
                    *p = a.add(r * lda);
                }
            }
            for i in 0..k {
                let mut vectors = [s.splat(0.0); VECTORS];
                for (j, v) in vectors.iter_mut().enumerate() {
                    *v = s.load(b.add(j * S::LANES));
                }
                s.prefetch(soon);
                soon = soon.wrapping_add(LINE);
                for r in 0..ROWS {
                    let x = if TRANSPOSED { s.splat(*column.add(r)) } else { s.splat(*row[r].add(i)) };
                    for j in 0..VECTORS {
                        sums[r][j] = s.mul_add(x, vectors[j], sums[r][j]);
                    }
                }
                b = b.add(S::TILE_VECTORS * S::LANES);
                if TRANSPOSED {
                    column = column.wrapping_add(lda);
                }
            }
            for r in 0..ROWS {
                for j in 0..VECTORS {
                    s.store(out.add(r * out_stride + j * S::LANES), sums[r][j]);
                }
            }
        }
    }
}

/// Computes `rows` x `vectors` vectors of `A B` into `args.out`.
///
/// # Safety
/// The operands must be readable and the output writable to that extent.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd>(s: S, rows: usize, vectors: usize, layout: ALayout, args: TileArgs) {
    macro_rules! shapes {
        ($($rows:literal),*) => {
            match (rows, vectors, layout) {
                $(
                    ($rows, 1, ALayout::RowMajor) => s.vectorize(Tile::<$rows, 1, false>(args)),
                    ($rows, 2, ALayout::RowMajor) => s.vectorize(Tile::<$rows, 2, false>(args)),
                    ($rows, 3, ALayout::RowMajor) => s.vectorize(Tile::<$rows, 3, false>(args)),
                    ($rows, 1, ALayout::Transposed) => s.vectorize(Tile::<$rows, 1, true>(args)),
                    ($rows, 2, ALayout::Transposed) => s.vectorize(Tile::<$rows, 2, true>(args)),
                    ($rows, 3, ALayout::Transposed) => s.vectorize(Tile::<$rows, 3, true>(args)),
                )*
                _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
            }
        };
    }
    shapes!(1, 2, 3, 4, 5, 6, 7, 8)
}

/// Takes a finished tile to C.
pub(super) struct Finish<'a> {
    pub tile: *const f32,
    pub rows: usize,
    pub columns: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub alpha: f32,
    /// Whether C holds the sum so far.
    pub add: bool,
    pub epilogue: Option<Epilogue<'a>>,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let activation = self.epilogue.map(|e| e.activation).unwrap_or_default();
        with_function!(activation, f => s.vectorize(FinishWith { finish: self, f }));
    }
}

struct FinishWith<'a, F> {
    finish: Finish<'a>,
    f: F,
}

impl<F: Function> Kernel for FinishWith<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Finish { tile, rows, columns, c, ldc, alpha, add, epilogue } = self.finish;
        let width = S::TILE_VECTORS * S::LANES;
        let alpha = s.splat(alpha);
        let Epilogue { bias, scale, residual, .. } = epilogue.unwrap_or_default();
        let mut column = 0;
        while column < columns {
            let n = columns - column;
            // SAFETY: whoever made this vouches for `columns` of the tile, C, bias, scale and residual.
            unsafe {
                let bias = match bias {
                    Some(bias) => s.load_up_to(bias.as_ptr().add(column), n),
                    None => s.splat(0.0),
                };
                let scale = match scale {
                    Some(scale) => s.load_up_to(scale.as_ptr().add(column), n),
                    None => s.splat(1.0),
                };
                for row in 0..rows {
                    let c = c.add(row * ldc + column);
                    let mut x = s.mul(s.load(tile.add(row * width + column)), alpha);
                    if add {
                        x = s.add(x, s.load_up_to(c, n));
                    }
                    x = s.mul(self.f.value(s, s.add(x, bias)), scale);
                    if let Some((residual, ld)) = residual {
                        x = s.add(x, s.load_up_to(residual.as_ptr().add(row * ld + column), n));
                    }
                    s.store_up_to(c, x, n);
                }
            }
            column += S::LANES;
        }
    }
}
