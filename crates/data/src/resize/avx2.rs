//! The horizontal pass with AVX2. Its multiply-add takes pairs of 16-bit integers, so a weight is split into its upper
//! and lower 16 bits, and two taps are summed at once. Sums wrap modulo 2^32 as in the portable pass, so the bytes are
//! the same. The compiler's vertical pass is as fast as a hand-written one.

use super::passes::{HALF, PaddedRows};
use super::{FilterTaps, PRECISION_BITS, PixelView};
use std::arch::x86_64::*;
use std::ops::Range;

/// Whether the weights can be split.
pub(super) fn suits(taps: &FilterTaps) -> bool {
    taps.weights.iter().all(|weight| weight.unsigned_abs() < 1 << 30)
}

/// Rows per iteration: two in each register, two registers to hide the latency.
const ROWS: usize = 4;
/// Taps per load: 16 bytes hold five pixels, of which four are used.
const TAPS: usize = 4;
const LOAD: usize = 16;

/// Four weights: lower halves of the first two and of the last two, then the upper halves.
type SplitWeights = [i32; 4];

fn split(weights: &[i32]) -> SplitWeights {
    let mut halves = [[0u8; 4]; 4];
    for (tap, weight) in weights.iter().enumerate() {
        let low = *weight as i16;
        let high = ((weight - i32::from(low)) >> 16) as i16;
        let (pair, at) = (tap / 2, tap % 2 * 2);
        halves[pair][at..at + 2].copy_from_slice(&low.to_ne_bytes());
        halves[pair + 2][at..at + 2].copy_from_slice(&high.to_ne_bytes());
    }
    halves.map(i32::from_ne_bytes)
}

/// Resamples the rows `rows` of the image to the outputs of `taps`; returns RGB rows.
#[target_feature(enable = "avx2")]
pub(super) fn horizontal(source: &PixelView, rows: Range<usize>, taps: &FilterTaps) -> Vec<u8> {
    let span = taps.span();
    // For each output, its first byte in a row and the range of its weights.
    let mut weights: Vec<SplitWeights> = Vec::with_capacity(taps.starts.len() * taps.stride.div_ceil(TAPS));
    let outputs: Vec<(usize, Range<usize>)> = taps
        .iter()
        .map(|(start, of_output)| {
            let first = weights.len();
            weights.extend(of_output.chunks(TAPS).map(split));
            ((start - span.start) * 3, first..weights.len())
        })
        .collect();
    let out_stride = taps.starts.len() * 3;
    let mut out = vec![0u8; rows.len() * out_stride];
    let inputs = PaddedRows::new(source, rows.clone(), span, taps.stride.next_multiple_of(TAPS) * 3 + LOAD);
    for (chunk, out_rows) in out.chunks_mut(ROWS * out_stride).enumerate() {
        let first_row = rows.start + chunk * ROWS;
        let count = out_rows.len() / out_stride;
        // The last row is repeated to fill the group.
        let four = std::array::from_fn(|row| inputs.row(first_row + row.min(count - 1)));
        for (x, (at, of_output)) in outputs.iter().enumerate() {
            let pixels = pixels(four, *at, &weights[of_output.clone()]);
            for (row, pixel) in out_rows.chunks_exact_mut(out_stride).zip(pixels) {
                row[x * 3..x * 3 + 3].copy_from_slice(&pixel.to_le_bytes()[..3]);
            }
        }
    }
    out
}

/// One output of four rows: red in the lowest byte, then green and blue.
#[inline]
#[target_feature(enable = "avx2")]
fn pixels(rows: [&[u8]; ROWS], at: usize, weights: &[SplitWeights]) -> [u32; ROWS] {
    // Both reds, both greens and both blues of two pixels, widened to 16 bits.
    let pair = |r: i8| {
        let lane = _mm_setr_epi8(r, -1, r + 3, -1, r + 1, -1, r + 4, -1, r + 2, -1, r + 5, -1, -1, -1, -1, -1);
        _mm256_broadcastsi128_si256(lane)
    };
    let pairs = [pair(0), pair(6)];
    let mut low = [_mm256_set1_epi32(HALF); 2];
    let mut high = [_mm256_setzero_si256(); 2];
    for (group, weights) in weights.iter().enumerate() {
        let at = at + group * TAPS * 3;
        for half in 0..2 {
            let bytes = _mm256_inserti128_si256::<1>(
                _mm256_castsi128_si256(load(&rows[half * 2][at..at + LOAD])),
                load(&rows[half * 2 + 1][at..at + LOAD]),
            );
            for (pair, order) in pairs.into_iter().enumerate() {
                let values = _mm256_shuffle_epi8(bytes, order);
                let add = |sum, weights| _mm256_add_epi32(sum, _mm256_madd_epi16(values, _mm256_set1_epi32(weights)));
                low[half] = add(low[half], weights[pair]);
                high[half] = add(high[half], weights[pair + 2]);
            }
        }
    }
    let finish = |half: usize| {
        let sum = _mm256_add_epi32(low[half], _mm256_slli_epi32::<16>(high[half]));
        _mm256_srai_epi32::<{ PRECISION_BITS as i32 }>(sum)
    };
    let words = _mm256_packs_epi32(finish(0), finish(1));
    let bytes = _mm256_packus_epi16(words, words);
    // Each 128-bit half holds a row of the first pair and a row of the second.
    let (first, second) = (_mm256_extract_epi64::<0>(bytes) as u64, _mm256_extract_epi64::<2>(bytes) as u64);
    [first as u32, second as u32, (first >> 32) as u32, (second >> 32) as u32]
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m128i {
    assert!(bytes.len() >= LOAD);
    // SAFETY: the slice has the 16 bytes that are read.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
