//! The two passes of resizing: the portable ones, and the choice for this CPU. The portable loops run over a fixed
//! number of lanes with one weight for all lanes, so that the compiler vectorises them. The arithmetic is integer, so
//! all passes give the same bytes.

use super::{FilterTaps, PRECISION_BITS, PixelView};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use std::ops::Range;

/// Rows that the horizontal pass computes together.
const ROWS: usize = 8;
/// One pixel of each of those rows: all reds, all greens, all blues.
const LANES: usize = ROWS * 3;
/// Bytes of a row that the vertical pass computes together.
const COLUMNS: usize = 32;

/// The initial sum: truncating the fractional bits then rounds.
pub(super) const HALF: i32 = 1 << (PRECISION_BITS - 1);

fn to_byte(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

/// Resamples the rows `rows` of the image to the outputs of `taps`; returns RGB rows.
pub(super) fn horizontal(source: &PixelView, rows: Range<usize>, taps: &FilterTaps) -> Vec<u8> {
    #[cfg(target_arch = "x86_64")]
    {
        if avx512::is_available() && avx512::suits(taps) {
            // SAFETY: the CPU has the features that the function is compiled for.
            return unsafe { avx512::horizontal(source, rows, taps) };
        }
        if std::arch::is_x86_feature_detected!("avx2") && avx2::suits(taps) {
            // SAFETY: the CPU has the feature that the function is compiled for.
            return unsafe { avx2::horizontal(source, rows, taps) };
        }
    }
    horizontal_lanes(source, rows, taps)
}

/// Resamples the columns `columns` of the image to the outputs of `taps`; returns RGB rows.
pub(super) fn vertical(source: &PixelView, columns: Range<usize>, taps: &FilterTaps) -> Vec<u8> {
    #[cfg(target_arch = "x86_64")]
    {
        if avx512::is_available() && avx512::weights_fit(taps) {
            // SAFETY: the CPU has the features that the function is compiled for.
            return unsafe { avx512::vertical(source, columns, taps) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has the feature that the function is compiled for.
            return unsafe { vertical_avx2(source, columns, taps) };
        }
    }
    vertical_lanes(source, columns, taps)
}

/// Baseline x86-64 has no 32-bit multiplication of lanes, so the loop is also compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn vertical_avx2(source: &PixelView, columns: Range<usize>, taps: &FilterTaps) -> Vec<u8> {
    vertical_lanes(source, columns, taps)
}

fn horizontal_lanes(source: &PixelView, rows: Range<usize>, taps: &FilterTaps) -> Vec<u8> {
    let span = taps.span();
    let used = (span.start - source.left) * 3..(span.end - source.left) * 3;
    let mut inputs = source.bytes.chunks_exact(source.width * 3).skip(rows.start - source.top);
    let out_stride = taps.starts.len() * 3;
    let mut out = vec![0u8; rows.len() * out_stride];
    // Neighbouring pixels are three bytes apart, which suits no SIMD load. Transposing eight rows makes every tap one
    // contiguous load.
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
fn vertical_lanes(source: &PixelView, columns: Range<usize>, taps: &FilterTaps) -> Vec<u8> {
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

/// The used part of some rows, padded so that loads may read beyond it. The padding is usually the rest of the image;
/// only the last rows are copied.
#[cfg(target_arch = "x86_64")]
pub(super) struct PaddedRows<'a> {
    bytes: &'a [u8],
    stride: usize,
    /// The image row of the first row in `bytes`.
    top: usize,
    /// Bytes of a row before the used part.
    offset: usize,
    /// Length of the used part and its padding.
    length: usize,
    /// The first row whose padding is outside of the image; it and all later rows are copies.
    copies_from: usize,
    copies: Vec<u8>,
}

#[cfg(target_arch = "x86_64")]
impl<'a> PaddedRows<'a> {
    pub(super) fn new(source: &PixelView<'a>, rows: Range<usize>, columns: Range<usize>, padding: usize) -> Self {
        let stride = source.width * 3;
        let offset = (columns.start - source.left) * 3;
        let used = columns.len() * 3;
        let length = used + padding;
        let end = |row: usize| (row - source.top) * stride + offset + length;
        let copies_from =
            rows.clone().rev().take_while(|row| end(*row) > source.bytes.len()).last().unwrap_or(rows.end);
        let mut copies = vec![0; (rows.end - copies_from) * length];
        for (copy, row) in copies.chunks_exact_mut(length).zip(copies_from..) {
            copy[..used].copy_from_slice(&source.bytes[(row - source.top) * stride + offset..][..used]);
        }
        Self { bytes: source.bytes, stride, top: source.top, offset, length, copies_from, copies }
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &[u8] {
        if row < self.copies_from {
            &self.bytes[(row - self.top) * self.stride + self.offset..][..self.length]
        } else {
            &self.copies[(row - self.copies_from) * self.length..][..self.length]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Filter;
    use super::*;
    use proptest::prelude::*;

    /// The definition: one sum after the other.
    fn reference(
        taps: &FilterTaps,
        others: Range<usize>,
        value: impl Fn(usize, usize, usize) -> u8,
    ) -> Vec<Vec<[u8; 3]>> {
        let sum = |other: usize, start: usize, weights: &[i32], channel: usize| {
            let terms = weights.iter().enumerate();
            to_byte(terms.fold(HALF, |sum, (tap, weight)| {
                sum.wrapping_add(i32::from(value(other, start + tap, channel)).wrapping_mul(*weight))
            }))
        };
        let output = |other| taps.iter().map(move |(start, weights)| [0, 1, 2].map(|c| sum(other, start, weights, c)));
        others.map(|other| output(other).collect()).collect()
    }

    type Pass = fn(&PixelView, Range<usize>, &FilterTaps) -> Vec<u8>;

    /// All horizontal and all vertical passes that this CPU can run.
    fn passes(taps: &FilterTaps) -> (Vec<Pass>, Vec<Pass>) {
        let mut across: Vec<Pass> = vec![horizontal, horizontal_lanes];
        let mut down: Vec<Pass> = vec![vertical, vertical_lanes];
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the CPU has the feature.
                across.push(|source, rows, taps| unsafe { avx2::horizontal(source, rows, taps) });
                // SAFETY: the feature was found.
                down.push(|source, columns, taps| unsafe { vertical_avx2(source, columns, taps) });
            }
            if avx512::is_available() && avx512::weights_fit(taps) {
                // Also where it is not the fastest. SAFETY: the features were found.
                across.push(|source, rows, taps| unsafe { avx512::horizontal(source, rows, taps) });
                // SAFETY: the features were found.
                down.push(|source, columns, taps| unsafe { avx512::vertical(source, columns, taps) });
            }
        }
        (across, down)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn all_passes_give_the_bytes_of_the_definition(
            (width, height) in (1usize..150, 1usize..60),
            length in 1usize..120,
            (a, b, c, d) in any::<(prop::sample::Index, prop::sample::Index, prop::sample::Index, prop::sample::Index)>(),
            (from, to) in (0.0f32..0.4, 0.6f32..=1.0),
            filter in prop::sample::select(Filter::ALL[1..].to_vec()),
            seed in any::<u32>(),
            contrast in any::<bool>(),
        ) {
            let some = |a: prop::sample::Index, b: prop::sample::Index, length: usize| {
                let (a, b) = (a.index(length), b.index(length));
                a.min(b)..a.max(b) + 1
            };
            let mut state = seed;
            let bytes: Vec<u8> = (0..width * height * 3).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let byte = (state >> 24) as u8;
                // Black and white next to each other go furthest outside of what a byte can hold.
                if contrast { if byte < 128 { 0 } else { 255 } } else { byte }
            }).collect();
            let view = PixelView { bytes: &bytes, width, left: 0, top: 0 };
            let window = some(a, b, length);

            let (from_x, to_x) = (from * width as f32, to * width as f32);
            let taps = FilterTaps::new(width, from_x, to_x, length, window.clone(), filter);
            let rows = some(c, d, height);
            let expected = reference(&taps, rows.clone(), |y, x, c| bytes[(y * width + x) * 3 + c]).concat().concat();
            for (number, pass) in passes(&taps).0.iter().enumerate() {
                prop_assert!(pass(&view, rows.clone(), &taps) == expected, "horizontal pass {number}");
            }

            let (from_y, to_y) = (from * height as f32, to * height as f32);
            let taps = FilterTaps::new(height, from_y, to_y, length, window, filter);
            let columns = some(c, d, width);
            let turned = reference(&taps, columns.clone(), |x, y, c| bytes[(y * width + x) * 3 + c]);
            let expected: Vec<u8> = (0..taps.starts.len()).flat_map(|y| turned.iter().flat_map(move |c| c[y])).collect();
            for (number, pass) in passes(&taps).1.iter().enumerate() {
                prop_assert!(pass(&view, columns.clone(), &taps) == expected, "vertical pass {number}");
            }
        }
    }
}
