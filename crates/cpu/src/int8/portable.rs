//! Dot products of int8 in portable Rust: for machines without a faster path, and the one that tests compare with.

use super::path::{Dot, DotKernel, portable_floats};
use crate::simd::Simd;

/// The path that every machine has.
#[derive(Clone, Copy)]
pub(super) struct PortableDot;

// SAFETY: 4 lanes as in Portable: Left is one group of 2 activations, Right a group of 2 weights for each lane, and
// every load and store has that extent.
unsafe impl Dot for PortableDot {
    portable_floats!();
    type Sums = [i32; 4];
    type Left = [i16; 2];
    type Right = [i16; 8];
    const GROUP: usize = 2;
    /// Activations are stored as `q - zero`, which takes 9 bits: an i16.
    const LEFT_BYTES: usize = 2;

    #[inline(always)]
    fn zero(self) -> [i32; 4] {
        [0; 4]
    }

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> [i16; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<[i16; 2]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_right(self, p: *const i8) -> [i16; 8] {
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { p.cast::<[i8; 8]>().read_unaligned() };
        let mut words = [0; 8];
        for i in 0..8 {
            words[i] = i16::from(bytes[i]);
        }
        words
    }

    #[inline(always)]
    fn dot(self, left: [i16; 2], right: [i16; 8], sums: [i32; 4]) -> [i32; 4] {
        let mut out = sums;
        for i in 0..4 {
            out[i] += i32::from(left[0]) * i32::from(right[2 * i]) + i32::from(left[1]) * i32::from(right[2 * i + 1]);
        }
        out
    }

    #[inline(always)]
    unsafe fn store_sums(self, p: *mut i32, sums: [i32; 4]) {
        // SAFETY: guaranteed by the caller.
        unsafe { p.cast::<[i32; 4]>().write_unaligned(sums) }
    }

    #[inline(always)]
    unsafe fn load_centred_sums(self, sums: *const i32, offset: i32, _: *const i32) -> [f32; 4] {
        debug_assert_eq!(offset, 0, "stored activations have no offset");
        // SAFETY: guaranteed by the caller.
        unsafe { sums.cast::<[i32; 4]>().read_unaligned() }.map(|sum| sum as f32)
    }

    #[inline(always)]
    unsafe fn store_left(self, p: *mut u8, x: [f32; 4], zero: i32) {
        let x = self.float().round(x);
        let mut words = [0i16; 4];
        for i in 0..4 {
            // Stored without the zero point: min(round(x) + zero, 255) - zero. The zero point comes from the row's
            // minimum, so no lower clamp is needed.
            words[i] = (x[i] as i32).min(255 - zero) as i16;
        }
        // SAFETY: the caller guarantees 8 bytes.
        unsafe { p.cast::<[i16; 4]>().write_unaligned(words) }
    }

    #[inline(always)]
    fn offset(_: i32) -> i32 {
        // `store_left` has subtracted the zero point.
        0
    }
}
