//! The matrix products of one head on one thread: scores, weighted sums of values, and those of the gradient. A
//! register tile of up to `HEAD_TILE_ROWS` rows by up to `HEAD_TILE_VECTORS` vectors is summed over k in registers; the
//! order of the sum is the same in every tile shape.

use super::exponentials::Exponentials;
use super::packing::Panels;
use crate::gemm::{KLoop, MicroPanels};
use crate::simd::{Kernel, MAX_TILE_ROWS, Simd};

/// A product `A B` of `rows` rows, `columns` columns and `k` terms.
#[derive(Clone, Copy)]
pub(super) struct HeadProduct {
    pub rows: usize,
    pub columns: usize,
    pub k: usize,
    pub a: *const f32,
    /// Row stride of A, in elements.
    pub lda: usize,
    /// Whether A is stored as `[k, rows]`.
    pub transposed: bool,
    pub b: PanelSource,
    pub out: *mut f32,
    /// Row stride of `out`, in elements.
    pub ldo: usize,
    pub epilogue: HeadEpilogue,
}

/// Where the panels of B are.
#[derive(Clone, Copy)]
pub(super) enum PanelSource {
    /// As [`super::packing`] writes them.
    Packed(*const f32),
    /// Rows of whole vectors, this many elements apart.
    Rows(*const f32, usize),
}

/// How the sums of a register tile are stored.
#[derive(Clone, Copy)]
pub(super) enum HeadEpilogue {
    /// Whole vectors are stored.
    Store,
    /// Whole vectors are stored, and the running maximum of each lane of each row, `[rows][LANES]`, is updated.
    StoreAndMax(*mut f32),
    /// Each row is multiplied by its factor and stored.
    ScaleRows(*const f32),
    /// Sums are multiplied by a factor, then stored or added to the output.
    Scale { factor: f32, accumulate: bool },
}

/// Computes a product; where the instruction set has registers to spare, rows of exponentials are interleaved with it,
/// as many as fit.
///
/// # Safety
/// `rows` by `k` elements of A and the panels of B must be readable, and `rows` rows of `columns` elements at `out`
/// writable (of whole vectors, where the epilogue stores these) and used by no other thread. The pointer of the
/// epilogue must be valid for `rows` rows.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd>(s: S, product: HeadProduct, exponentials: Option<&mut Exponentials<'_>>) {
    s.vectorize(ProductLoops { product, exponentials });
}

/// The loops over panels and rows; made by [`multiply`] alone, whose caller has checked the pointers.
struct ProductLoops<'a, 'b> {
    product: HeadProduct,
    exponentials: Option<&'a mut Exponentials<'b>>,
}

impl Kernel for ProductLoops<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Not moved out of `self`: a copy would stall on store forwarding.
        let ProductLoops { ref product, mut exponentials } = self;
        let mut prefetch = OutputPrefetch { offsets: [0; MAX_TILE_LINES], last: 0 };
        for (start, vectors) in Panels::of::<S>(product.columns) {
            // The other epilogues store scores, which are in the cache.
            if let HeadEpilogue::ScaleRows(_) | HeadEpilogue::Scale { .. } = product.epilogue {
                prefetch.set(S::HEAD_TILE_ROWS, vectors, [product.ldo, S::LANES]);
            }
            let mut row = 0;
            while row < product.rows {
                let rows = S::HEAD_TILE_ROWS.min(product.rows - row);
                let position = TilePosition { row, column: start * S::LANES, prefetch: &prefetch };
                match exponentials.as_deref_mut() {
                    Some(exponentials)
                        if S::OVERLAP
                            && exponentials.rows_left() > 0
                            && rows == S::HEAD_TILE_ROWS
                            && !product.transposed =>
                    {
                        pipelined_tile(s, vectors, product, position, exponentials);
                    }
                    _ => register_tile(s, rows, vectors, product, position),
                }
                row += rows;
            }
        }
    }
}

/// The most vectors of a register tile, each of which is at most a cache line.
const MAX_TILE_LINES: usize = MAX_TILE_ROWS * 4;

/// Offsets of the cache lines of an output tile. Prefetched one by one between the terms, they arrive by the time the
/// tile is stored, without delaying the operands.
struct OutputPrefetch {
    offsets: [usize; MAX_TILE_LINES],
    last: usize,
}

impl OutputPrefetch {
    #[inline(always)]
    fn set(&mut self, rows: usize, vectors: usize, [row_step, vector_step]: [usize; 2]) {
        let mut offsets = self.offsets.iter_mut();
        for row in 0..rows {
            for (vector, offset) in offsets.by_ref().take(vectors).enumerate() {
                *offset = row * row_step + vector * vector_step;
            }
        }
        self.last = (rows * vectors).min(MAX_TILE_LINES) - 1;
    }
}

