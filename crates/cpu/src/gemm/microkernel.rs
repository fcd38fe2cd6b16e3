//! The microkernel: MR rows of A times one packed panel of B, summed over a kc block in registers.
//! All tile shapes perform the same operations for an element, so results do not depend on where tiles end.

use super::ALayout;
use super::rank1::{KLoop, MicroPanels};
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, MAX_TILE_VECTORS, Simd};

/// How many rows ahead a transposed A is prefetched: its rows are too far apart for the hardware prefetcher.
const ROWS_AHEAD: usize = 12;
/// Elements of a cache line.
pub(super) const LINE: usize = 16;
/// Lines of each row of A to prefetch; the hardware prefetcher follows the stream from there.
const FIRST_LINES: usize = 4;
/// Terms of an unrolled iteration of the loop over k.
pub(super) const UNROLL: usize = 4;

/// A register tile in memory, rows NR apart.
#[repr(C, align(64))]
pub(crate) struct TileBuffer(pub [f32; MAX_TILE_ROWS * MAX_TILE_VECTORS * MAX_LANES]);

impl TileBuffer {
    #[inline(always)]
    pub fn zeros() -> TileBuffer {
        TileBuffer([0.0; MAX_TILE_ROWS * MAX_TILE_VECTORS * MAX_LANES])
    }
}

/// Initial sums of a tile, the same in each of its rows.
#[repr(C, align(64))]
pub(super) struct InitialRow(pub [f32; MAX_TILE_VECTORS * MAX_LANES]);

/// Offsets of the cache lines of a tile of C. They are prefetched one by one during the loop over k: all at once they
/// would delay the loads of the operands.
pub(super) struct TileLines {
    offsets: [usize; MAX_TILE_ROWS * MAX_TILE_VECTORS],
    last: usize,
}

impl TileLines {
    #[inline(always)]
    pub fn new() -> TileLines {
        TileLines { offsets: [0; MAX_TILE_ROWS * MAX_TILE_VECTORS], last: 0 }
    }

    /// Sets the shape of the tile and the row stride.
    #[inline(always)]
    pub fn set(&mut self, rows: usize, columns: usize, ld: usize) {
        let per_row = columns.div_ceil(LINE).min(MAX_TILE_VECTORS);
        let count = rows.min(MAX_TILE_ROWS) * per_row;
        let mut offsets = self.offsets[..count].iter_mut();
        for row in 0..rows {
            for (line, offset) in offsets.by_ref().take(per_row).enumerate() {
                *offset = row * ld + line * LINE;
            }
        }
        self.last = count.saturating_sub(1);
    }

    /// The line to prefetch in an iteration of the loop over k; the last one again when there are no more.
    #[inline(always)]
    fn offset(&self, iteration: usize) -> usize {
        // SAFETY: `last` is an index of `offsets`.
        unsafe { *self.offsets.get_unchecked(iteration.min(self.last)) }
    }
}

/// One register tile or several, one below the other. Pointers are those of the first tile.
#[derive(Clone, Copy)]
pub(super) struct MicroTiles<'a> {
    pub tiles: usize,
    pub k: usize,
    pub a: *const f32,
    pub lda: usize,
    /// Distance from the micro-panel of A of a tile to that of the next.
    pub a_stride: usize,
    /// Whether to prefetch the micro-panel of A of the next tile.
    pub prefetch_a: bool,
    /// One packed panel, `[k][NR]`.
    pub b: *const f32,
    /// Initial sums: as many vectors as a row of the tile has.
    pub initial: *const f32,
    pub out: *mut f32,
    pub out_stride: usize,
    /// Multiplies the sums before the store: pointer (null if unused) and row stride.
    pub factor: (*const f32, usize),
    /// Added after the factor, likewise.
    pub addend: (*const f32, usize),
    pub prefetch_b: PanelPrefetch,
    /// Tiles to prefetch that the epilogue reads or writes, laid out as C: that of C, and another or the same again.
    pub prefetch_c: [*const f32; 2],
    pub ldc: usize,
    pub lines: &'a TileLines,
}

/// Prefetch of the next panel of B during the first tiles of this one, a cache line for each term. Addresses need not
/// be valid.
#[derive(Clone, Copy)]
pub(super) struct PanelPrefetch {
    pub start: *const f32,
    /// Distance from line to line.
    pub line_stride: usize,
    /// Distance from the first line of a tile to that of the next.
    pub tile_stride: usize,
    /// Tiles during which to prefetch.
    pub tiles: usize,
}

/// The loop over k of one tile with its prefetches.
pub(super) struct PrefetchingLoop<'a> {
    panels: MicroPanels,
    next_b: *const f32,
    next_b_stride: usize,
    c: [*const f32; 2],
    lines: &'a TileLines,
    iterations: usize,
}

