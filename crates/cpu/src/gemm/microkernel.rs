//! The register tile: a few rows of A times one panel of B, summed over k without touching memory in between.
//! Every tile shape performs the same operations for an element, so results do not depend on where tiles end.

use super::{ALayout, Epilogue, Groups, Operands};
use crate::activation::{ActivationFn, with_activation};
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, MAX_TILE_VECTORS, Simd};

/// Rows of a transposed A to ask for ahead of time: far apart, they are not a stream to the processor.
const AHEAD: usize = 12;
/// Numbers in a cache line.
pub(super) const LINE: usize = 16;
/// Lines of a row of A to ask for ahead of time: the processor then sees the stream.
const FIRST_LINES: usize = 4;

/// Where a tile goes when it cannot go to C directly.
#[repr(C, align(64))]
pub(super) struct TileBuffer(pub [f32; MAX_TILE_ROWS * MAX_TILE_VECTORS * MAX_LANES]);

/// A row of a tile.
#[repr(C, align(64))]
pub(super) struct TileRow(pub [f32; MAX_TILE_VECTORS * MAX_LANES]);

/// The cache lines of a tile of C, as distances from its first. Asked for one by one while a tile is computed, they come
/// without holding up the operands, which all at once they would.
pub(super) struct Lines {
    distances: [usize; MAX_TILE_ROWS * MAX_TILE_VECTORS],
    last: usize,
}

impl Lines {
    #[inline(always)]
    pub fn new() -> Lines {
        Lines { distances: [0; MAX_TILE_ROWS * MAX_TILE_VECTORS], last: 0 }
    }

    /// Those of a few short rows that are `ld` apart.
    #[inline(always)]
    pub fn set(&mut self, rows: usize, columns: usize, ld: usize) {
        let each = columns.div_ceil(LINE).min(MAX_TILE_VECTORS);
        let count = rows.min(MAX_TILE_ROWS) * each;
        let mut places = self.distances[..count].iter_mut();
        for row in 0..rows {
            for (line, place) in places.by_ref().take(each).enumerate() {
                *place = row * ld + line * LINE;
            }
        }
        self.last = count.saturating_sub(1);
    }
}

/// Operands of one tile or several, one below the other.
#[derive(Clone, Copy)]
pub(super) struct TileArgs<'a> {
    /// How many tiles. All that follows is of the first of them; C and what is laid out as C go on row by row.
    pub tiles: usize,
    pub k: usize,
    pub a: *const f32,
    pub lda: usize,
    /// From the part of A of one tile to that of the next.
    pub a_step: usize,
    /// Whether the rows of A of the next tile are not in the cache yet.
    pub fetch_a: bool,
    /// One packed panel.
    pub b: *const f32,
    /// What the sums of every row start with: as many vectors as the tile has.
    pub start: *const f32,
    pub out: *mut f32,
    pub out_stride: usize,
    /// What the sums are multiplied by and then added to on their way out, and the distance of the rows of each; null if
    /// nothing.
    pub times: (*const f32, usize),
    pub plus: (*const f32, usize),
    pub soon: Soon,
    /// Memory that is wanted when the tile is done, laid out as C: the tile of C, and one more or the same again.
    pub later: [*const f32; 2],
    pub later_stride: usize,
    pub lines: &'a Lines,
}

/// Memory that is wanted soon, one cache line for each of the k steps of the first tiles; it need not be valid.
#[derive(Clone, Copy)]
pub(super) struct Soon {
    pub start: *const f32,
    /// From line to line.
    pub step: usize,
    /// From the first line of a tile to that of the next.
    pub tile_step: usize,
    /// How many tiles take part.
    pub tiles: usize,
}

/// Terms of a group.
pub(super) const GROUP: usize = 4;

/// Where a tile is in its operands and in what it asks for.
pub(super) struct Walk<'a> {
    operands: Operands,
    soon: *const f32,
    soon_step: usize,
    later: [*const f32; 2],
    lines: &'a Lines,
    /// Groups of terms so far.
    groups: usize,
}

