//! Dot products of bytes on x86-64. With VNNI: unsigned activations times signed weights, four terms at a time. Without
//! it: both as 16-bit integers, two terms at a time, by `pmaddwd`, which is part of SSE2, so the last path runs on
//! every x86-64 machine. Activations are stored so, as `q - zero`; weights are widened as they are loaded.
//! (`vpmaddubsw` would take bytes, twice as many, but its sums saturate.)

use std::arch::x86_64::*;

use super::path::{Dot, DotKernel, operations, portable_floats, token};
use crate::simd::{Avx2, Avx512, Simd};

token! {
    /// Proof that the machine has the instructions of [`Avx512`] and AVX-512 VNNI.
    Avx512Vnni(Avx512) = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma"
}
token! {
    /// Proof that the machine has the instructions of [`Avx512`]: the path without VNNI, which widens weights to 16
    /// bits.
    Avx512Widening(Avx512) = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
}
token! {
    /// Proof that the machine has the instructions of [`Avx2`] and AVX-VNNI.
    AvxVnni(Avx2) = "avx2,fma,avxvnni"
}
token! {
    /// Proof that the machine has the instructions of [`Avx2`]: the path without AVX-VNNI, which widens weights to 16
    /// bits.
    Avx2Widening(Avx2) = "avx2,fma"
}

/// The operations that paths of one vector width share, from the names of their intrinsics.
macro_rules! vectors {
    (
        $float:ty, $floats:ty, $ints:ty, tile: [$rows:literal, $vectors:literal],
        $zero:ident, $splat:ident, $load:ident, $store:ident, $sub:ident, $mul:ident, $to_float:ident
    ) => {
        type Float = $float;
        type Sums = $ints;
        type Left = $ints;
        type Right = $ints;
        const TILE_ROWS: usize = $rows;
        const TILE_VECTORS: usize = $vectors;

        #[inline(always)]
        fn vectorize<K: DotKernel>(self, kernel: K) -> K::Output {
            self.outlined(kernel)
        }

        #[inline(always)]
        fn float(self) -> $float {
            self.0
        }

        #[inline(always)]
        fn zero(self) -> $ints {
            // SAFETY: `self` proves that the instructions are available.
            unsafe { $zero() }
        }

        #[inline(always)]
        unsafe fn load_left(self, p: *const u8) -> $ints {
            // SAFETY: as above; the caller guarantees the memory.
            unsafe { $splat(p.cast::<i32>().read_unaligned()) }
        }

        #[inline(always)]
        unsafe fn store_sums(self, p: *mut i32, sums: $ints) {
            // SAFETY: as above; the caller guarantees the memory.
            unsafe { $store(p.cast(), sums) }
        }

        #[inline(always)]
        unsafe fn load_centred_sums(self, sums: *const i32, offset: i32, weight_sums: *const i32) -> $floats {
            // SAFETY: as above; the caller guarantees the memory.
            unsafe { $to_float($sub($load(sums.cast()), $mul($splat(offset), $load(weight_sums.cast())))) }
        }
    };
}

macro_rules! vectors512 {
    () => {
        vectors! {
            Avx512, __m512, __m512i, tile: [8, 3], _mm512_setzero_si512, _mm512_set1_epi32, _mm512_loadu_si512,
            _mm512_storeu_si512, _mm512_sub_epi32, _mm512_mullo_epi32, _mm512_cvtepi32_ps
        }
    };
}

macro_rules! vectors256 {
    () => {
        vectors! {
            Avx2, __m256, __m256i, tile: [6, 2], _mm256_setzero_si256, _mm256_set1_epi32, _mm256_loadu_si256,
            _mm256_storeu_si256, _mm256_sub_epi32, _mm256_mullo_epi32, _mm256_cvtepi32_ps
        }
    };
}

/// Activations as unsigned bytes, four at a time.
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

/// Activations minus their zero point as 16-bit integers, two at a time.
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
    vectors512!();
    unsigned_bytes!();
    operations! {
        load_right(p) = _mm512_loadu_si512(p.cast());
        dot(left, right, sums) = _mm512_dpbusd_epi32(sums, left, right);
        store_left(p, x, zero) = {
            let value = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(zero));
            // Saturates at 255.
            _mm_storeu_si128(p.cast(), _mm512_cvtusepi32_epi8(value));
        };
    }
}

