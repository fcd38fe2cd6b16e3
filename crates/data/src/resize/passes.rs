//! The two inner loops of resizing, written so that the compiler turns them into SIMD: every
//! loop runs over a fixed number of lanes with one weight for all of them. They are compiled a
//! second time for AVX2, because the baseline of x86-64 has no 32-bit multiplication of lanes;
//! the arithmetic is integer, so both give the same bytes.

use super::{PRECISION_BITS, Taps, View};
use std::ops::Range;

/// Rows of the picture that the horizontal pass carries side by side.
const ROWS: usize = 8;
/// One pixel of each of those rows: all reds, all greens, all blues.
const LANES: usize = ROWS * 3;
/// Bytes of a row that the vertical pass carries side by side.
const COLUMNS: usize = 32;

const HALF: i32 = 1 << (PRECISION_BITS - 1);

fn to_byte(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// Calls the AVX2 copy of a loop where the machine has it, else the portable one.
macro_rules! with_avx2 {
    ($portable:ident, $avx2:ident, ($($argument:expr),*)) => {{
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature that the function is compiled for was found just above.
            return unsafe { $avx2($($argument),*) };
        }
        $portable($($argument),*)
    }};
}

/// Resamples the rows `rows` of the picture to the outputs of `taps`; gives RGB rows.
pub(super) fn horizontal(source: &View, rows: Range<usize>, taps: &Taps) -> Vec<u8> {
    with_avx2!(horizontal_lanes, horizontal_avx2, (source, rows, taps))
}

/// Resamples the columns `columns` of the picture to the outputs of `taps`; gives RGB rows.
pub(super) fn vertical(source: &View, columns: Range<usize>, taps: &Taps) -> Vec<u8> {
    with_avx2!(vertical_lanes, vertical_avx2, (source, columns, taps))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn horizontal_avx2(source: &View, rows: Range<usize>, taps: &Taps) -> Vec<u8> {
    horizontal_lanes(source, rows, taps)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn vertical_avx2(source: &View, columns: Range<usize>, taps: &Taps) -> Vec<u8> {
    vertical_lanes(source, columns, taps)
}

#[inline(always)]
fn horizontal_lanes(source: &View, rows: Range<usize>, taps: &Taps) -> Vec<u8> {
    let span = taps.span();
    let used = (span.start - source.left) * 3..(span.end - source.left) * 3;
    let mut inputs = source.bytes.chunks_exact(source.width * 3).skip(rows.start - source.top);
    let out_stride = taps.starts.len() * 3;
    let mut out = vec![0u8; rows.len() * out_stride];
    // A pixel's neighbours in a row are three bytes apart, which suits no SIMD load. Turning
    // eight rows on their side once makes every tap one contiguous load for all of them.
    let mut block = vec![[0u8; LANES]; span.len()];
    for out_rows in out.chunks_mut(ROWS * out_stride) {
        let lanes = out_rows.len() / out_stride;
        for (lane, input) in inputs.by_ref().take(lanes).enumerate() {
            for (pixel, lanes) in input[used.clone()].chunks_exact(3).zip(&mut block) {
                lanes[lane] = pixel[0];
                lanes[ROWS + lane] = pixel[1];
                lanes[2 * ROWS + lane] = pixel[2];
            }
        }
        for (x, (start, weights)) in taps.iter().enumerate() {
            let pixels = &block[start - span.start..][..weights.len()];
            let mut sums = [HALF; LANES];
            for (lanes, weight) in pixels.iter().zip(weights) {
                for (sum, value) in sums.iter_mut().zip(lanes) {
                    *sum = sum.wrapping_add(i32::from(*value).wrapping_mul(*weight));
                }
            }
            let bytes = sums.map(to_byte);
            for (lane, row) in out_rows.chunks_exact_mut(out_stride).enumerate() {
                row[x * 3] = bytes[lane];
                row[x * 3 + 1] = bytes[ROWS + lane];
                row[x * 3 + 2] = bytes[2 * ROWS + lane];
            }
        }
    }
    out
}

#[inline(always)]
fn vertical_lanes(source: &View, columns: Range<usize>, taps: &Taps) -> Vec<u8> {
    let stride = source.width * 3;
    let left = (columns.start - source.left) * 3;
    let out_stride = columns.len() * 3;
    let mut out = vec![0u8; taps.starts.len() * out_stride];
    for (row, (start, weights)) in out.chunks_exact_mut(out_stride).zip(taps.iter()) {
        let inputs = &source.bytes[(start - source.top) * stride..][..weights.len() * stride];
        let mut chunks = row.chunks_exact_mut(COLUMNS);
        let mut offset = left;
        for chunk in &mut chunks {
            let mut sums = [HALF; COLUMNS];
            for (input, weight) in inputs.chunks_exact(stride).zip(weights) {
                for (sum, value) in sums.iter_mut().zip(&input[offset..offset + COLUMNS]) {
                    *sum = sum.wrapping_add(i32::from(*value).wrapping_mul(*weight));
                }
            }
            for (byte, sum) in chunk.iter_mut().zip(sums) {
                *byte = to_byte(sum);
            }
            offset += COLUMNS;
        }
        for (x, byte) in chunks.into_remainder().iter_mut().enumerate() {
            let column = inputs.iter().skip(offset + x).step_by(stride);
            let sum = column
                .zip(weights)
                .fold(HALF, |sum, (value, weight)| sum.wrapping_add(i32::from(*value).wrapping_mul(*weight)));
            *byte = to_byte(sum);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Filter;
    use super::*;

    #[test]
    fn the_copy_for_this_machine_gives_the_same_bytes() {
        let (width, height) = (37, 29);
        let bytes: Vec<u8> = (0..width * height * 3).map(|i| (i * i * 31 + i / 7) as u8).collect();
        let view = View { bytes: &bytes, width, left: 0, top: 0 };
        for filter in [Filter::Box, Filter::Bicubic, Filter::Lanczos] {
            for length in [5, 23, 64] {
                let taps = Taps::new(width, 0.0, width as f32, length, 2..length - 1, filter);
                assert_eq!(horizontal(&view, 3..height, &taps), horizontal_lanes(&view, 3..height, &taps));
                let taps = Taps::new(height, 0.0, height as f32, length, 2..length - 1, filter);
                assert_eq!(vertical(&view, 3..width, &taps), vertical_lanes(&view, 3..width, &taps));
            }
        }
    }
}
