//! The products of attention on one thread: scores of a few queries, weighted sums of values, and those of the gradient.
//! Keys and values are packed in panels of whole vectors, all about equally wide, so that no tile is too narrow to keep
//! the processor busy. The terms of an element are added in one fixed order, whichever tile it falls into.

use super::View;
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
                        } else {
                            let mut square = [0.0f32; TRANSPOSE * TRANSPOSE];
                            for c in 0..columns {
                                let from = src.add((key + c).min(keys - 1) * ld + i);
                                for t in 0..terms {
                                    square[t * TRANSPOSE + c] = *from.add(t);
                                }
                            }
                            for (t, row) in square.chunks_exact(TRANSPOSE).take(terms).enumerate() {
                                std::ptr::copy_nonoverlapping(row.as_ptr(), to.add(t * width), columns);
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
}

#[derive(Clone, Copy)]
pub(super) enum Finish {
    /// They are written in whole vectors, and the largest so far of each lane of each row, `[rows][LANES]`, is kept.
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
            let column = start * S::LANES;
            if let Finish::Scale(_) | Finish::Times { .. } = self.finish {
                later.last = S::HEAD_TILE_ROWS * vectors - 1;
                for (i, distance) in later.distances[..=later.last].iter_mut().enumerate() {
                    *distance = i / vectors * self.ldo + i % vectors * S::LANES;
                }
            }
            let mut row = 0;
            while row < self.rows {
                let rows = S::HEAD_TILE_ROWS.min(self.rows - row);
                // SAFETY: the promise of whoever made this covers the tile.
                let args = unsafe {
                    Product {
                        rows,
                        columns: self.columns - column,
                        a: self.a.add(if self.transposed { row } else { row * self.lda }),
                        b: self.b.add(if self.ldb == 0 { column * self.k } else { column }),
                        ldb: if self.ldb == 0 { vectors * S::LANES } else { self.ldb },
                        out: self.out.add(row * self.ldo + column),
                        finish: match self.finish {
                            Finish::Largest(p) => Finish::Largest(p.add(row * S::LANES)),
                            Finish::Scale(p) => Finish::Scale(p.add(row)),
                            other => other,
                        },
                        ..self
                    }
                };
                macro_rules! shapes {
                    ($($rows:literal),*) => {
                        match (rows, vectors, self.transposed) {
                            $(
                                ($rows, 1, false) => s.vectorize(Tile::<$rows, 1, false>(args, column == 0, &later)),
                                ($rows, 2, false) => s.vectorize(Tile::<$rows, 2, false>(args, column == 0, &later)),
                                ($rows, 3, false) => s.vectorize(Tile::<$rows, 3, false>(args, column == 0, &later)),
                                ($rows, 4, false) => s.vectorize(Tile::<$rows, 4, false>(args, column == 0, &later)),
                                ($rows, 1, true) => s.vectorize(Tile::<$rows, 1, true>(args, column == 0, &later)),
                                ($rows, 2, true) => s.vectorize(Tile::<$rows, 2, true>(args, column == 0, &later)),
                                ($rows, 3, true) => s.vectorize(Tile::<$rows, 3, true>(args, column == 0, &later)),
                                ($rows, 4, true) => s.vectorize(Tile::<$rows, 4, true>(args, column == 0, &later)),
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

/// One register tile, and whether it is the first of its rows.
struct Tile<'a, const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool>(Product, bool, &'a Later);

impl<const ROWS: usize, const VECTORS: usize, const TRANSPOSED: bool> Kernel for Tile<'_, ROWS, VECTORS, TRANSPOSED> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // Known at compile time: the shapes that do not exist for this instruction set cost no code.
        if ROWS > S::HEAD_TILE_ROWS || VECTORS > S::HEAD_TILE_VECTORS {
            unreachable!("tile larger than the registers");
        }
        let Tile(Product { columns, k, a, lda, mut b, ldb, out, ldo, finish, .. }, first, later) = self;
        let (distances, last) = (later.distances.as_ptr(), later.last);
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        let mut row = [a; ROWS];
        let mut across = a;
        // SAFETY: whoever made the product vouches for ROWS x k of A, k full rows of the panel, and the output; `last`
        // is the place of a line.
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
                s.prefetch(out.wrapping_add(*distances.add(i.min(last))));
                for r in 0..ROWS {
                    let x = if TRANSPOSED { s.splat(*across.add(r)) } else { s.splat(*row[r].add(i)) };
                    for j in 0..VECTORS {
                        sums[r][j] = s.mul_add(x, vectors[j], sums[r][j]);
                    }
                }
                b = b.wrapping_add(ldb);
                if TRANSPOSED {
                    across = across.wrapping_add(lda);
                }
            }
            match finish {
                Finish::Largest(largest) => {
                    for r in 0..ROWS {
                        let kept = largest.add(r * S::LANES);
                        let mut most = if first { sums[r][0] } else { s.load(kept) };
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
                        let factor = s.splat(*factors.add(r));
                        for j in 0..VECTORS {
                            let n = columns - j * S::LANES;
                            s.store_up_to(out.add(r * ldo + j * S::LANES), s.mul(sums[r][j], factor), n);
                        }
                    }
                }
            }
        }
    }
}
