//! Tiles with an activation after them: the function needs other units of the processor than the sums do, so it is
//! applied to a tile while the next one is computed, a vector every few terms.

use super::tile::{TileArgs, TileBuffer, Walk, starts};
use crate::activation::{Activation, Function, with_function};
use crate::simd::{Kernel, Simd};

/// A tile that is computed, and still wants its activation.
pub(super) struct Pending {
    pub sums: TileBuffer,
    /// Where it goes; null if there is none.
    pub c: *mut f32,
    pub ldc: usize,
}

/// Computes full tiles of the matrix product and takes them through the activation to C, all but the last, which is
/// left pending. `args.out` is C.
///
/// # Safety
/// As for [`super::tile::tile`], with a row-major A. C must stay writable until the pending tile is finished.
#[inline(always)]
pub(super) unsafe fn tiles<S: Simd>(s: S, activation: Activation, args: &TileArgs<'_>, pending: &mut Pending) {
    macro_rules! shapes {
        ($($rows:literal x $vectors:literal),*) => {
            match (S::TILE_ROWS, S::TILE_VECTORS) {
                $(
                    ($rows, $vectors) => {
                        with_function!(activation, f => s.vectorize(Tiles::<_, $rows, $vectors> { f, args, pending }));
                    }
                )*
                _ => unreachable!("no such tile"),
            }
        };
    }
    shapes!(8 x 3)
}

/// Finishes the pending tile, if there is one.
///
/// # Safety
/// Its place in C must be writable.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(s: S, activation: Activation, pending: &mut Pending) {
    if !pending.c.is_null() {
        with_function!(activation, f => s.vectorize(Rest { f, pending }));
        pending.c = std::ptr::null_mut();
    }
}

struct Tiles<'a, F, const ROWS: usize, const VECTORS: usize> {
    f: F,
    args: &'a TileArgs<'a>,
    pending: &'a mut Pending,
}

impl<F: Function, const ROWS: usize, const VECTORS: usize> Kernel for Tiles<'_, F, ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // Known at compile time: the shape of another instruction set costs no code.
        if !S::OVERLAP || ROWS != S::TILE_ROWS || VECTORS != S::TILE_VECTORS {
            unreachable!("not the tile of this instruction set");
        }
        let Tiles { f, args, pending } = self;
        let buffer = pending.sums.0.as_mut_ptr();
        let mut plus = args.plus;
        let mut c = args.out;
        for tile in 0..args.tiles {
            // SAFETY: whoever made the arguments vouches for the operands and C, also that of the pending tile; the
            // buffer has room for a tile.
            unsafe {
                let mut sums = starts::<S, ROWS, VECTORS>(s, args.start);
                let mut walk = Walk::new(s, args, tile, ROWS);
                let mut left = args.k;
                if !pending.c.is_null() {
                    let each = args.k / (ROWS * VECTORS);
                    let mut out = Places::<S>::new(pending, VECTORS);
                    for i in 0..ROWS * VECTORS {
                        walk.add::<S, ROWS, VECTORS, false>(s, each, &mut sums);
                        s.store(out.next(VECTORS), f.value(s, s.load(buffer.add(i * S::LANES))));
                    }
                    left -= each * ROWS * VECTORS;
                }
                walk.add::<S, ROWS, VECTORS, false>(s, left, &mut sums);
                if !plus.0.is_null() {
                    for r in 0..ROWS {
                        for j in 0..VECTORS {
                            sums[r][j] = s.add(sums[r][j], s.load(plus.0.add(r * plus.1 + j * S::LANES)));
                        }
                    }
                    plus.0 = plus.0.wrapping_add(ROWS * plus.1);
                }
                for r in 0..ROWS {
                    for j in 0..VECTORS {
                        s.store(buffer.add((r * VECTORS + j) * S::LANES), sums[r][j]);
                    }
                }
            }
            pending.c = c;
            pending.ldc = args.out_stride;
            c = c.wrapping_add(ROWS * args.out_stride);
        }
    }
}

struct Rest<'a, F> {
    f: F,
    pending: &'a Pending,
}

impl<F: Function> Kernel for Rest<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut out = Places::<S>::new(self.pending, S::TILE_VECTORS);
        for sums in self.pending.sums.0.chunks_exact(S::LANES).take(S::TILE_ROWS * S::TILE_VECTORS) {
            // SAFETY: whoever made the tile vouches for its place in C.
            unsafe { s.store(out.next(S::TILE_VECTORS), self.f.value(s, s.load(sums.as_ptr()))) };
        }
    }
}

/// The places in C of the vectors of a tile, one after the other.
struct Places<S> {
    next: *mut f32,
    /// Vectors left in this row.
    left: usize,
    /// From the end of a row to the next.
    gap: usize,
    isa: std::marker::PhantomData<S>,
}

impl<S: Simd> Places<S> {
    #[inline(always)]
    fn new(pending: &Pending, vectors: usize) -> Places<S> {
        let gap = pending.ldc.wrapping_sub(vectors * S::LANES);
        Places { next: pending.c, left: vectors, gap, isa: std::marker::PhantomData }
    }

    #[inline(always)]
    fn next(&mut self, vectors: usize) -> *mut f32 {
        let at = self.next;
        self.left -= 1;
        self.next = at.wrapping_add(if self.left == 0 { S::LANES.wrapping_add(self.gap) } else { S::LANES });
        self.left = if self.left == 0 { vectors } else { self.left };
        at
    }
}
