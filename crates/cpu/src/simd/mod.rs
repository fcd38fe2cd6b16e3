//! The vector operations that kernels are written in, once, generic over [`Simd`].
//! A value of a `Simd` type is a token: it proves that the machine has the instructions, so that arithmetic is safe;
//! only loads and stores through pointers are not.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod gelu_tables;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
pub(crate) mod row;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;

/// A function that is compiled once for each instruction set.
///
/// `run` and every generic function it calls must be `#[inline(always)]`: only then is their code compiled inside the
/// function that enables the instructions. A closure cannot be marked so: in a loop it must be small enough that the
/// compiler inlines it anyway.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Vectors of `f32`.
///
/// # Safety
/// `LANES` must be the number of `f32` that `load` reads and `store` writes, and at most [`MAX_LANES`].
pub(crate) unsafe trait Simd: Copy {
    /// A vector of `LANES` elements.
    type V: Copy;
    /// The result of a comparison.
    type M: Copy;
    /// Elements of a vector.
    const LANES: usize;
    /// Rows of the matrix product's register tile.
    const TILE_ROWS: usize;
    /// Vectors in a row of the register tile. The tile, a row of B and an element of A fit into the registers.
    const TILE_VECTORS: usize;
    /// Whether [`Simd::lookup`] is one instruction.
    const LOOKUP: bool = false;
    /// Whether the function of a tile (an activation, exponentials) is interleaved with the multiply-adds of the next
    /// (software pipelining), in the registers that a full tile leaves.
    const OVERLAP: bool = false;
    /// Rows of attention's register tile. On AVX-512 it is 6 x 4 instead of 8 x 3 vectors: one tile is as wide as a
    /// head of 64 elements.
    const HEAD_TILE_ROWS: usize = Self::TILE_ROWS;
    /// Vectors in a row of attention's register tile, at most 4.
    const HEAD_TILE_VECTORS: usize = Self::TILE_VECTORS;