impl<'a> Walk<'a> {
    /// The start of a tile, which also asks for the rows of A after it.
    #[inline(always)]
    pub fn new<S: Simd>(s: S, args: &TileArgs<'a>, tile: usize, rows: usize) -> Walk<'a> {
        let a = args.a.wrapping_add(tile * args.a_step);
        if args.fetch_a {
            for row in 0..rows {
                for line in 0..FIRST_LINES {
                    s.prefetch(a.wrapping_add(args.a_step + row * args.lda + line * LINE));
                }
            }
        }
        let more = tile < args.soon.tiles;
        Walk {
            operands: Operands::new(a, args.lda, args.b, S::TILE_VECTORS * S::LANES),
            soon: if more { args.soon.start.wrapping_add(tile * args.soon.tile_step) } else { args.b },
            soon_step: if more { args.soon.step } else { 0 },
            later: args.later.map(|p| p.wrapping_add(tile * rows * args.later_stride)),
            lines: args.lines,
            groups: 0,
        }
    }
}

impl Groups for Walk<'_> {
    #[inline(always)]
    unsafe fn group<S: Simd, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool, const TERMS: usize>(
        &mut self,
        s: S,
        sums: &mut [[S::V; VECTORS]; ROWS],
    ) {
        // SAFETY: the caller vouches for the operands; `last` is the place of a line.
        unsafe {
            let distance = *self.lines.distances.as_ptr().add(self.groups.min(self.lines.last));
            s.prefetch(self.later[0].wrapping_add(distance));
            s.prefetch(self.later[1].wrapping_add(distance));
            self.groups += 1;
            for term in 0..TERMS {
                self.operands.add::<S, ROWS, VECTORS, TRANSPOSED>(s, term, sums);
                s.prefetch(self.soon);
                self.soon = self.soon.wrapping_add(self.soon_step);
                if TRANSPOSED {
                    s.prefetch(self.operands.row_ahead(AHEAD));
                }
            }
        }
        if !TRANSPOSED {
            self.operands.skip(TERMS);
        }
    }
}

/// Tiles of one shape. What they take is lent: a copy would wait for what has just been written.
struct Tile<'a, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(&'a TileArgs<'a>);

impl<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool> Kernel for Tile<'_, ROWS, VECTORS, TRANSPOSED> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // Known at compile time: the shapes that do not exist for this instruction set cost no code.
        if ROWS > S::TILE_ROWS || VECTORS > S::TILE_VECTORS {
            unreachable!("tile larger than the registers");
        }
        let args = self.0;
        let TileArgs { k, start, mut out, out_stride, mut times, mut plus, .. } = *args;
        for tile in 0..args.tiles {
            // SAFETY: whoever made the arguments vouches for ROWS x k of A, k full rows of the panel, and ROWS x VECTORS
            // vectors of output and what goes into it.
            unsafe {
                let mut sums = starts::<S, ROWS, VECTORS>(s, start);
                Walk::new(s, args, tile, ROWS).add::<S, ROWS, VECTORS, TRANSPOSED, GROUP>(s, k, &mut sums);
                if !times.0.is_null() {
                    for r in 0..ROWS {
                        for j in 0..VECTORS {
                            sums[r][j] = s.mul(sums[r][j], s.load(times.0.add(r * times.1 + j * S::LANES)));
                        }
                    }
                }
                if !plus.0.is_null() {
                    for r in 0..ROWS {
                        for j in 0..VECTORS {
                            sums[r][j] = s.add(sums[r][j], s.load(plus.0.add(r * plus.1 + j * S::LANES)));
                        }
                    }
                }
                for r in 0..ROWS {
                    for j in 0..VECTORS {
                        s.store(out.add(r * out_stride + j * S::LANES), sums[r][j]);
                    }
                }
            }
            out = out.wrapping_add(ROWS * out_stride);
            times.0 = if times.0.is_null() { times.0 } else { times.0.wrapping_add(ROWS * times.1) };
            plus.0 = if plus.0.is_null() { plus.0 } else { plus.0.wrapping_add(ROWS * plus.1) };
        }
    }
}

