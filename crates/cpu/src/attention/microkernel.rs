//! The products of attention on one thread: scores of a few queries, weighted sums of values, and those of the gradient.
//! Keys and values are packed in panels of whole vectors, all about equally wide, so that no tile is too narrow to keep
//! the processor busy. The terms of an element are added in one fixed order, whichever tile it falls into.

use super::View;
use super::exponentials::Exponentials;
use crate::gemm::{Groups, Operands};
use crate::simd::{Kernel, MAX_TILE_ROWS, Simd, TRANSPOSE};

/// Rows to ask for ahead of time: short rows far apart, such as those of a head, are not a stream to the processor.
pub(super) const AHEAD: usize = 16;
/// Numbers in a cache line.
pub(super) const LINE: usize = 16;

/// The panels of `vectors` vectors: where each starts and how wide it is, in vectors.
struct Panels {
    next: usize,
    vectors: usize,
    widest: usize,
}

impl Panels {
    #[inline(always)]
    fn of<S: Simd>(columns: usize) -> Panels {
        Panels { next: 0, vectors: columns.div_ceil(S::LANES), widest: S::HEAD_TILE_VECTORS }
    }
}

impl Iterator for Panels {
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        let left = self.vectors - self.next;
        if left == 0 {
            return None;
        }
        let width = left.div_ceil(left.div_ceil(self.widest));
        let start = self.next;
        self.next += width;
        Some((start, width))
    }
}

/// Packs the keys of a head as `[panel][head_dim][column of the panel]`. The padding repeats the last key, so that it
/// changes no maximum.
///
/// Making one is a promise: the rows of the view have been checked, and `dst` has room for them in whole vectors.
pub(super) struct PackKeys<'a> {
    pub view: View<'a>,
    pub b: usize,
    pub h: usize,
    pub keys: usize,
    pub head_dim: usize,
    pub dst: *mut f32,
}

impl Kernel for PackKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (keys, k, ld) = (self.keys, self.head_dim, self.view.row_stride);
        let src = self.view.at(self.b, 0, self.h);
        for (start, vectors) in Panels::of::<S>(keys) {
            let width = vectors * S::LANES;
            let first = start * S::LANES;
            let panel = self.dst.wrapping_add(first * k);
            let mut column = 0;
            while column < width {
                let key = first + column;
                let columns = TRANSPOSE.min(width - column);
                for row in key + AHEAD..key + AHEAD + columns {
                    let mut i = 0;
                    while i < k {
                        s.prefetch(src.wrapping_add(row * ld + i));
                        i += LINE;
                    }
                }
                let mut i = 0;
                while i < k {
                    let terms = TRANSPOSE.min(k - i);
                    // SAFETY: reads are of rows below `keys` and terms below k, writes inside the panel.
                    unsafe {
                        let to = panel.add(i * width + column);
                        if columns == TRANSPOSE && terms == TRANSPOSE && key + TRANSPOSE <= keys {
                            s.transpose(src.add(key * ld + i), ld, to, width);
                        } else if columns == TRANSPOSE && terms == TRANSPOSE {
                            let mut square = [0.0f32; TRANSPOSE * TRANSPOSE];
                            for (c, row) in square.chunks_exact_mut(TRANSPOSE).enumerate() {
                                let from = src.add((key + c).min(keys - 1) * ld + i);
                                std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), TRANSPOSE);
                            }
                            s.transpose(square.as_ptr(), TRANSPOSE, to, width);
                        } else {
                            for c in 0..columns {
                                let from = src.add((key + c).min(keys - 1) * ld + i);
                                for t in 0..terms {
                                    *to.add(t * width + c) = *from.add(t);
                                }
                            }
                        }
                    }
                    i += TRANSPOSE;
                }
                column += columns;
            }
        }
    }
}

/// Packs the values of a head, or other rows, as `[panel][key][column of the panel]`, padded with zeros.
///
/// Making one is a promise as for [`PackKeys`].
pub(super) struct PackValues<'a> {
    pub view: View<'a>,
    pub b: usize,
    pub h: usize,
    /// The first of the rows.
    pub first: usize,
    pub keys: usize,
    pub head_dim: usize,
    pub dst: *mut f32,
}

impl Kernel for PackValues<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ld = self.view.row_stride;
        let src = self.view.at(self.b, self.first, self.h);
        for (start, vectors) in Panels::of::<S>(self.head_dim) {
            let left = start * S::LANES;
            let panel = self.dst.wrapping_add(left * self.keys);
            for key in 0..self.keys {
                for j in 0..vectors {
                    let column = left + j * S::LANES;
                    s.prefetch(src.wrapping_add((key + AHEAD) * ld + column));
                    // SAFETY: reads are of rows below `keys` and columns below `head_dim`, writes inside the panel.
                    unsafe {
                        let v = s.load_up_to(src.add(key * ld + column), self.head_dim - column);
                        s.store(panel.add((key * vectors + j) * S::LANES), v);
                    }
                }
            }
        }
    }
}

