//! Vectors of 16 with AVX-512.

use std::arch::x86_64::*;

use super::{Kernel, Simd, intrinsics};

/// Proof that the machine has AVX-512 F, BW, DQ and VL, AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The machine must have the instructions.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Avx512(())
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn enabled<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
    kernel.run(s)
}

/// Registers are allocated well only if each register tile stays a separate function. `inline(never)` on `enabled`
/// would not achieve that: beside `target_feature`, rustc applies it only to calls from functions with these features,
/// which `vectorize` does not have.
#[inline(never)]
fn outlined<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
    // SAFETY: `s` proves that the instructions are available.
    unsafe { enabled(s, kernel) }
}

/// A mask of the first `n` lanes, at most 16.
#[inline(always)]
fn first_lanes(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

// SAFETY: a 512-bit register holds 16 f32.
unsafe impl Simd for Avx512 {
    type V = __m512;
    type M = __mmask16;
    const LANES: usize = 16;
    const TILE_ROWS: usize = 8;
    const TILE_VECTORS: usize = 3;
    const LOOKUP: bool = true;
    const OVERLAP: bool = true;
    const HEAD_TILE_ROWS: usize = 6;
    const HEAD_TILE_VECTORS: usize = 4;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        outlined(self, kernel)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> __m512 {
        // SAFETY: as above; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(first_lanes(n), p) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: __m512, n: usize) {
        // SAFETY: as above; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(p, first_lanes(n), v) }
    }

    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    fn first_or(self, v: __m512, n: usize, fill: __m512) -> __m512 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm512_mask_blend_ps(first_lanes(n), fill, v) }
    }

    intrinsics! {
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        div(a, b) = _mm512_div_ps(a, b);
        mul_add(a, b, c) = _mm512_fmadd_ps(a, b, c);
        neg_mul_add(a, b, c) = _mm512_fnmadd_ps(a, b, c);
        min(a, b) = _mm512_min_ps(a, b);
        max(a, b) = _mm512_max_ps(a, b);
        // `max` returns its second operand where either is NaN, and the bits of a NaN OR any bits are a NaN.
        max_or_nan(a, b) = _mm512_or_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a));
        sqrt(a) = _mm512_sqrt_ps(a);
        abs(a) = _mm512_abs_ps(a);
        swap_pairs(a) = _mm512_permute_ps::<0b10_11_00_01>(a);
        round(a) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        // Selects the smaller absolute value and clears its sign.
        abs_up_to(limit, a) = _mm512_range_ps::<0b1010>(limit, a);
        // The upper half of the immediate is the number of fraction bits.
        sub_nearest_half(a) = _mm512_reduce_ps::<{ 1 << 4 }>(a);
        sub_nearest_sixteenth(a) = _mm512_reduce_ps::<{ 4 << 4 }>(a);
        scale_by_power(a, n) = _mm512_scalef_ps(a, n);
    }

    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }

    #[inline(always)]
    fn select(self, mask: __mmask16, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm512_mask_blend_ps(mask, b, a) }
    }

    #[inline(always)]
    fn lookup(self, table: &[f32; 16], index: __m512) -> __m512 {
        // SAFETY: `self` proves that the instructions are available; the table fills a vector.
        unsafe { _mm512_permutexvar_ps(_mm512_castps_si512(index), _mm512_loadu_ps(table.as_ptr())) }
    }

    #[inline(always)]
    fn add_exponent(self, a: __m512, sixteenths: __m512) -> __m512 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe {
            let power = _mm512_slli_epi32::<19>(_mm512_castps_si512(sixteenths));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), power))
        }
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm512_reduce_add_ps(a) }
    }

    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: AVX2 is among the instructions that `self` proves; the caller guarantees the memory.
        unsafe { super::avx2::transpose8(from, from_stride, to, to_stride) }
    }
}