/// The position of a register tile in its product.
#[derive(Clone, Copy)]
struct TilePosition<'a> {
    row: usize,
    column: usize,
    prefetch: &'a OutputPrefetch,
}

#[inline(always)]
fn register_tile<S: Simd>(s: S, rows: usize, vectors: usize, product: &HeadProduct, position: TilePosition<'_>) {
    macro_rules! shapes {
        ($($rows:literal),*) => {
            match (rows, vectors, product.transposed) {
                $(
                    ($rows, 1, false) => s.vectorize(RegisterTile::<$rows, 1, false>(product, position)),
                    ($rows, 2, false) => s.vectorize(RegisterTile::<$rows, 2, false>(product, position)),
                    ($rows, 3, false) => s.vectorize(RegisterTile::<$rows, 3, false>(product, position)),
                    ($rows, 4, false) => s.vectorize(RegisterTile::<$rows, 4, false>(product, position)),
                    ($rows, 1, true) => s.vectorize(RegisterTile::<$rows, 1, true>(product, position)),
                    ($rows, 2, true) => s.vectorize(RegisterTile::<$rows, 2, true>(product, position)),
                    ($rows, 3, true) => s.vectorize(RegisterTile::<$rows, 3, true>(product, position)),
                    ($rows, 4, true) => s.vectorize(RegisterTile::<$rows, 4, true>(product, position)),
                )*
                _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
            }
        };
    }
    shapes!(1, 2, 3, 4, 5, 6, 7, 8);
}

/// One register tile. The product is passed by reference: a copy would stall on store forwarding.
struct RegisterTile<'a, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(
    &'a HeadProduct,
    TilePosition<'a>,
);

impl<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool> Kernel
    for RegisterTile<'_, ROWS, VECTORS, TRANSPOSED>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // A compile-time condition: shapes that this instruction set does not use generate no code.
        if ROWS > S::HEAD_TILE_ROWS || VECTORS > S::HEAD_TILE_VECTORS {
            unreachable!("tile larger than the registers");
        }
        let RegisterTile(product, position) = self;
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: the tile is inside the product, whose pointers the caller of `multiply` guarantees.
        unsafe {
            let mut terms = TileTerms::new::<S>(product, position, VECTORS);
            terms.run::<S, ROWS, VECTORS, TRANSPOSED, UNROLL>(s, product.k, &mut sums);
            store_tile(s, product, position, sums);
        }
    }
}

#[inline(always)]
fn pipelined_tile<S: Simd>(
    s: S,
    vectors: usize,
    product: &HeadProduct,
    position: TilePosition<'_>,
    exponentials: &mut Exponentials<'_>,
) {
    macro_rules! shapes {
        ($($rows:literal x $vectors:literal),*) => {
            match (S::HEAD_TILE_ROWS, vectors) {
                $(($rows, $vectors) => {
                    s.vectorize(PipelinedTile::<$rows, $vectors> { product, position, exponentials })
                })*
                _ => unreachable!("no tile of {vectors} vectors"),
            }
        };
    }
    shapes!(6 x 1, 6 x 2, 6 x 3, 6 x 4);
}

/// The fewest terms of the product for each vector of exponentials: with fewer, the exponentials take longer than the
/// product hides.
const TERMS_PER_VECTOR: usize = 2;

/// A full register tile with rows of exponentials between its terms.
struct PipelinedTile<'a, 'b, const ROWS: usize, const VECTORS: usize> {
    product: &'a HeadProduct,
    position: TilePosition<'a>,
    exponentials: &'a mut Exponentials<'b>,
}

impl<const ROWS: usize, const VECTORS: usize> Kernel for PipelinedTile<'_, '_, ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // A compile-time condition, as in `RegisterTile`.
        if !S::OVERLAP || ROWS != S::HEAD_TILE_ROWS || VECTORS > S::HEAD_TILE_VECTORS {
            unreachable!("not the tile of this instruction set");
        }
        let PipelinedTile { product, position, exponentials } = self;
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: the tile is inside the product, whose pointers the caller of `multiply` guarantees; only rows that
        // are left are begun, and all their vectors computed.
        unsafe {
            let mut terms = TileTerms::new::<S>(product, position, VECTORS);
            let row_vectors = exponentials.vectors_per_row::<S>();
            let row_count = exponentials.rows_left().min(product.k / (row_vectors * TERMS_PER_VECTOR));
            let terms_per_vector = product.k / (row_vectors * row_count.max(1));
            for _ in 0..row_count {
                let mut row = exponentials.begin_row(s);
                for _ in 0..row_vectors {
                    terms.run::<S, ROWS, VECTORS, false, UNROLL>(s, terms_per_vector, &mut sums);
                    row.advance(s);
                }
                exponentials.end_row(s, row);
            }
            let rest = product.k - row_count * row_vectors * terms_per_vector;
            terms.run::<S, ROWS, VECTORS, false, UNROLL>(s, rest, &mut sums);
            store_tile(s, product, position, sums);
        }
    }
}