/// Some rows of a product `A B` with `B` packed as above.
///
/// Making one is a promise: `rows` x `k` of A, the panels of B and the rows of `out` are valid, and nobody else uses
/// that output.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub rows: usize,
    pub columns: usize,
    pub k: usize,
    pub a: *const f32,
    pub lda: usize,
    /// Whether A lies as `[k, rows]`.
    pub transposed: bool,
    pub b: *const f32,
    /// Distance of the rows of B if it is read where it lies, which takes rows of whole vectors; 0 if it is packed.
    pub ldb: usize,
    pub out: *mut f32,
    pub ldo: usize,
    /// What becomes of the sums.
    pub finish: Finish,
    /// What is computed between the terms, as much of it as fits; null if nothing.
    pub meanwhile: *mut Exponentials,
}

#[derive(Clone, Copy)]
pub(super) enum Finish {
    /// They are written in whole vectors, and raise the largest so far of each lane of each row, `[rows][LANES]`.
    Largest(*mut f32),
    /// Each row is multiplied by a factor.
    Scale(*const f32),
    /// They are written in whole vectors.
    Plain,
    /// They are multiplied by a factor, and added to what is there.
    Times { factor: f32, add: bool },
}

impl Kernel for Product {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut later = Later { distances: [0; LATER], last: 0 };
        for (start, vectors) in Panels::of::<S>(self.columns) {
            if let Finish::Scale(_) | Finish::Times { .. } = self.finish {
                later.set(S::HEAD_TILE_ROWS, vectors, [self.ldo, S::LANES]);
            }
            let mut row = 0;
            while row < self.rows {
                let rows = S::HEAD_TILE_ROWS.min(self.rows - row);
                let place = Place { row, column: start * S::LANES, later: &later };
                // SAFETY: whoever made the product vouches for the exponentials.
                let more = unsafe { self.meanwhile.as_ref() }.is_some_and(|e| e.rows > 0);
                if S::OVERLAP && more && rows == S::HEAD_TILE_ROWS && !self.transposed {
                    overlapped(s, vectors, &self, place);
                    row += rows;
                    continue;
                }
                macro_rules! shapes {
                    ($($rows:literal),*) => {
                        match (rows, vectors, self.transposed) {
                            $(
                                ($rows, 1, false) => s.vectorize(Tile::<$rows, 1, false>(&self, place)),
                                ($rows, 2, false) => s.vectorize(Tile::<$rows, 2, false>(&self, place)),
                                ($rows, 3, false) => s.vectorize(Tile::<$rows, 3, false>(&self, place)),
                                ($rows, 4, false) => s.vectorize(Tile::<$rows, 4, false>(&self, place)),
                                ($rows, 1, true) => s.vectorize(Tile::<$rows, 1, true>(&self, place)),
                                ($rows, 2, true) => s.vectorize(Tile::<$rows, 2, true>(&self, place)),
                                ($rows, 3, true) => s.vectorize(Tile::<$rows, 3, true>(&self, place)),
                                ($rows, 4, true) => s.vectorize(Tile::<$rows, 4, true>(&self, place)),
                            )*
                            _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
                        }
                    };
                }
                shapes!(1, 2, 3, 4, 5, 6, 7, 8);
                row += rows;
            }
        }
    }
}

/// The most vectors of a tile.
const LATER: usize = MAX_TILE_ROWS * 4;

/// Distances in a tile of the result, which may be far away: asked for one by one, it has the time of the tile to arrive.
struct Later {
    distances: [usize; LATER],
    last: usize,
}

impl Later {
    #[inline(always)]
    fn set(&mut self, rows: usize, vectors: usize, [row_step, vector_step]: [usize; 2]) {
        let mut places = self.distances.iter_mut();
        for row in 0..rows {
            for (vector, place) in places.by_ref().take(vectors).enumerate() {
                *place = row * row_step + vector * vector_step;
            }
        }
        self.last = (rows * vectors).min(LATER) - 1;
    }
}

/// Where a tile is in its product.
#[derive(Clone, Copy)]
struct Place<'a> {
    row: usize,
    column: usize,
    later: &'a Later,
}

/// One register tile. The product is lent: a copy would wait for what has just been written.
struct Tile<'a, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(&'a Product, Place<'a>);

impl<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool> Kernel for Tile<'_, ROWS, VECTORS, TRANSPOSED> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Known at compile time: the shapes that do not exist for this instruction set cost no code.
        if ROWS > S::HEAD_TILE_ROWS || VECTORS > S::HEAD_TILE_VECTORS {
            unreachable!("tile larger than the registers");
        }
        let Tile(product, place) = self;
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: the promise of whoever made the product.
        unsafe {
            let mut walk = Walk::new::<S>(product, place, VECTORS);
            walk.add::<S, ROWS, VECTORS, TRANSPOSED, GROUP>(s, product.k, &mut sums);
            finish(s, product, place, sums);
        }
    }
}

