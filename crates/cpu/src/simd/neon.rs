//! Vectors of 4 with NEON.

use std::arch::aarch64::*;

use super::{Kernel, Simd, intrinsics};

/// Proof that the machine has NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// # Safety
    /// The machine must have the instructions.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Neon(())
    }
}

#[target_feature(enable = "neon")]
fn enabled<K: Kernel>(s: Neon, kernel: K) -> K::Output {
    kernel.run(s)
}

/// Registers are allocated well only if each register tile stays a separate function (`avx2.rs` says why `enabled` is
/// not `inline(never)` itself).
#[inline(never)]
fn outlined<K: Kernel>(s: Neon, kernel: K) -> K::Output {
    // SAFETY: `s` proves that the instructions are available.
    unsafe { enabled(s, kernel) }
}

// SAFETY: a 128-bit register holds 4 f32.
unsafe impl Simd for Neon {
    type V = float32x4_t;
    type M = uint32x4_t;
    const LANES: usize = 4;
    const TILE_ROWS: usize = 8;
    const TILE_VECTORS: usize = 3;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        outlined(self, kernel)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> float32x4_t {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { vld1q_f32(p) }
    }

    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> float32x4_t {
        let mut lanes = [0.0f32; 4];
        debug_assert!(n <= 4);
        // SAFETY: n is at most 4 and the caller guarantees the memory at p.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            vld1q_f32(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: float32x4_t) {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { vst1q_f32(p, v) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0.0f32; 4];
        debug_assert!(n <= 4);
        // SAFETY: n is at most 4 and the caller guarantees the memory at p.
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }

    /// Does nothing: stable Rust has no intrinsic for it.
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}

    #[inline(always)]
    fn first_or(self, v: float32x4_t, n: usize, fill: float32x4_t) -> float32x4_t {
        // SAFETY: `self` proves that the instructions are available; the array has four elements.
        unsafe {
            let lanes = vld1q_u32([0u32, 1, 2, 3].as_ptr());
            vbslq_f32(vcltq_u32(lanes, vdupq_n_u32(n as u32)), v, fill)
        }
    }

    intrinsics! {
        add(a, b) = vaddq_f32(a, b);
        sub(a, b) = vsubq_f32(a, b);
        mul(a, b) = vmulq_f32(a, b);
        div(a, b) = vdivq_f32(a, b);
        mul_add(a, b, c) = vfmaq_f32(c, a, b);
        neg_mul_add(a, b, c) = vfmsq_f32(c, a, b);
        min(a, b) = vminq_f32(a, b);
        max(a, b) = vmaxq_f32(a, b);
        max_or_nan(a, b) = vmaxq_f32(a, b);
        sqrt(a) = vsqrtq_f32(a);
        abs(a) = vabsq_f32(a);
        swap_pairs(a) = vrev64q_f32(a);
        round(a) = vrndnq_f32(a);
    }

    #[inline(always)]
    fn scale_by_power(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        // Two factors: 2^n itself may be outside the range of normal f32.
        // SAFETY: `self` proves that the instructions are available.
        unsafe {
            let n = vcvtnq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            let rest = vsubq_s32(n, half);
            let bias = vdupq_n_s32(127);
            let half = vshlq_n_s32::<23>(vaddq_s32(half, bias));
            let rest = vshlq_n_s32::<23>(vaddq_s32(rest, bias));
            let a = vmulq_f32(a, vreinterpretq_f32_s32(half));
            vmulq_f32(a, vreinterpretq_f32_s32(rest))
        }
    }

    #[inline(always)]
    fn lt(self, a: float32x4_t, b: float32x4_t) -> uint32x4_t {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { vcltq_f32(a, b) }
    }

    #[inline(always)]
    fn select(self, mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { vbslq_f32(mask, a, b) }
    }

    #[inline(always)]
    fn sum(self, a: float32x4_t) -> f32 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { vaddvq_f32(a) }
    }

    #[inline(always)]
    fn largest(self, a: float32x4_t) -> f32 {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { vmaxvq_f32(a) }
    }
}
