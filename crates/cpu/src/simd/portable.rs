//! Vectors of 4 in plain Rust: for x86-64 without AVX2 and FMA, and for architectures other than x86-64 and AArch64.
//! Multiplication and addition are rounded separately: a fused multiply-add would be a library call.

use super::{Kernel, Simd};

/// The path that runs on every machine.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Registers are allocated well only if each register tile stays a separate function.
#[inline(never)]
fn outlined<K: Kernel>(s: Portable, kernel: K) -> K::Output {
    kernel.run(s)
}

macro_rules! lanewise {
    ($($name:ident($($arg:ident),*) = $body:expr;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($arg: [f32; 4]),*) -> [f32; 4] {
                let mut out = [0.0; 4];
                for (i, lane) in out.iter_mut().enumerate() {
                    $(let $arg = $arg[i];)*
                    *lane = $body;
                }
                out
            }
        )*
    };
}

// SAFETY: the vector is an array of 4 f32.
unsafe impl Simd for Portable {
    type V = [f32; 4];
    type M = [bool; 4];
    const LANES: usize = 4;
    // 8 sums, 2 vectors of B, one of A and a product take 12 of the 16 registers of SSE.
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 2;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        outlined(self, kernel)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 4] {
        [x; 4]
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [f32; 4] {
        // SAFETY: the caller guarantees the memory.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> [f32; 4] {
        let mut lanes = [0.0f32; 4];
        debug_assert!(n <= 4);
        // SAFETY: n is at most 4 and the caller guarantees the memory at p.
        unsafe { std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n) };
        lanes
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller guarantees the memory.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, v: [f32; 4], n: usize) {
        debug_assert!(n <= 4);
        // SAFETY: n is at most 4 and the caller guarantees the memory at p.
        unsafe { std::ptr::copy_nonoverlapping(v.as_ptr(), p, n) };
    }

    /// Does nothing: plain Rust has no prefetch.
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}

    #[inline(always)]
    fn first_or(self, v: [f32; 4], n: usize, fill: [f32; 4]) -> [f32; 4] {
        let mut out = fill;
        for i in 0..4 {
            if i < n {
                out[i] = v[i];
            }
        }
        out
    }

    lanewise! {
        add(a, b) = a + b;
        sub(a, b) = a - b;
        mul(a, b) = a * b;
        div(a, b) = a / b;
        mul_add(a, b, c) = a * b + c;
        neg_mul_add(a, b, c) = c - a * b;
        min(a, b) = if a < b { a } else { b };
        max(a, b) = if a > b { a } else { b };
        max_or_nan(a, b) = if a > b || a.is_nan() { a } else { b };
        sqrt(a) = a.sqrt();
        abs(a) = a.abs();
        // The sum of 1.5 * 2^23 and a magnitude below 2^22 is between 2^23 and 2^24, where the f32 are the integers, so
        // the addition rounds to the nearest one, ties to even. The library call is far slower.
        round(a) = if a.abs() < 4_194_304.0 { (a + 12_582_912.0) - 12_582_912.0 } else { a };
    }

    #[inline(always)]
    fn swap_pairs(self, a: [f32; 4]) -> [f32; 4] {
        [a[1], a[0], a[3], a[2]]
    }

    #[inline(always)]
    fn scale_by_power(self, a: [f32; 4], n: [f32; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        for i in 0..4 {
            // Two factors: 2^n itself may be outside the range of normal f32.
            let n = n[i] as i32;
            let half = n >> 1;
            let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
            out[i] = a[i] * power(half) * power(n - half);
        }
        out
    }

    #[inline(always)]
    fn lt(self, a: [f32; 4], b: [f32; 4]) -> [bool; 4] {
        [a[0] < b[0], a[1] < b[1], a[2] < b[2], a[3] < b[3]]
    }

    #[inline(always)]
    fn select(self, mask: [bool; 4], a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        let mut out = b;
        for i in 0..4 {
            if mask[i] {
                out[i] = a[i];
            }
        }
        out
    }

    #[inline(always)]
    fn sum(self, a: [f32; 4]) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }

    #[inline(always)]
    fn largest(self, a: [f32; 4]) -> f32 {
        let even = if a[0] > a[2] { a[0] } else { a[2] };
        let odd = if a[1] > a[3] { a[1] } else { a[3] };
        if even > odd { even } else { odd }
    }
}