/// The same with exponentials between the terms.
#[inline(always)]
fn overlapped<S: Simd>(s: S, vectors: usize, product: &Product, place: Place<'_>) {
    macro_rules! shapes {
        ($($rows:literal x $vectors:literal),*) => {
            match (S::HEAD_TILE_ROWS, vectors) {
                $(($rows, $vectors) => s.vectorize(Overlapped::<$rows, $vectors>(product, place)),)*
                _ => unreachable!("no tile of {vectors} vectors"),
            }
        };
    }
    shapes!(6 x 1, 6 x 2, 6 x 3, 6 x 4);
}

/// Terms for each vector of exponentials, at least: as long as these take, the processor has the units to spare.
const TERMS_EACH: usize = 2;

struct Overlapped<'a, const ROWS: usize, const VECTORS: usize>(&'a Product, Place<'a>);

impl<const ROWS: usize, const VECTORS: usize> Kernel for Overlapped<'_, ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Known at compile time, as above.
        if !S::OVERLAP || ROWS != S::HEAD_TILE_ROWS || VECTORS > S::HEAD_TILE_VECTORS {
            unreachable!("not the tile of this instruction set");
        }
        let Overlapped(product, place) = self;
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: the promise of whoever made the product, which is also for the exponentials.
        unsafe {
            let mut walk = Walk::new::<S>(product, place, VECTORS);
            let exponentials = &mut *product.meanwhile;
            let vectors = exponentials.vectors::<S>();
            let count = exponentials.rows.min(product.k / (vectors * TERMS_EACH));
            let each = product.k / (vectors * count.max(1));
            for _ in 0..count {
                let mut row = exponentials.begin(s);
                for _ in 0..vectors {
                    walk.add::<S, ROWS, VECTORS, false, GROUP>(s, each, &mut sums);
                    row.advance(s);
                }
                exponentials.end(s, row);
            }
            walk.add::<S, ROWS, VECTORS, false, GROUP>(s, product.k - count * vectors * each, &mut sums);
            finish(s, product, place, sums);
        }
    }
}

/// Terms of a group.
const GROUP: usize = 2;

/// Where a tile is in its operands and in what it asks for.
struct Walk<'a> {
    operands: Operands,
    out: *const f32,
    later: &'a Later,
    /// Groups of terms so far.
    groups: usize,
}

impl<'a> Walk<'a> {
    #[inline(always)]
    fn new<S: Simd>(product: &Product, Place { row, column, later }: Place<'a>, vectors: usize) -> Walk<'a> {
        let Product { k, a, lda, transposed, b, ldb, out, ldo, .. } = *product;
        let a = a.wrapping_add(if transposed { row } else { row * lda });
        let (b, ldb) = match ldb {
            0 => (b.wrapping_add(column * k), vectors * S::LANES),
            _ => (b.wrapping_add(column), ldb),
        };
        Walk { operands: Operands::new(a, lda, b, ldb), out: out.wrapping_add(row * ldo + column), later, groups: 0 }
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
            let distance = *self.later.distances.as_ptr().add(self.groups.min(self.later.last));
            s.prefetch(self.out.wrapping_add(distance));
            self.groups += 1;
            for term in 0..TERMS {
                self.operands.add::<S, ROWS, VECTORS, TRANSPOSED>(s, term, sums);
            }
        }
        if !TRANSPOSED {
            self.operands.skip(TERMS);
        }
    }
}

/// Takes the sums of a tile to the output.
///
/// # Safety
/// The promise of whoever made the product must hold for the tile.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
unsafe fn finish<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    product: &Product,
    Place { row, column, .. }: Place<'_>,
    sums: [[S::V; VECTORS]; ROWS],
) {
    let ldo = product.ldo;
    let columns = product.columns - column;
    // SAFETY: the caller vouches for the output and what goes into it.
    unsafe {
        let out = product.out.add(row * ldo + column);
        match product.finish {
            Finish::Largest(largest) => {
                for r in 0..ROWS {
                    let kept = largest.add((row + r) * S::LANES);
                    let mut most = s.load(kept);
                    for j in 0..VECTORS {
                        most = s.max(most, sums[r][j]);
                        s.store(out.add(r * ldo + j * S::LANES), sums[r][j]);
                    }
                    s.store(kept, most);
                }
            }
            Finish::Plain => {
                for r in 0..ROWS {
                    for j in 0..VECTORS {
                        s.store(out.add(r * ldo + j * S::LANES), sums[r][j]);
                    }
                }
            }
            Finish::Times { factor, add } => {
                let factor = s.splat(factor);
                for r in 0..ROWS {
                    for j in 0..VECTORS {
                        let n = columns - j * S::LANES;
                        let out = out.add(r * ldo + j * S::LANES);
                        let mut v = s.mul(sums[r][j], factor);
                        if add {
                            v = s.add(v, s.load_up_to(out, n));
                        }
                        s.store_up_to(out, v, n);
                    }
                }
            }
            Finish::Scale(factors) => {
                for r in 0..ROWS {
                    let factor = s.splat(*factors.add(row + r));
                    for j in 0..VECTORS {
                        let n = columns - j * S::LANES;
                        s.store_up_to(out.add(r * ldo + j * S::LANES), s.mul(sums[r][j], factor), n);
                    }
                }
            }
        }
    }
}
