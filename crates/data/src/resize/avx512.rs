//! Both passes with AVX-512 VNNI and VBMI (Intel since Ice Lake, AMD since Zen 4). The dot-product instruction
//! multiplies unsigned by signed bytes and sums four products, so a weight is split into three signed bytes. Sums wrap
//! modulo 2^32 as in the portable passes, so the bytes are the same.

use super::passes::{HALF, PaddedRows};
use super::{FilterTaps, PRECISION_BITS, PixelView};
use std::arch::x86_64::*;
use std::ops::Range;

/// Whether the CPU has the features that the passes are compiled for.
pub(super) fn is_available() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f") && has!("avx512bw") && has!("avx512vbmi") && has!("avx512vnni")
}

/// Whether the horizontal pass can be used and pays: the weights can be split, and at least half of the lanes are in
/// use, which holds down to a fifth of the size.
pub(super) fn suits(taps: &FilterTaps) -> bool {
    const HALF_OF_THEM: usize = OUTPUTS / 2;
    taps.starts.len() >= HALF_OF_THEM
        && taps.starts.windows(HALF_OF_THEM).all(|starts| fits_window(starts[0], starts[HALF_OF_THEM - 1]))
        && weights_fit(taps)
}

/// Whether the weights can be split; those of all filters can.
pub(super) fn weights_fit(taps: &FilterTaps) -> bool {
    taps.weights.iter().all(|weight| weight.unsigned_abs() < MAX_WEIGHT)
}

/// Below this, the highest of the three bytes cannot overflow.
const MAX_WEIGHT: u32 = 127 << 16;
/// Rows that share the weights of a block while they are in registers or in the L1 cache.
const ROWS: usize = 8;
/// Outputs per block.
const OUTPUTS: usize = 16;
/// Taps per dot product.
const TAPS: usize = 4;
/// Bytes that one permutation selects from.
const WINDOW: usize = 128;
const LANES: usize = 64;

/// Whether the first taps of an output that starts at pixel `start` are inside the window that starts at pixel `first`.
fn fits_window(first: usize, start: usize) -> bool {
    start >= first && (start - first) * 3 + TAPS * 3 <= WINDOW
}

/// `weight` = high * 2^16 + middle * 2^8 + low.
fn split(weight: i32) -> [i8; 3] {
    let low = weight as i8;
    let rest = (weight - i32::from(low)) >> 8;
    let middle = rest as i8;
    [low, middle, ((rest - i32::from(middle)) >> 8) as i8]
}

/// Up to sixteen neighbouring outputs.
struct OutputBlock {
    outputs: Range<usize>,
    /// The first byte of a row in the window of the first taps.
    window: usize,
    /// For each lane, the positions of its four reds in the window.
    reds: [u8; LANES],
    /// For each four taps, the three bytes of the weights, in the order of the lanes.
    weights: Vec<[[i8; LANES]; 3]>,
}

fn blocks(taps: &FilterTaps, left: usize) -> Vec<OutputBlock> {
    let mut blocks: Vec<OutputBlock> = Vec::with_capacity(taps.starts.len().div_ceil(OUTPUTS));
    let mut first = 0;
    for (output, (start, weights)) in taps.iter().enumerate() {
        let is_full = blocks.last().is_none_or(|block| block.outputs.len() == OUTPUTS);
        if is_full || !fits_window(first, start) {
            first = start;
            blocks.push(OutputBlock {
                outputs: output..output,
                window: (start - left) * 3,
                reds: [0; LANES],
                weights: Vec::with_capacity(taps.stride.div_ceil(TAPS)),
            });
        }
        let Some(block) = blocks.last_mut() else { unreachable!("one was pushed") };
        let lane = block.outputs.len() * TAPS;
        block.outputs.end += 1;
        for (tap, red) in block.reds[lane..lane + TAPS].iter_mut().enumerate() {
            *red = ((start - first + tap) * 3) as u8;
        }
        for (group, weights) in weights.chunks(TAPS).enumerate() {
            if group == block.weights.len() {
                block.weights.push([[0; LANES]; 3]);
            }
            for (tap, weight) in weights.iter().enumerate() {
                for (part, value) in block.weights[group].iter_mut().zip(split(*weight)) {
                    part[lane + tap] = value;
                }
            }
        }
    }
    blocks
}

