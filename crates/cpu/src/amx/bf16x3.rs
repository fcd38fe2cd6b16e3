//! Numbers in pieces of 8 binary places, two numbers at a time.

use std::arch::x86_64::*;

/// Pieces of a number.
pub(crate) const PIECES: usize = 3;

/// Writes the pieces of two vectors: `PIECES` vectors that are `apart` bytes from each other, the largest pieces first. Each
/// lane has the piece of `x` in its lower half and that of `y` in its upper one.
///
/// # Safety
/// The vectors must be writable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn split(mut x: __m512, mut y: __m512, to: *mut u8, apart: usize) {
    let half = _mm512_set1_epi32(0x8000);
    let upper = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
    for piece in 0..PIECES {
        let (mut first, mut second) = (_mm512_castps_si512(x), _mm512_castps_si512(y));
        // What is left after two pieces fits into the third as it is.
        if piece + 1 < PIECES {
            // The nearest number of 8 places; what is left has a sign of its own.
            first = _mm512_and_si512(_mm512_add_epi32(first, half), upper);
            second = _mm512_and_si512(_mm512_add_epi32(second, half), upper);
            x = _mm512_sub_ps(x, _mm512_castsi512_ps(first));
            y = _mm512_sub_ps(y, _mm512_castsi512_ps(second));
        }
        // The upper half of the second, and the first below it.
        let pair = _mm512_ternarylogic_epi32::<0xEC>(second, _mm512_srli_epi32::<16>(first), upper);
        // SAFETY: the caller vouches for the memory.
        unsafe { _mm512_storeu_si512(to.add(piece * apart).cast(), pair) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn pieces_add_up_to_the_number() {
        if !Isa::Avx512.is_available() {
            eprintln!("skipped: this machine has no avx512");
            return;
        }
        let numbers = [0.0, -0.0, 1.0, 0.1, -0.1, 3.999_999_8, 1.0 / 3.0, 65_537.0, 16_777_215.0, 1e-30, -7e30, 2.5e-5];
        for x in numbers {
            for y in numbers {
                let mut pairs = [[0u32; 16]; PIECES];
                // SAFETY: the machine has the instructions, and there is room for three vectors.
                unsafe { split(_mm512_set1_ps(x), _mm512_set1_ps(y), pairs.as_mut_ptr().cast(), 64) };
                let sum = |piece: fn(u32) -> u32| {
                    let pieces = pairs.map(|pair| f32::from_bits(piece(pair[7])));
                    // Each but the last is all that 8 places can say.
                    let [first, second, third] = pieces.map(f64::from);
                    assert!((second + third).abs() <= first.abs() / 256.0, "{pieces:?}");
                    assert!(third.abs() <= first.abs() / 65_536.0, "{pieces:?}");
                    first + second + third
                };
                assert_eq!(sum(|pair| pair << 16), f64::from(x));
                assert_eq!(sum(|pair| pair & 0xFFFF_0000), f64::from(y));
            }
        }
    }
}