/// Terms of an unrolled iteration of the loop over k; each iteration has one prefetch.
const UNROLL: usize = 2;

/// The terms of a tile that are still to be added, and the prefetches between them.
struct TileTerms<'a> {
    panels: MicroPanels,
    out: *const f32,
    prefetch: &'a OutputPrefetch,
    /// Iterations of the loop over k so far.
    iterations: usize,
}

impl<'a> TileTerms<'a> {
    #[inline(always)]
    fn new<S: Simd>(
        product: &HeadProduct,
        TilePosition { row, column, prefetch }: TilePosition<'a>,
        vectors: usize,
    ) -> TileTerms<'a> {
        let HeadProduct { k, a, lda, transposed, b, out, ldo, .. } = *product;
        let a = a.wrapping_add(if transposed { row } else { row * lda });
        let (b, ldb) = match b {
            PanelSource::Packed(b) => (b.wrapping_add(column * k), vectors * S::LANES),
            PanelSource::Rows(b, ldb) => (b.wrapping_add(column), ldb),
        };
        let out = out.wrapping_add(row * ldo + column);
        TileTerms { panels: MicroPanels::new(a, lda, b, ldb), out, prefetch, iterations: 0 }
    }
}

impl KLoop for TileTerms<'_> {
    #[inline(always)]
    fn panels(&mut self) -> &mut MicroPanels {
        &mut self.panels
    }

    #[inline(always)]
    fn prefetch_in_iteration<S: Simd>(&mut self, s: S) {
        // SAFETY: `last` is an index of `offsets`.
        let offset = unsafe { *self.prefetch.offsets.get_unchecked(self.iterations.min(self.prefetch.last)) };
        s.prefetch(self.out.wrapping_add(offset));
        self.iterations += 1;
    }
}

/// Applies the epilogue to the sums of a tile and writes the output.
///
/// # Safety
/// The pointers of output and epilogue must be valid for the tile, as [`multiply`] says.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
unsafe fn store_tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    product: &HeadProduct,
    TilePosition { row, column, .. }: TilePosition<'_>,
    sums: [[S::V; VECTORS]; ROWS],
) {
    let ldo = product.ldo;
    let columns = product.columns - column;
    // SAFETY: the caller guarantees output and epilogue.
    unsafe {
        let out = product.out.add(row * ldo + column);
        match product.epilogue {
            HeadEpilogue::Store => {
                for r in 0..ROWS {
                    for j in 0..VECTORS {
                        s.store(out.add(r * ldo + j * S::LANES), sums[r][j]);
                    }
                }
            }
            HeadEpilogue::StoreAndMax(maxima) => {
                for r in 0..ROWS {
                    let maxima = maxima.add((row + r) * S::LANES);
                    let mut largest = s.load(maxima);
                    for j in 0..VECTORS {
                        largest = s.max(largest, sums[r][j]);
                        s.store(out.add(r * ldo + j * S::LANES), sums[r][j]);
                    }
                    s.store(maxima, largest);
                }
            }
            HeadEpilogue::ScaleRows(factors) => {
                for r in 0..ROWS {
                    let factor = s.splat(*factors.add(row + r));
                    for j in 0..VECTORS {
                        let n = columns - j * S::LANES;
                        s.store_up_to(out.add(r * ldo + j * S::LANES), s.mul(sums[r][j], factor), n);
                    }
                }
            }
            HeadEpilogue::Scale { factor, accumulate } => {
                let factor = s.splat(factor);
                for r in 0..ROWS {
                    for j in 0..VECTORS {
                        let n = columns - j * S::LANES;
                        let out = out.add(r * ldo + j * S::LANES);
                        let mut v = s.mul(sums[r][j], factor);
                        if accumulate {
                            v = s.add(v, s.load_up_to(out, n));
                        }
                        s.store_up_to(out, v, n);
                    }
                }
            }
        }
    }
}
