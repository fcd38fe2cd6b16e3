//! Dot products of bytes on AArch64. Activations are stored as signed bytes, `q - 128`, since the dot product extension
//! multiplies signed by signed; without it, products of 16 bits are added in pairs to sums of 32.

use std::arch::aarch64::*;
use std::arch::asm;

use super::path::{Dot, DotKernel, token};
use crate::simd::Neon;

token! {
    /// Proof that the machine has NEON with dot products.
    NeonDot(Neon) = "neon,dotprod"
}
token! {
    /// Proof that the machine has NEON, whose widening products are the path without the extension.
    NeonWidening(Neon) = "neon"
}

/// The operations that both paths share.
macro_rules! common {
    () => {
        type Float = Neon;
        type Sums = int32x4_t;
        const LEFT_BYTES: usize = 1;
        const TILE_ROWS: usize = 8;
        const TILE_VECTORS: usize = 3;

        #[inline(always)]
        fn vectorize<K: DotKernel>(self, kernel: K) -> K::Output {
            self.outlined(kernel)
        }

        #[inline(always)]
        fn float(self) -> Neon {
            self.0
        }

        #[inline(always)]
        fn zero(self) -> int32x4_t {
            // SAFETY: `self` proves that the instructions are available.
            unsafe { vdupq_n_s32(0) }
        }

        #[inline(always)]
        unsafe fn store_sums(self, p: *mut i32, sums: int32x4_t) {
            // SAFETY: as above; the caller guarantees the memory.
            unsafe { vst1q_s32(p, sums) }
        }

        #[inline(always)]
        unsafe fn load_centred_sums(self, sums: *const i32, offset: i32, weight_sums: *const i32) -> float32x4_t {
            // SAFETY: as above; the caller guarantees the memory.
            unsafe { vcvtq_f32_s32(vmlsq_n_s32(vld1q_s32(sums), vld1q_s32(weight_sums), offset)) }
        }

        #[inline(always)]
        unsafe fn store_left(self, p: *mut u8, x: float32x4_t, zero: i32) {
            // SAFETY: as above; the caller guarantees 4 bytes.
            unsafe {
                let value = vaddq_s32(vcvtnq_s32_f32(x), vdupq_n_s32(zero - 128));
                // Saturates at 127, the stored form of 255.
                let words = vqmovn_s32(value);
                let bytes = vqmovn_s16(vcombine_s16(words, words));
                p.cast::<i32>().write_unaligned(vget_lane_s32::<0>(vreinterpret_s32_s8(bytes)));
            }
        }

        #[inline(always)]
        fn offset(zero: i32) -> i32 {
            zero - 128
        }
    };
}

// SAFETY: 128-bit registers hold 4 f32, 4 i32 and 16 bytes.
unsafe impl Dot for NeonDot {
    common!();
    type Left = int8x16_t;
    type Right = int8x16_t;
    const GROUP: usize = 4;

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> int8x16_t {
        // SAFETY: `self` proves that the instructions are available; the caller guarantees the memory.
        unsafe { vreinterpretq_s8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn load_right(self, p: *const i8) -> int8x16_t {
        // SAFETY: as above.
        unsafe { vld1q_s8(p) }
    }

    #[inline(always)]
    fn dot(self, left: int8x16_t, right: int8x16_t, sums: int32x4_t) -> int32x4_t {
        let mut out = sums;
        // The intrinsic vdotq_s32 is not in stable Rust.
        // SAFETY: `self` proves that the instruction is available; it accesses these registers only.
        unsafe {
            asm!(
                "sdot {out:v}.4s, {left:v}.16b, {right:v}.16b",
                out = inout(vreg) out,
                left = in(vreg) left,
                right = in(vreg) right,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        out
    }
}

// SAFETY: 128-bit registers hold 4 f32 and 4 i32; 64-bit ones 8 bytes.
unsafe impl Dot for NeonWidening {
    common!();
    type Left = int8x8_t;
    type Right = int8x8_t;
    const GROUP: usize = 2;

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> int8x8_t {
        // SAFETY: `self` proves that the instructions are available; the caller guarantees the memory.
        unsafe { vreinterpret_s8_s16(vdup_n_s16(p.cast::<i16>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn load_right(self, p: *const i8) -> int8x8_t {
        // SAFETY: as above.
        unsafe { vld1_s8(p) }
    }

    #[inline(always)]
    fn dot(self, left: int8x8_t, right: int8x8_t, sums: int32x4_t) -> int32x4_t {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { vpadalq_s16(sums, vmull_s8(left, right)) }
    }
}