// SAFETY: 512-bit registers hold 16 f32, 16 i32 and 32 16-bit integers.
unsafe impl Dot for Avx512Widening {
    vectors512!();
    centred_words!();
    operations! {
        load_right(p) = _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast()));
        dot(left, right, sums) = _mm512_add_epi32(sums, _mm512_madd_epi16(left, right));
        store_left(p, x, zero) = {
            let value = _mm512_min_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(255 - zero));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(value));
        };
    }
}

/// Eight integers narrowed to 16 bits with saturation.
///
/// # Safety
/// The machine must have AVX2.
#[inline(always)]
unsafe fn narrow(x: __m256i) -> __m128i {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)) }
}

/// Stores `min(round(x) + zero, 255)`, which must not be negative, as bytes.
///
/// # Safety
/// The machine must have AVX2, and 8 bytes must be writable.
#[inline(always)]
unsafe fn store_bytes(p: *mut u8, x: __m256, zero: i32) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let value = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(zero));
        let words = narrow(value);
        _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words));
    }
}

// SAFETY: 256-bit registers hold 8 f32, 8 i32 and 32 bytes.
unsafe impl Dot for AvxVnni {
    vectors256!();
    unsigned_bytes!();
    operations! {
        load_right(p) = _mm256_loadu_si256(p.cast());
        dot(left, right, sums) = _mm256_dpbusd_avx_epi32(sums, left, right);
        store_left(p, x, zero) = store_bytes(p, x, zero);
    }
}

// SAFETY: 256-bit registers hold 8 f32, 8 i32 and 16 16-bit integers.
unsafe impl Dot for Avx2Widening {
    vectors256!();
    centred_words!();
    operations! {
        load_right(p) = _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast()));
        dot(left, right, sums) = _mm256_add_epi32(sums, _mm256_madd_epi16(left, right));
        store_left(p, x, zero) = {
            let value = _mm256_min_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(255 - zero));
            _mm_storeu_si128(p.cast(), narrow(value));
        };
    }
}

/// SSE2, which every x86-64 machine has.
#[derive(Clone, Copy)]
pub(super) struct Sse2;

// SAFETY: 128-bit registers hold 4 f32, 4 i32 and 8 16-bit integers.
unsafe impl Dot for Sse2 {
    portable_floats!();
    centred_words!();
    type Sums = __m128i;
    type Left = __m128i;
    type Right = __m128i;

    #[inline(always)]
    fn zero(self) -> __m128i {
        // SAFETY: every x86-64 machine has SSE2.
        unsafe { _mm_setzero_si128() }
    }

    #[inline(always)]
    unsafe fn load_left(self, p: *const u8) -> __m128i {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { _mm_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn store_sums(self, p: *mut i32, sums: __m128i) {
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { _mm_storeu_si128(p.cast(), sums) }
    }

    #[inline(always)]
    unsafe fn load_centred_sums(self, sums: *const i32, offset: i32, _: *const i32) -> [f32; 4] {
        debug_assert_eq!(offset, 0, "stored activations have no offset");
        let mut out = [0.0; 4];
        // SAFETY: as above; the caller guarantees the memory.
        unsafe { _mm_storeu_ps(out.as_mut_ptr(), _mm_cvtepi32_ps(_mm_loadu_si128(sums.cast()))) };
        out
    }

    operations! {
        load_right(p) = {
            let bytes = _mm_loadl_epi64(p.cast());
            _mm_srai_epi16::<8>(_mm_unpacklo_epi8(bytes, bytes))
        };
        dot(left, right, sums) = _mm_add_epi32(sums, _mm_madd_epi16(left, right));
        store_left(p, x, zero) = {
            let value = _mm_cvtps_epi32(_mm_loadu_ps(x.as_ptr()));
            let words = _mm_min_epi16(_mm_packs_epi32(value, value), _mm_set1_epi16((255 - zero) as i16));
            _mm_storel_epi64(p.cast(), words);
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of the AVX-VNNI path that every machine with AVX2 can run.
    #[test]
    fn eight_values_become_bytes() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let x = [-3.0f32, -2.5, -1.5, 0.0, 0.5, 1.5, 252.5, 300.0];
        let mut bytes = [0u8; 8];
        // SAFETY: AVX2 was detected; both arrays have 8 elements.
        unsafe { store_bytes(bytes.as_mut_ptr(), _mm256_loadu_ps(x.as_ptr()), 3) };
        assert_eq!(bytes, [0, 1, 1, 3, 3, 5, 255, 255]);
    }
}
