//! Software pipelining of products with an activation: the activation of a tile is computed between the multiply-adds
//! of the next tile, a vector every few steps of k. Every AVX-512 machine runs this. On AMD's Zen 4 the activation then
//! takes no time; on Intel both use the same ports, and each of its instructions still costs as much as a multiply-add
//! (docs/decisions.md, CPU kernels).

use super::microkernel::{MicroTiles, PrefetchingLoop, TileBuffer, UNROLL, initial_sums};
use super::rank1::KLoop;
use crate::activation::{Activation, ActivationFn, with_activation};
use crate::simd::{Kernel, Simd};

/// A full tile of sums whose activation is still to be computed.
pub(super) struct DeferredTile {
    sums: TileBuffer,
    /// Its destination; null if there is no tile.
    c: *mut f32,
    /// Destination of the activation's derivative; null if unused.
    d_activation: *mut f32,
    ldc: usize,
}

impl DeferredTile {
    #[inline(always)]
    pub fn none() -> DeferredTile {
        let null = std::ptr::null_mut();
        DeferredTile { sums: TileBuffer::zeros(), c: null, d_activation: null, ldc: 0 }
    }

    /// Computes the activation and stores the tile, if there is one.
    ///
    /// # Safety
    /// Its destinations must be writable.
    #[inline(always)]
    pub unsafe fn flush<S: Simd>(&mut self, s: S, activation: Option<Activation>) {
        if !self.c.is_null() {
            with_activation!(activation, f => s.vectorize(Flush { f, tile: self }));
            self.c = std::ptr::null_mut();
        }
    }
}

/// Stores the deferred tile, if there is one, and computes full tiles, of which all but the last are stored and the
/// last becomes the deferred one. `args.out` is C; `d_activation`, laid out as C, receives the activation's derivative
/// unless it is null. `args.factor` is not applied; its pointer must be null.
///
/// # Safety
/// As for [`super::microkernel::microkernel`], with a row-major A. C and `d_activation` must be writable until the
/// deferred tile is flushed. Between two flushes the activation must stay the same, and `d_activation` must be null in
/// all calls or in none.
#[inline(always)]
pub(super) unsafe fn pipelined_tiles<S: Simd>(
    s: S,
    activation: Option<Activation>,
    args: &MicroTiles<'_>,
    d_activation: *mut f32,
    deferred: &mut DeferredTile,
) {
    debug_assert!(args.factor.0.is_null(), "pipelined tiles have no factor");
    // 8 x 3 vectors is the tile of AVX-512, the one instruction set with `OVERLAP`.
    if d_activation.is_null() {
        with_activation!(activation, f => s.vectorize(PipelinedTiles::<_, false, 8, 3> { f, args, d_activation, deferred }));
    } else {
        with_activation!(activation, f => s.vectorize(PipelinedTiles::<_, true, 8, 3> { f, args, d_activation, deferred }));
    }
}

struct PipelinedTiles<'a, F, const DERIVATIVE: bool, const ROWS: usize, const VECTORS: usize> {
    f: F,
    args: &'a MicroTiles<'a>,
    d_activation: *mut f32,
    deferred: &'a mut DeferredTile,
}