    /// Calls the kernel as a separate function with the instructions enabled.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// `LANES` elements at `p` must be readable.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// The first `n` lanes from memory, zero in the others: the masked load of a remainder, which must not be longer
    /// than a vector. See [`Simd::load_up_to`] for an `n` that may be.
    /// # Safety
    /// `n <= LANES` elements at `p` must be readable.
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::V;
    /// # Safety
    /// `LANES` elements at `p` must be writable.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    /// Writes the first `n` lanes; [`Simd::store_up_to`] has no upper bound of `n`.
    /// # Safety
    /// `n <= LANES` elements at `p` must be writable.
    unsafe fn store_first(self, p: *mut f32, v: Self::V, n: usize);
    /// Prefetches the cache line at `p`, which need not be valid.
    fn prefetch(self, p: *const f32);
    /// The first `n` lanes of `v`, then those of `fill`.
    fn first_or(self, v: Self::V, n: usize, fill: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused unless [`Portable`].
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`.
    fn neg_mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller; NaN where `b` is NaN, and `b` or NaN where only `a` is.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger; NaN where `b` is NaN, and `b` or NaN where only `a` is.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger; NaN where either is NaN.
    fn max_or_nan(self, a: Self::V, b: Self::V) -> Self::V;
    fn abs(self, a: Self::V) -> Self::V;
    /// The smaller of `limit` and the absolute value of `a`; for NaN either NaN or `limit`.
    #[inline(always)]
    fn abs_up_to(self, limit: Self::V, a: Self::V) -> Self::V {
        self.min(limit, self.abs(a))
    }
    fn sqrt(self, a: Self::V) -> Self::V;
    /// The nearest integer, ties to even, for magnitudes below 2^22; larger values may be returned as they are.
    fn round(self, a: Self::V) -> Self::V;
    /// `a * 2^n` for integral `n` in -160..=160, gradual underflow included.
    fn scale_by_power(self, a: Self::V, n: Self::V) -> Self::V;
    /// `a < b`, false where either is NaN.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a` where the mask is set, `b` elsewhere.
    fn select(self, mask: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// The entry of the table at the lowest four bits of each lane of `index`; only where `LOOKUP` is set.
    #[inline(always)]
    fn lookup(self, _table: &[f32; 16], _index: Self::V) -> Self::V {
        unreachable!("not an instruction of this set")
    }
    /// `a` minus the nearest multiple of 1/2; only where `LOOKUP` is set.
    #[inline(always)]
    fn sub_nearest_half(self, _a: Self::V) -> Self::V {
        unreachable!("not an instruction of this set")
    }
    /// `a` minus the nearest multiple of 1/16; only where `LOOKUP` is set.
    #[inline(always)]
    fn sub_nearest_sixteenth(self, _a: Self::V) -> Self::V {
        unreachable!("not an instruction of this set")
    }
    /// The bits of `a` plus the bits of `sixteenths` shifted left by 19: the lowest four go to the top of the fraction,
    /// the others to the exponent; only where `LOOKUP` is set.
    #[inline(always)]
    fn add_exponent(self, _a: Self::V, _sixteenths: Self::V) -> Self::V {
        unreachable!("not an instruction of this set")
    }
    /// Lanes `2 i` and `2 i + 1` exchanged.
    fn swap_pairs(self, a: Self::V) -> Self::V;
    /// The sum of the lanes, in a fixed order.
    fn sum(self, a: Self::V) -> f32;
    /// The largest lane; unspecified if a lane is NaN.
    fn largest(self, a: Self::V) -> f32;
    /// The first `min(n, LANES)` lanes from memory, zero in the others: for the body of a loop over `n` remaining
    /// elements, of which all but the last vector take the unmasked load.
    /// # Safety
    /// `min(n, LANES)` elements at `p` must be readable.
    #[inline(always)]
    unsafe fn load_up_to(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: guaranteed by the caller; the masked form is taken only for n < LANES.
        unsafe { if n >= Self::LANES { self.load(p) } else { self.load_first(p, n) } }
    }
    /// Writes the first `min(n, LANES)` lanes.
    /// # Safety
    /// `min(n, LANES)` elements at `p` must be writable.
    #[inline(always)]
    unsafe fn store_up_to(self, p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: guaranteed by the caller; the masked form is taken only for n < LANES.
        unsafe { if n >= Self::LANES { self.store(p, v) } else { self.store_first(p, v, n) } }
    }
    /// `to[c * to_stride + r] = from[r * from_stride + c]` for `r` and `c` below `TRANSPOSE`.
    /// # Safety
    /// Those elements must be readable and writable.
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for r in 0..TRANSPOSE {
            for c in 0..TRANSPOSE {
                // SAFETY: guaranteed by the caller.
                unsafe { *to.add(c * to_stride + r) = *from.add(r * from_stride + c) };
            }
        }
    }
}

/// The widest vector of any instruction set.
pub(crate) const MAX_LANES: usize = 16;
/// The most rows of any register tile.
pub(crate) const MAX_TILE_ROWS: usize = 8;
/// The most vectors in a row of the register tile of matrix products; attention's has up to 4.
pub(crate) const MAX_TILE_VECTORS: usize = 3;
/// The side of the square that [`Simd::transpose`] transposes.
pub(crate) const TRANSPOSE: usize = 8;

/// Returns `(MR, NR)`, the rows and columns of the register tile, to code that is not generic over the instruction set.
pub(crate) struct TileShape;

impl Kernel for TileShape {
    type Output = (usize, usize);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (usize, usize) {
        (S::TILE_ROWS, S::TILE_VECTORS * S::LANES)
    }
}

/// Adds the operations that are one intrinsic each.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! intrinsics {
    ($($name:ident($($arg:ident),*) = $body:expr;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($arg: Self::V),*) -> Self::V {
                // SAFETY: `self` proves that the instructions are available.
                unsafe { $body }
            }
        )*
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use intrinsics;