/// Resamples the rows `rows` of the image to the outputs of `taps`; returns RGB rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
pub(super) fn horizontal(source: &PixelView, rows: Range<usize>, taps: &FilterTaps) -> Vec<u8> {
    let span = taps.span();
    let blocks = blocks(taps, span.start);
    let out_stride = taps.starts.len() * 3;
    let mut out = vec![0u8; rows.len() * out_stride];
    let inputs = PaddedRows::new(source, rows.clone(), span, taps.stride.next_multiple_of(TAPS) * 3 + WINDOW);
    for (chunk, out_rows) in out.chunks_mut(ROWS * out_stride).enumerate() {
        let first_row = rows.start + chunk * ROWS;
        for block in &blocks {
            for (row, out_row) in out_rows.chunks_exact_mut(out_stride).enumerate() {
                let place = &mut out_row[block.outputs.start * 3..block.outputs.end * 3];
                block_of_row(inputs.row(first_row + row), block, place);
            }
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
fn block_of_row(row: &[u8], block: &OutputBlock, out: &mut [u8]) {
    let reds = load(&block.reds);
    // Greens are one byte after the reds, blues two.
    let positions = [reds, _mm512_add_epi8(reds, _mm512_set1_epi8(1)), _mm512_add_epi8(reds, _mm512_set1_epi8(2))];
    let mut sums = [[_mm512_set1_epi32(HALF), _mm512_setzero_si512(), _mm512_setzero_si512()]; 3];
    for (group, weights) in block.weights.iter().enumerate() {
        let window = &row[block.window + group * TAPS * 3..][..WINDOW];
        let (lower, upper) = (load(&window[..LANES]), load(&window[LANES..]));
        for (sums, positions) in sums.iter_mut().zip(positions) {
            let pixels = _mm512_permutex2var_epi8(lower, positions, upper);
            for (sum, part) in sums.iter_mut().zip(weights) {
                *sum = _mm512_dpbusd_epi32(*sum, pixels, load(part));
            }
        }
    }
    let [reds, greens, blues] = sums.map(|sums| {
        let value = _mm512_max_epi32(finish(sums), _mm512_setzero_si512());
        _mm512_cvtusepi32_epi8(value)
    });
    let planes = _mm512_inserti64x4::<1>(
        _mm512_castsi256_si512(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(reds), greens)),
        _mm256_castsi128_si256(blues),
    );
    store(out, _mm512_permutexvar_epi8(load(&INTERLEAVE), planes));
}

/// For each byte of sixteen RGB pixels, its position in sixteen reds, greens and blues.
const INTERLEAVE: [u8; LANES] = {
    let mut order = [0; LANES];
    let mut byte = 0;
    while byte < OUTPUTS * 3 {
        order[byte] = (byte % 3 * OUTPUTS + byte / 3) as u8;
        byte += 1;
    }
    order
};

/// Resamples the columns `columns` of the image to the outputs of `taps`; returns RGB rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
pub(super) fn vertical(source: &PixelView, columns: Range<usize>, taps: &FilterTaps) -> Vec<u8> {
    let stride = source.width * 3;
    let used = (columns.start - source.left) * 3..(columns.end - source.left) * 3;
    let mut out = vec![0u8; taps.starts.len() * used.len()];
    let mut groups: Vec<[i32; 3]> = Vec::with_capacity(taps.stride.div_ceil(TAPS));
    for (out_row, (start, weights)) in out.chunks_exact_mut(used.len()).zip(taps.iter()) {
        groups.clear();
        groups.extend(weights.chunks(TAPS).map(|weights| {
            let mut parts = [[0u8; TAPS]; 3];
            for (tap, weight) in weights.iter().enumerate() {
                for (part, value) in parts.iter_mut().zip(split(*weight)) {
                    part[tap] = value as u8;
                }
            }
            parts.map(i32::from_ne_bytes)
        }));
        // Beyond the last tap the weights are zero, so any row will do.
        let row = |tap: usize| {
            let y = start + tap.min(weights.len() - 1) - source.top;
            &source.bytes[y * stride..][used.clone()]
        };
        for (chunk, out) in out_row.chunks_mut(LANES).enumerate() {
            let columns = chunk * LANES..chunk * LANES + out.len();
            let mut sums = [[_mm512_set1_epi32(HALF), _mm512_setzero_si512(), _mm512_setzero_si512()]; 4];
            for (group, parts) in groups.iter().enumerate() {
                let [a, b, c, d] = std::array::from_fn(|tap| load(&row(group * TAPS + tap)[columns.clone()]));
                // Four bytes of a column side by side, for columns 0..4, 4..8, 8..12, 12..16 of each 16.
                let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
                let (ab_high, cd_high) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
                let pixels = [
                    _mm512_unpacklo_epi16(ab, cd),
                    _mm512_unpackhi_epi16(ab, cd),
                    _mm512_unpacklo_epi16(ab_high, cd_high),
                    _mm512_unpackhi_epi16(ab_high, cd_high),
                ];
                for (part, weights) in parts.iter().enumerate() {
                    let weights = _mm512_set1_epi32(*weights);
                    for (sums, pixels) in sums.iter_mut().zip(pixels) {
                        sums[part] = _mm512_dpbusd_epi32(sums[part], pixels, weights);
                    }
                }
            }
            // Packing works within 128-bit lanes, too, which restores the order of the columns.
            let [a, b, c, d] = sums.map(|sums| finish(sums));
            store(out, _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d)));
        }
    }
    out
}