impl<F: ActivationFn, const DERIVATIVE: bool, const ROWS: usize, const VECTORS: usize> Kernel
    for PipelinedTiles<'_, F, DERIVATIVE, ROWS, VECTORS>
{
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // A compile-time condition: no code is generated for other instruction sets.
        if !S::OVERLAP || ROWS != S::TILE_ROWS || VECTORS != S::TILE_VECTORS {
            unreachable!("not the tile of this instruction set");
        }
        let PipelinedTiles { f, args, mut d_activation, deferred } = self;
        let buffer = deferred.sums.0.as_mut_ptr();
        let mut addend = args.addend;
        let mut c = args.out;
        for tile in 0..args.tiles {
            // SAFETY: guaranteed by the caller of `pipelined_tiles`; the buffer holds a tile.
            unsafe {
                let mut sums = initial_sums::<S, ROWS, VECTORS>(s, args.initial);
                let mut k_loop = PrefetchingLoop::new(s, args, tile, ROWS);
                let mut left = args.k;
                if !deferred.c.is_null() {
                    let terms_per_vector = args.k / (ROWS * VECTORS);
                    let [mut values, mut derivatives] = TileVectors::<S>::of(deferred, VECTORS);
                    for i in 0..ROWS * VECTORS {
                        k_loop.run::<S, ROWS, VECTORS, false, UNROLL>(s, terms_per_vector, &mut sums);
                        let x = s.load(buffer.add(i * S::LANES));
                        if DERIVATIVE {
                            let (value, derivative) = f.value_and_derivative(s, x);
                            s.store(values.next(VECTORS), value);
                            s.store(derivatives.next(VECTORS), derivative);
                        } else {
                            s.store(values.next(VECTORS), f.value(s, x));
                        }
                    }
                    left -= terms_per_vector * ROWS * VECTORS;
                }
                k_loop.run::<S, ROWS, VECTORS, false, UNROLL>(s, left, &mut sums);
                if !addend.0.is_null() {
                    for r in 0..ROWS {
                        for j in 0..VECTORS {
                            sums[r][j] = s.add(sums[r][j], s.load(addend.0.add(r * addend.1 + j * S::LANES)));
                        }
                    }
                    addend.0 = addend.0.wrapping_add(ROWS * addend.1);
                }
                for r in 0..ROWS {
                    for j in 0..VECTORS {
                        s.store(buffer.add((r * VECTORS + j) * S::LANES), sums[r][j]);
                    }
                }
            }
            (deferred.c, deferred.d_activation, deferred.ldc) = (c, d_activation, args.out_stride);
            c = c.wrapping_add(ROWS * args.out_stride);
            d_activation = d_activation.wrapping_add(if DERIVATIVE { ROWS * args.out_stride } else { 0 });
        }
    }
}

struct Flush<'a, F> {
    f: F,
    tile: &'a DeferredTile,
}

impl<F: ActivationFn> Kernel for Flush<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let [mut values, mut derivatives] = TileVectors::<S>::of(self.tile, S::TILE_VECTORS);
        for sums in self.tile.sums.0.chunks_exact(S::LANES).take(S::TILE_ROWS * S::TILE_VECTORS) {
            // SAFETY: guaranteed by the caller of `DeferredTile::flush`.
            unsafe {
                let x = s.load(sums.as_ptr());
                if self.tile.d_activation.is_null() {
                    s.store(values.next(S::TILE_VECTORS), self.f.value(s, x));
                } else {
                    let (value, derivative) = self.f.value_and_derivative(s, x);
                    s.store(values.next(S::TILE_VECTORS), value);
                    s.store(derivatives.next(S::TILE_VECTORS), derivative);
                }
            }
        }
    }
}

/// The addresses of a tile's vectors in C, or in a matrix laid out as C, row by row.
struct TileVectors<S> {
    next: *mut f32,
    /// Vectors left in this row.
    left: usize,
    /// Elements from the end of a row of the tile to the start of the next.
    gap: usize,
    isa: std::marker::PhantomData<S>,
}

impl<S: Simd> TileVectors<S> {
    /// Those in C, and those in the derivative.
    #[inline(always)]
    fn of(tile: &DeferredTile, vectors: usize) -> [TileVectors<S>; 2] {
        let gap = tile.ldc.wrapping_sub(vectors * S::LANES);
        [tile.c, tile.d_activation].map(|next| TileVectors { next, left: vectors, gap, isa: std::marker::PhantomData })
    }

    #[inline(always)]
    fn next(&mut self, vectors: usize) -> *mut f32 {
        let vector = self.next;
        self.left -= 1;
        self.next = vector.wrapping_add(if self.left == 0 { S::LANES.wrapping_add(self.gap) } else { S::LANES });
        self.left = if self.left == 0 { vectors } else { self.left };
        vector
    }
}
