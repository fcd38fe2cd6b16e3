//! Dot products of bytes on x86-64: with VNNI, unsigned activations times signed weights, four terms at a time; without
//! it, both widened to 16 bits, two terms at a time. `vpmaddubsw` would be twice as wide, but its sums saturate. The
//! instruction for pairs is as old as x86-64 itself, so there is a path for machines that have nothing newer.

use std::arch::x86_64::*;

use super::path::{Dot, DotKernel};
use crate::simd::{Avx2, Avx512, Portable};

macro_rules! token {
    ($(#[$doc:meta])* $name:ident($float:ty) = $features:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name($float);

        impl $name {
            /// # Safety
            /// The machine must have the instructions.
            #[inline(always)]
            pub(super) unsafe fn new() -> Self {
                // SAFETY: they include those of the vectors of f32.
                $name(unsafe { <$float>::new() })
            }

            #[target_feature(enable = $features)]
            fn enabled<K: DotKernel>(self, kernel: K) -> K::Output {
                kernel.run(self)
            }

            /// Keeps kernels apart, as in [`crate::simd`].
            #[inline(never)]
            fn outlined<K: DotKernel>(self, kernel: K) -> K::Output {
                // SAFETY: `self` proves that the instructions are available.
                unsafe { self.enabled(kernel) }
            }
        }
    };
}

token! {
    /// Proof that the machine has what [`Avx512`] proves, and AVX-512 VNNI.
    Avx512Vnni(Avx512) = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma"
}
token! {
    /// Proof that the machine has what [`Avx512`] proves.
    Avx512Wide(Avx512) = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
}
token! {
    /// Proof that the machine has what [`Avx2`] proves, and AVX-VNNI.
    AvxVnni(Avx2) = "avx2,fma,avxvnni"
}
token! {
    /// Proof that the machine has what [`Avx2`] proves.
    Avx2Wide(Avx2) = "avx2,fma"
}

/// What the paths with the same vectors share.
macro_rules! common {
    ($float:ty, $sums:ty) => {
        type Float = $float;
        type Sums = $sums;

        #[inline(always)]
        fn vectorize<K: DotKernel>(self, kernel: K) -> K::Output {
            self.outlined(kernel)
        }

        #[inline(always)]
        fn float(self) -> $float {
            self.0
        }
    };
}

macro_rules! sums512 {
    () => {
        common!(Avx512, __m512i);
        const TILE_ROWS: usize = 8;
        const TILE_VECTORS: usize = 3;

        #[inline(always)]
        fn zero(self) -> __m512i {
            // SAFETY: `self` proves that the instructions are available.
            unsafe { _mm512_setzero_si512() }
        }

        #[inline(always)]
        unsafe fn store_sums(self, p: *mut i32, sums: __m512i) {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe { _mm512_storeu_si512(p.cast(), sums) }
        }

        #[inline(always)]
        unsafe fn load_total(self, sums: *const i32, offset: i32, weight_sums: *const i32) -> __m512 {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe {
                let extra = _mm512_mullo_epi32(_mm512_set1_epi32(offset), _mm512_loadu_si512(weight_sums.cast()));
                _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(sums.cast()), extra))
            }
        }
    };
}

macro_rules! sums256 {
    () => {
        common!(Avx2, __m256i);
        const TILE_ROWS: usize = 6;
        const TILE_VECTORS: usize = 2;

        #[inline(always)]
        fn zero(self) -> __m256i {
            // SAFETY: `self` proves that the instructions are available.
            unsafe { _mm256_setzero_si256() }
        }

        #[inline(always)]
        unsafe fn store_sums(self, p: *mut i32, sums: __m256i) {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe { _mm256_storeu_si256(p.cast(), sums) }
        }

        #[inline(always)]
        unsafe fn load_total(self, sums: *const i32, offset: i32, weight_sums: *const i32) -> __m256 {
            // SAFETY: as above; the caller vouches for the memory.
            unsafe {
                let extra = _mm256_mullo_epi32(_mm256_set1_epi32(offset), _mm256_loadu_si256(weight_sums.cast()));
                _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(sums.cast()), extra))
            }
        }
    };
}

