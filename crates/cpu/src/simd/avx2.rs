//! Vectors of 8 with AVX2 and FMA.

use std::arch::x86_64::*;

use super::{Kernel, Simd, intrinsics};

/// Proof that the machine has AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine must have the instructions.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Avx2(())
    }
}

#[target_feature(enable = "avx2,fma")]
fn enabled<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
    kernel.run(s)
}

/// Registers are allocated well only if each register tile stays a separate function. `inline(never)` on `enabled`
/// would not achieve that: beside `target_feature`, rustc applies it only to calls from functions with these features,
/// which `vectorize` does not have.
#[inline(never)]
fn outlined<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
    // SAFETY: `s` proves that the instructions are available.
    unsafe { enabled(s, kernel) }
}

/// Loaded from element `8 - n` on, the mask of the first `n` lanes.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
fn first_lanes(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    // SAFETY: n is at most 8, so the window lies inside the table; only called with AVX2 available.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - n).cast()) }
}

/// # Safety
/// The machine must have AVX2, and an 8 by 8 square must be readable at `from` and writable at `to`.
#[inline(always)]
pub(super) unsafe fn transpose8(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    // SAFETY: the caller guarantees instructions and memory.
    unsafe {
        let mut r = [_mm256_setzero_ps(); 8];
        for (i, row) in r.iter_mut().enumerate() {
            *row = _mm256_loadu_ps(from.add(i * from_stride));
        }
        let mut t = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..2 {
            r[4 * i] = _mm256_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
            r[4 * i + 1] = _mm256_shuffle_ps::<0xEE>(t[4 * i], t[4 * i + 2]);
            r[4 * i + 2] = _mm256_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
            r[4 * i + 3] = _mm256_shuffle_ps::<0xEE>(t[4 * i + 1], t[4 * i + 3]);
        }
        for i in 0..4 {
            let low = _mm256_permute2f128_ps::<0x20>(r[i], r[i + 4]);
            let high = _mm256_permute2f128_ps::<0x31>(r[i], r[i + 4]);
            _mm256_storeu_ps(to.add(i * to_stride), low);
            _mm256_storeu_ps(to.add((i + 4) * to_stride), high);
        }
    }
}

// SAFETY: a 256-bit register holds 8 f32.
unsafe impl Simd for Avx2 {
    type V = __m256;
    type M = __m256;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;
    const TILE_VECTORS: usize = 2;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        outlined(self, kernel)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> __m256 {
        // SAFETY: as above; masked lanes are not read.
        unsafe { _mm256_maskload_ps(p, first_lanes(n)) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: __m256, n: usize) {
        // SAFETY: as above; masked lanes are not written.
        unsafe { _mm256_maskstore_ps(p, first_lanes(n), v) }
    }

    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }

    #[inline(always)]
    fn first_or(self, v: __m256, n: usize, fill: __m256) -> __m256 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm256_blendv_ps(fill, v, _mm256_castsi256_ps(first_lanes(n))) }
    }

    intrinsics! {
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        div(a, b) = _mm256_div_ps(a, b);
        mul_add(a, b, c) = _mm256_fmadd_ps(a, b, c);
        neg_mul_add(a, b, c) = _mm256_fnmadd_ps(a, b, c);
        min(a, b) = _mm256_min_ps(a, b);
        max(a, b) = _mm256_max_ps(a, b);
        // `max` returns its second operand where either is NaN, and the bits of a NaN OR any bits are a NaN.
        max_or_nan(a, b) = _mm256_or_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
        sqrt(a) = _mm256_sqrt_ps(a);
        abs(a) = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        swap_pairs(a) = _mm256_permute_ps::<0b10_11_00_01>(a);
        round(a) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
    }

    #[inline(always)]
    fn scale_by_power(self, a: __m256, n: __m256) -> __m256 {
        // Two factors: 2^n itself may be outside the range of normal f32.
        // SAFETY: `self` proves that the instructions are available.
        unsafe {
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let rest = _mm256_sub_epi32(n, half);
            let bias = _mm256_set1_epi32(127);
            let half = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
            let rest = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
            let a = _mm256_mul_ps(a, _mm256_castsi256_ps(half));
            _mm256_mul_ps(a, _mm256_castsi256_ps(rest))
        }
    }

    #[inline(always)]
    fn lt(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
    }

    #[inline(always)]
    fn select(self, mask: __m256, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm256_blendv_ps(b, a, mask) }
    }

    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }

    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe {
            let x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: `self` proves the instructions; the caller guarantees the memory.
        unsafe { transpose8(from, from_stride, to, to_stride) }
    }
}
