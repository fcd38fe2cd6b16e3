//! A block of the result on one thread: pixels by filters, brought through the caches to a register tile.

use vit_graph::ops::ResidualAt;

use crate::activation::{Activation, ActivationFn, with_activation};
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, MAX_TILE_VECTORS, Simd};

/// Numbers that lie together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub offset: usize,
    pub len: usize,
}

/// Some pixels of the result and some of its channels.
///
/// Making one is a promise: at every start all pieces are inside the image; the panels of `columns` filters are at
/// `weight`; result, bias and residual have room for the block; and nobody else uses that part of the result.
pub(super) struct Block<'a> {
    pub image: *const f32,
    pub starts: &'a [usize],
    pub parts: &'a [(Vec<Segment>, usize)],
    pub weight: *const f32,
    pub terms: usize,
    pub columns: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub bias: Option<*const f32>,
    pub activation: Option<Activation>,
    pub residual: Option<(ResidualAt, *const f32)>,
}

#[repr(C, align(64))]
struct TileBuffer([f32; MAX_TILE_ROWS * MAX_TILE_VECTORS * MAX_LANES]);

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = S::TILE_VECTORS * S::LANES;
        let mut buffer = TileBuffer([0.0; MAX_TILE_ROWS * MAX_TILE_VECTORS * MAX_LANES]);
        for (index, (pieces, first)) in self.parts.iter().enumerate() {
            let last = index + 1 == self.parts.len();
            let mut column = 0;
            while column < self.columns {
                let columns = width.min(self.columns - column);
                let vectors = columns.div_ceil(S::LANES);
                let mut row = 0;
                while row < self.starts.len() {
                    let rows = S::TILE_ROWS.min(self.starts.len() - row);
                    // SAFETY: the promise of whoever made this covers the tile; rows that are not there repeat the last.
                    unsafe {
                        let mut pixels = [self.image; MAX_TILE_ROWS];
                        for (r, pixel) in pixels.iter_mut().enumerate() {
                            *pixel = self.image.add(self.starts[row + r.min(rows - 1)]);
                        }
                        let weight = self.weight.add(column * self.terms + first * width);
                        tile(s, vectors, Tile { pixels, pieces, weight, out: buffer.0.as_mut_ptr() });
                        let at = row * self.ldc + column;
                        let finish = Finish {
                            tile: buffer.0.as_ptr(),
                            rows,
                            columns,
                            c: self.c.add(at),
                            ldc: self.ldc,
                            add: index > 0,
                            bias: self.bias.filter(|_| last).map(|b| b.add(column)),
                            residual: self.residual.filter(|_| last).map(|(place, r)| (place, r.add(at))),
                        };
                        let activation = if last { self.activation } else { None };
                        with_activation!(activation, f => s.vectorize(FinishWith { finish, f }));
                    }
                    row += rows;
                }
                column += columns;
            }
        }
    }
}

struct Tile<'a> {
    pixels: [*const f32; MAX_TILE_ROWS],
    pieces: &'a [Segment],
    weight: *const f32,
    out: *mut f32,
}

/// # Safety
/// As for [`Block`]; `out` has room for a whole tile.
#[inline(always)]
unsafe fn tile<S: Simd>(s: S, vectors: usize, tile: Tile<'_>) {
    match (S::TILE_ROWS, vectors) {
        (4, 1) => s.vectorize(Sums::<4, 1>(tile)),
        (4, _) => s.vectorize(Sums::<4, 2>(tile)),
        (6, 1) => s.vectorize(Sums::<6, 1>(tile)),
        (6, _) => s.vectorize(Sums::<6, 2>(tile)),
        (_, 1) => s.vectorize(Sums::<8, 1>(tile)),
        (_, 2) => s.vectorize(Sums::<8, 2>(tile)),
        (_, _) => s.vectorize(Sums::<8, 3>(tile)),
    }
}

struct Sums<'a, const ROWS: usize, const VECTORS: usize>(Tile<'a>);

impl<const ROWS: usize, const VECTORS: usize> Kernel for Sums<'_, ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // Known at compile time: the shapes that do not exist for this instruction set cost no code.
        if ROWS != S::TILE_ROWS || VECTORS > S::TILE_VECTORS {
            unreachable!("a tile of another instruction set");
        }
        let Tile { pixels, pieces, mut weight, out } = self.0;
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: whoever made the tile vouches for the pieces at every pixel, their terms of the panel, and the output.
        unsafe {
            for piece in pieces {
                let mut row = [pixels[0]; ROWS];
                for r in 0..ROWS {
                    row[r] = pixels[r].add(piece.offset);
                }
                for i in 0..piece.len {
                    let mut filters = [s.splat(0.0); VECTORS];
                    for j in 0..VECTORS {
                        filters[j] = s.load(weight.add(j * S::LANES));
                    }
                    for r in 0..ROWS {
                        let x = s.splat(*row[r].add(i));
                        for j in 0..VECTORS {
                            sums[r][j] = s.mul_add(x, filters[j], sums[r][j]);
                        }
                    }
                    weight = weight.add(S::TILE_VECTORS * S::LANES);
                }
            }
            for r in 0..ROWS {
                for j in 0..VECTORS {
                    s.store(out.add((r * S::TILE_VECTORS + j) * S::LANES), sums[r][j]);
                }
            }
        }
    }
}

/// Takes a finished tile to the result.
struct Finish {
    tile: *const f32,
    rows: usize,
    columns: usize,
    c: *mut f32,
    ldc: usize,
    /// Whether the result holds the sum so far.
    add: bool,
    bias: Option<*const f32>,
    residual: Option<(ResidualAt, *const f32)>,
}

struct FinishWith<F> {
    finish: Finish,
    f: F,
}

impl<F: ActivationFn> Kernel for FinishWith<F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Finish { tile, rows, columns, c, ldc, add, bias, residual } = self.finish;
        let width = S::TILE_VECTORS * S::LANES;
        let mut column = 0;
        while column < columns {
            let n = columns - column;
            // SAFETY: whoever made this vouches for `columns` of the tile, the result, bias and residual.
            unsafe {
                let bias = match bias {
                    Some(bias) => s.load_up_to(bias.add(column), n),
                    None => s.splat(0.0),
                };
                for row in 0..rows {
                    let at = row * ldc + column;
                    let mut x = s.load(tile.add(row * width + column));
                    if add {
                        x = s.add(x, s.load_up_to(c.add(at), n));
                    }
                    x = s.add(x, bias);
                    x = match residual {
                        Some((ResidualAt::BeforeActivation, r)) => {
                            self.f.value(s, s.add(x, s.load_up_to(r.add(at), n)))
                        }
                        Some((ResidualAt::AfterActivation, r)) => s.add(self.f.value(s, x), s.load_up_to(r.add(at), n)),
                        None => self.f.value(s, x),
                    };
                    s.store_up_to(c.add(at), x, n);
                }
            }
            column += S::LANES;
        }
    }
}