/// The same start for each row of a tile.
///
/// # Safety
/// `VECTORS` vectors must be readable.
#[inline(always)]
pub(super) unsafe fn starts<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    start: *const f32,
) -> [[S::V; VECTORS]; ROWS] {
    let mut row = [s.splat(0.0); VECTORS];
    for (j, v) in row.iter_mut().enumerate() {
        // SAFETY: the caller vouches for it.
        *v = unsafe { s.load(start.add(j * S::LANES)) };
    }
    [row; ROWS]
}

/// Computes `rows` x `vectors` vectors of `A B` into `args.out`, or several tiles of that size.
///
/// # Safety
/// The operands must be readable and the output writable to that extent.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd>(s: S, rows: usize, vectors: usize, layout: ALayout, args: &TileArgs<'_>) {
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

/// Takes a finished tile to C, or rows of C through the epilogue where they are.
pub(super) struct Finish<'a> {
    pub tile: *const f32,
    /// Distance of the rows of the tile.
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub alpha: f32,
    /// Whether C holds the sum so far.
    pub add: bool,
    pub epilogue: Option<Epilogue<'a>>,
    /// Takes the slope of the activation, laid out as C, unless it is null.
    pub slope: *mut f32,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let activation = self.epilogue.map(|e| e.activation).unwrap_or_default();
        if self.slope.is_null() {
            with_activation!(activation, f => s.vectorize(FinishWith::<_, false> { finish: self, f }));
        } else {
            with_activation!(activation, f => s.vectorize(FinishWith::<_, true> { finish: self, f }));
        }
    }
}

struct FinishWith<'a, F, const SLOPE: bool> {
    finish: Finish<'a>,
    f: F,
}

impl<F: ActivationFn, const SLOPE: bool> Kernel for FinishWith<'_, F, SLOPE> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Finish { tile, stride, rows, columns, c, ldc, alpha, add, epilogue, slope } = self.finish;
        let Epilogue { bias, scale, factor, residual, .. } = epilogue.unwrap_or_default();
        let others = bias.is_some() || scale.is_some() || factor.is_some() || residual.is_some();
        if alpha == 1.0 && !add && !others && columns % S::LANES == 0 {
            // The usual case, without questions on the way.
            for row in 0..rows {
                for column in (0..columns).step_by(S::LANES) {
                    let at = row * ldc + column;
                    // SAFETY: whoever made this vouches for `columns` of the tile, C and the slope.
                    unsafe {
                        let x = s.load(tile.add(row * stride + column));
                        if SLOPE {
                            let (value, its_slope) = self.f.value_and_derivative(s, x);
                            s.store(c.add(at), value);
                            s.store(slope.add(at), its_slope);
                        } else {
                            s.store(c.add(at), self.f.value(s, x));
                        }
                    }
                }
            }
            return;
        }
        let mut column = 0;
        while column < columns {
            let n = columns - column;
            // SAFETY: whoever made this vouches for `columns` of the tile, C, and what the epilogue has.
            unsafe {
                let bias = match bias {
                    Some(bias) => s.load_up_to(bias.as_ptr().add(column), n),
                    None => s.splat(0.0),
                };
                for row in 0..rows {
                    let at = row * ldc + column;
                    let c = c.add(at);
                    let mut x = s.load(tile.add(row * stride + column));
                    if alpha != 1.0 {
                        x = s.mul(x, s.splat(alpha));
                    }
                    if add {
                        x = s.add(x, s.load_up_to(c, n));
                    }
                    x = s.add(x, bias);
                    if SLOPE {
                        let (value, its_slope) = self.f.value_and_derivative(s, x);
                        s.store_up_to(slope.add(at), its_slope, n);
                        x = value;
                    } else {
                        x = self.f.value(s, x);
                    }
                    if let Some(scale) = scale {
                        x = s.mul(x, s.load_up_to(scale.as_ptr().add(column), n));
                    }
                    if let Some((factor, ld)) = factor {
                        x = s.mul(x, s.load_up_to(factor.as_ptr().add(row * ld + column), n));
                    }
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