/// Activations as bytes, four at a time.
macro_rules! unsigned_bytes {
    () => {
        const GROUP: usize = 4;
        const LEFT_BYTES: usize = 1;

        #[inline(always)]
        fn offset(zero: i32) -> i32 {
            zero
        }
    };
}

/// Activations less their zero as 16-bit numbers, two at a time.
macro_rules! centred_words {
    () => {
        const GROUP: usize = 2;
        const LEFT_BYTES: usize = 2;

        #[inline(always)]
        fn offset(_: i32) -> i32 {
            0
        }
    };
}

// SAFETY: 512-bit registers hold 16 f32, 16 i32 and 64 bytes.
unsafe impl Dot for Avx512Vnni {
    sums512!();
    unsigned_bytes!();
    type Left = __m512i;
    type Right = __m512i;

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> __m512i {
        // SAFETY: `self` proves that the instructions are available; the caller vouches for the memory.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_right(self, p: *const i8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    fn dot(self, left: __m512i, right: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm512_dpbusd_epi32(sums, left, right) }
    }

    #[inline(always)]
    unsafe fn store_left(self, p: *mut u8, x: __m512, zero: i32) {
        // SAFETY: as above; the caller vouches for 16 bytes.
        unsafe {
            let value = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(zero));
            _mm_storeu_si128(p.cast(), _mm512_cvtusepi32_epi8(value));
        }
    }
}

// SAFETY: 512-bit registers hold 16 f32, 16 i32 and 32 16-bit numbers.
unsafe impl Dot for Avx512Wide {
    sums512!();
    centred_words!();
    type Left = __m512i;
    type Right = __m512i;

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> __m512i {
        // SAFETY: `self` proves that the instructions are available; the caller vouches for the memory.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_right(self, p: *const i8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    fn dot(self, left: __m512i, right: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm512_add_epi32(sums, _mm512_madd_epi16(left, right)) }
    }

    #[inline(always)]
    unsafe fn store_left(self, p: *mut u8, x: __m512, zero: i32) {
        // SAFETY: as above; the caller vouches for 32 bytes.
        unsafe {
            let most = _mm512_set1_epi32(255 - zero);
            let value = _mm512_min_epi32(_mm512_cvtps_epi32(x), most);
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(value));
        }
    }
}

/// Eight numbers of at most 16 bits; larger ones become the nearest.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn narrow(x: __m256i) -> __m128i {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)) }
}

/// Stores `min(round(x) + zero, 255)` as bytes, provided that it is not negative.
///
/// # Safety
/// The machine must have AVX2, and 8 bytes be writable.
#[inline(always)]
unsafe fn store_bytes(p: *mut u8, x: __m256, zero: i32) {
    // SAFETY: the caller vouches for instructions and memory.
    unsafe {
        let value = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(zero));
        let words = narrow(value);
        _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words));
    }
}

// SAFETY: 256-bit registers hold 8 f32, 8 i32 and 32 bytes.
unsafe impl Dot for AvxVnni {
    sums256!();
    unsigned_bytes!();
    type Left = __m256i;
    type Right = __m256i;

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> __m256i {
        // SAFETY: `self` proves that the instructions are available; the caller vouches for the memory.
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_right(self, p: *const i8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }

    #[inline(always)]
    fn dot(self, left: __m256i, right: __m256i, sums: __m256i) -> __m256i {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm256_dpbusd_avx_epi32(sums, left, right) }
    }

    #[inline(always)]
    unsafe fn store_left(self, p: *mut u8, x: __m256, zero: i32) {
        // SAFETY: as above; the caller vouches for 8 bytes.
        unsafe { store_bytes(p, x, zero) }
    }
}