impl<'a> PrefetchingLoop<'a> {
    /// Starts a tile, and prefetches the micro-panel of A of the next.
    #[inline(always)]
    pub fn new<S: Simd>(s: S, args: &MicroTiles<'a>, tile: usize, rows: usize) -> PrefetchingLoop<'a> {
        let a = args.a.wrapping_add(tile * args.a_stride);
        if args.prefetch_a {
            for row in 0..rows {
                for line in 0..FIRST_LINES {
                    s.prefetch(a.wrapping_add(args.a_stride + row * args.lda + line * LINE));
                }
            }
        }
        let next_b = args.prefetch_b;
        // When the next panel is prefetched, the first line of this one again and again.
        let more = tile < next_b.tiles;
        PrefetchingLoop {
            panels: MicroPanels::new(a, args.lda, args.b, S::TILE_VECTORS * S::LANES),
            next_b: if more { next_b.start.wrapping_add(tile * next_b.tile_stride) } else { args.b },
            next_b_stride: if more { next_b.line_stride } else { 0 },
            c: args.prefetch_c.map(|p| p.wrapping_add(tile * rows * args.ldc)),
            lines: args.lines,
            iterations: 0,
        }
    }
}

impl KLoop for PrefetchingLoop<'_> {
    #[inline(always)]
    fn panels(&mut self) -> &mut MicroPanels {
        &mut self.panels
    }

    #[inline(always)]
    fn prefetch_in_iteration<S: Simd>(&mut self, s: S) {
        let offset = self.lines.offset(self.iterations);
        s.prefetch(self.c[0].wrapping_add(offset));
        s.prefetch(self.c[1].wrapping_add(offset));
        self.iterations += 1;
    }

    #[inline(always)]
    fn prefetch_in_term<S: Simd, const TRANSPOSED: bool>(&mut self, s: S) {
        s.prefetch(self.next_b);
        self.next_b = self.next_b.wrapping_add(self.next_b_stride);
        if TRANSPOSED {
            s.prefetch(self.panels.row_ahead(ROWS_AHEAD));
        }
    }
}

/// The microkernel of one tile shape. Its arguments are borrowed: copying a struct whose fields have just been written
/// would stall on store forwarding.
struct Microkernel<'a, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(&'a MicroTiles<'a>);

impl<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool> Kernel
    for Microkernel<'_, ROWS, VECTORS, TRANSPOSED>
{
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // A compile-time condition: no code is generated for shapes that the instruction set does not have.
        if ROWS > S::TILE_ROWS || VECTORS > S::TILE_VECTORS {
            unreachable!("tile larger than the registers");
        }
        let args = self.0;
        let MicroTiles { k, initial, mut out, out_stride, mut factor, mut addend, .. } = *args;
        for tile in 0..args.tiles {
            // SAFETY: guaranteed by the caller of `microkernel`.
            unsafe {
                let mut sums = initial_sums::<S, ROWS, VECTORS>(s, initial);
                PrefetchingLoop::new(s, args, tile, ROWS).run::<S, ROWS, VECTORS, TRANSPOSED, UNROLL>(s, k, &mut sums);
                if !factor.0.is_null() {
                    for r in 0..ROWS {
                        for j in 0..VECTORS {
                            sums[r][j] = s.mul(sums[r][j], s.load(factor.0.add(r * factor.1 + j * S::LANES)));
                        }
                    }
                }
                if !addend.0.is_null() {
                    for r in 0..ROWS {
                        for j in 0..VECTORS {
                            sums[r][j] = s.add(sums[r][j], s.load(addend.0.add(r * addend.1 + j * S::LANES)));
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
            factor.0 = if factor.0.is_null() { factor.0 } else { factor.0.wrapping_add(ROWS * factor.1) };
            addend.0 = if addend.0.is_null() { addend.0 } else { addend.0.wrapping_add(ROWS * addend.1) };
        }
    }
}

/// The initial sums of a tile.
///
/// # Safety
/// `VECTORS` vectors must be readable.
#[inline(always)]
pub(super) unsafe fn initial_sums<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    initial: *const f32,
) -> [[S::V; VECTORS]; ROWS] {
    let mut row = [s.splat(0.0); VECTORS];
    for (j, v) in row.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *v = unsafe { s.load(initial.add(j * S::LANES)) };
    }
    [row; ROWS]
}

/// Computes tiles of `rows` x `vectors` vectors of `factor * (initial + A B) + addend` into `args.out`.
///
/// # Safety
/// For every tile, `rows` x `k` of A, `k` rows of the panel, the initial sums, factors and addends must be readable,
/// and the output writable, in whole vectors.
#[inline(always)]
pub(super) unsafe fn microkernel<S: Simd>(s: S, rows: usize, vectors: usize, layout: ALayout, args: &MicroTiles<'_>) {
    macro_rules! shapes {
        ($($rows:literal),*) => {
            match (rows, vectors, layout) {
                $(
                    ($rows, 1, ALayout::RowMajor) => s.vectorize(Microkernel::<$rows, 1, false>(args)),
                    ($rows, 2, ALayout::RowMajor) => s.vectorize(Microkernel::<$rows, 2, false>(args)),
                    ($rows, 3, ALayout::RowMajor) => s.vectorize(Microkernel::<$rows, 3, false>(args)),
                    ($rows, 1, ALayout::Transposed) => s.vectorize(Microkernel::<$rows, 1, true>(args)),
                    ($rows, 2, ALayout::Transposed) => s.vectorize(Microkernel::<$rows, 2, true>(args)),
                    ($rows, 3, ALayout::Transposed) => s.vectorize(Microkernel::<$rows, 3, true>(args)),
                )*
                _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
            }
        };
    }
    shapes!(1, 2, 3, 4, 5, 6, 7, 8)
}