/// The combined sums without their fractional bits: -512 to 511.
#[inline]
#[target_feature(enable = "avx512f")]
fn finish([low, middle, high]: [__m512i; 3]) -> __m512i {
    let upper = _mm512_add_epi32(middle, _mm512_slli_epi32::<8>(high));
    _mm512_srai_epi32::<PRECISION_BITS>(_mm512_add_epi32(low, _mm512_slli_epi32::<8>(upper)))
}

/// Loads up to 64 bytes, zero-filled.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load<T: Byte>(bytes: &[T]) -> __m512i {
    if bytes.len() >= LANES {
        // SAFETY: `T` is a byte, and the slice has the 64 that are read.
        return unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    }
    // SAFETY: the mask has a bit for each byte of the slice; the others are not read.
    unsafe { _mm512_maskz_loadu_epi8((1 << bytes.len()) - 1, bytes.as_ptr().cast()) }
}

/// Stores the first bytes of `values`, as many as `out` holds, up to 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn store(out: &mut [u8], values: __m512i) {
    if out.len() >= LANES {
        // SAFETY: the slice has the 64 bytes that are written.
        return unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), values) };
    }
    // SAFETY: the mask has a bit for each byte of the slice; the others are not written.
    unsafe { _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), (1 << out.len()) - 1, values) }
}

/// A type of one byte.
///
/// # Safety
/// The type has a size of one byte and no padding.
unsafe trait Byte: Copy {}
// SAFETY: one byte.
unsafe impl Byte for u8 {}
// SAFETY: one byte.
unsafe impl Byte for i8 {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_weight_are_the_weight() {
        let largest = MAX_WEIGHT as i32 - 1;
        for weight in (-largest..=largest).step_by(997).chain([-largest, -129, -128, 0, 127, 128, largest]) {
            let [low, middle, high] = split(weight).map(i32::from);
            assert_eq!(high * 65536 + middle * 256 + low, weight);
        }
    }
}