// SAFETY: 256-bit registers hold 8 f32, 8 i32 and 16 16-bit numbers.
unsafe impl Dot for Avx2Wide {
    sums256!();
    centred_words!();
    type Left = __m256i;
    type Right = __m256i;

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> __m256i {
        // SAFETY: `self` proves that the instructions are available; the caller vouches for the memory.
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_right(self, p: *const i8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    fn dot(self, left: __m256i, right: __m256i, sums: __m256i) -> __m256i {
        // SAFETY: `self` proves that the instructions are available.
        unsafe { _mm256_add_epi32(sums, _mm256_madd_epi16(left, right)) }
    }

    #[inline(always)]
    unsafe fn store_left(self, p: *mut u8, x: __m256, zero: i32) {
        // SAFETY: as above; the caller vouches for 16 bytes.
        unsafe {
            let value = _mm256_min_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(255 - zero));
            _mm_storeu_si128(p.cast(), narrow(value));
        }
    }
}

/// What every machine has: SSE2.
#[derive(Clone, Copy)]
pub(super) struct Sse2;

#[inline(never)]
fn outlined<K: DotKernel>(d: Sse2, kernel: K) -> K::Output {
    kernel.run(d)
}

// SAFETY: 128-bit registers hold 4 f32, 4 i32 and 8 16-bit numbers.
unsafe impl Dot for Sse2 {
    centred_words!();
    type Float = Portable;
    type Sums = __m128i;
    type Left = __m128i;
    type Right = __m128i;
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 2;

    #[inline(always)]
    fn vectorize<K: DotKernel>(self, kernel: K) -> K::Output {
        outlined(self, kernel)
    }

    #[inline(always)]
    fn float(self) -> Portable {
        Portable
    }

    #[inline(always)]
    fn zero(self) -> __m128i {
        // SAFETY: every x86-64 machine has SSE2.
        unsafe { _mm_setzero_si128() }
    }

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> __m128i {
        // SAFETY: as above; the caller vouches for the memory.
        unsafe { _mm_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_right(self, p: *const i8) -> __m128i {
        // SAFETY: as above.
        unsafe {
            let bytes = _mm_loadl_epi64(p.cast());
            _mm_srai_epi16::<8>(_mm_unpacklo_epi8(bytes, bytes))
        }
    }

    #[inline(always)]
    fn dot(self, left: __m128i, right: __m128i, sums: __m128i) -> __m128i {
        // SAFETY: every x86-64 machine has SSE2.
        unsafe { _mm_add_epi32(sums, _mm_madd_epi16(left, right)) }
    }

    #[inline(always)]
    unsafe fn store_sums(self, p: *mut i32, sums: __m128i) {
        // SAFETY: as above; the caller vouches for the memory.
        unsafe { _mm_storeu_si128(p.cast(), sums) }
    }

    #[inline(always)]
    unsafe fn load_total(self, sums: *const i32, offset: i32, _: *const i32) -> [f32; 4] {
        debug_assert_eq!(offset, 0, "activations are stored less their zero");
        let mut out = [0.0; 4];
        // SAFETY: as above; the caller vouches for the memory.
        unsafe { _mm_storeu_ps(out.as_mut_ptr(), _mm_cvtepi32_ps(_mm_loadu_si128(sums.cast()))) };
        out
    }

    #[inline(always)]
    unsafe fn store_left(self, p: *mut u8, x: [f32; 4], zero: i32) {
        // SAFETY: as above; the caller vouches for 8 bytes.
        unsafe {
            let value = _mm_cvtps_epi32(_mm_loadu_ps(x.as_ptr()));
            let words = _mm_min_epi16(_mm_packs_epi32(value, value), _mm_set1_epi16((255 - zero) as i16));
            _mm_storel_epi64(p.cast(), words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of the AVX-VNNI path that every machine with AVX2 can run.
    #[test]
    fn eight_numbers_become_bytes() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let x = [-3.0f32, -2.5, -1.5, 0.0, 0.5, 1.5, 251.6, 252.5];
        let mut bytes = [0u8; 8];
        // SAFETY: AVX2 was detected; both arrays have 8 elements.
        unsafe { store_bytes(bytes.as_mut_ptr(), _mm256_loadu_ps(x.as_ptr()), 3) };
        assert_eq!(bytes, [0, 1, 1, 3, 3, 5, 255, 255]);
    }
}
