//! Tiles with an activation after them: the function needs other units of the processor than the sums do, so it is
//! applied to a tile while the next one is computed, a vector every few terms.

use super::Groups;
use super::microkernel::{GROUP, TileArgs, TileBuffer, Walk, starts};
use crate::activation::{Activation, ActivationFn, with_activation};
use crate::simd::{Kernel, Simd};

/// A tile that is computed, and still wants its activation.
pub(super) struct Pending {
    pub sums: TileBuffer,
    /// Where it goes; null if there is none.
    pub c: *mut f32,
    /// Where the activation's slope goes; null if nobody wants it.
    pub slope: *mut f32,
    pub ldc: usize,
}

/// Computes full tiles of the matrix product and takes them through the activation to C, all but the last, which is
/// left pending. `args.out` is C; `slope`, laid out as C, takes the activation's slope unless it is null.
///
/// # Safety
/// As for [`super::microkernel::tile`], with a row-major A. C and the slope must stay writable until the pending tile is finished.
#[inline(always)]
pub(super) unsafe fn tiles<S: Simd>(
    s: S,
    activation: Option<Activation>,
    args: &TileArgs<'_>,
    slope: *mut f32,
    pending: &mut Pending,
) {
    // The one tile of instruction sets that overlap.
    if slope.is_null() {
        with_activation!(activation, f => s.vectorize(Tiles::<_, false, 8, 3> { f, args, slope, pending }));
    } else {
        with_activation!(activation, f => s.vectorize(Tiles::<_, true, 8, 3> { f, args, slope, pending }));
    }
}

/// Finishes the pending tile, if there is one.
///
/// # Safety
/// Its place in C must be writable.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(s: S, activation: Option<Activation>, pending: &mut Pending) {
    if !pending.c.is_null() {
        with_activation!(activation, f => s.vectorize(Rest { f, pending }));
        pending.c = std::ptr::null_mut();
    }
}

struct Tiles<'a, F, const SLOPE: bool, const ROWS: usize, const VECTORS: usize> {
    f: F,
    args: &'a TileArgs<'a>,
    slope: *mut f32,
    pending: &'a mut Pending,
}

impl<F: ActivationFn, const SLOPE: bool, const ROWS: usize, const VECTORS: usize> Kernel
    for Tiles<'_, F, SLOPE, ROWS, VECTORS>
{
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // Known at compile time: the shape of another instruction set costs no code.
        if !S::OVERLAP || ROWS != S::TILE_ROWS || VECTORS != S::TILE_VECTORS {
            unreachable!("not the tile of this instruction set");
        }
        let Tiles { f, args, mut slope, pending } = self;
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
                    let [mut values, mut slopes] = Places::<S>::of(pending, VECTORS);
                    for i in 0..ROWS * VECTORS {
                        walk.add::<S, ROWS, VECTORS, false, GROUP>(s, each, &mut sums);
                        let x = s.load(buffer.add(i * S::LANES));
                        if SLOPE {
                            let (value, its_slope) = f.value_and_derivative(s, x);
                            s.store(values.next(VECTORS), value);
                            s.store(slopes.next(VECTORS), its_slope);
                        } else {
                            s.store(values.next(VECTORS), f.value(s, x));
                        }
                    }
                    left -= each * ROWS * VECTORS;
                }
                walk.add::<S, ROWS, VECTORS, false, GROUP>(s, left, &mut sums);
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
            (pending.c, pending.slope, pending.ldc) = (c, slope, args.out_stride);
            c = c.wrapping_add(ROWS * args.out_stride);
            slope = slope.wrapping_add(if SLOPE { ROWS * args.out_stride } else { 0 });
        }
    }
}

struct Rest<'a, F> {
    f: F,
    pending: &'a Pending,
}

impl<F: ActivationFn> Kernel for Rest<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [mut values, mut slopes] = Places::<S>::of(self.pending, S::TILE_VECTORS);
        for sums in self.pending.sums.0.chunks_exact(S::LANES).take(S::TILE_ROWS * S::TILE_VECTORS) {
            // SAFETY: whoever made the tile vouches for its place in C and that of its slope.
            unsafe {
                let x = s.load(sums.as_ptr());
                if self.pending.slope.is_null() {
                    s.store(values.next(S::TILE_VECTORS), self.f.value(s, x));
                } else {
                    let (value, slope) = self.f.value_and_derivative(s, x);
                    s.store(values.next(S::TILE_VECTORS), value);
                    s.store(slopes.next(S::TILE_VECTORS), slope);
                }
            }
        }
    }
}

/// The places of the vectors of a tile in C, or in what is laid out as C, one after the other.
struct Places<S> {
    next: *mut f32,
    /// Vectors left in this row.
    left: usize,
    /// From the end of a row to the next.
    gap: usize,
    isa: std::marker::PhantomData<S>,
}

impl<S: Simd> Places<S> {
    /// In C and in the slope.
    #[inline(always)]
    fn of(pending: &Pending, vectors: usize) -> [Places<S>; 2] {
        let gap = pending.ldc.wrapping_sub(vectors * S::LANES);
        [pending.c, pending.slope].map(|next| Places { next, left: vectors, gap, isa: std::marker::PhantomData })
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
