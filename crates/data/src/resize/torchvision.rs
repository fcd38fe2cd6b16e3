//! Resizing as torchvision does it with tensors on a CPU, antialiased, columns first. The filters are Pillow's; the weights of
//! bytes have 15 bits instead of 22.

use super::{RoundHalfAway, resize_window, support, weight};
use crate::image::Image;
use std::ops::Range;
use vit_preprocess::Filter;

/// Weights before they are rounded.
struct ExactTaps {
    /// For each output of a window, its first input and the weights from there on.
    window: Vec<(usize, Vec<f64>)>,
    /// The largest weight of all outputs, also of those outside of the window.
    largest: f64,
}

impl ExactTaps {
    /// Taps of the outputs in `window`, of `length` outputs that cover `input` pixels.
    fn new(input: usize, length: usize, window: Range<usize>, filter: Filter) -> Self {
        let scale = input as f64 / length as f64;
        let widen = scale.max(1.0);
        let support = support(filter) * widen;
        let tap = |output: usize| {
            let centre = (output as f64 + 0.5) * scale;
            let start = ((centre - support + 0.5) as usize).min(input.saturating_sub(1));
            let end = ((centre + support + 0.5) as usize).clamp(start + 1, input.max(start + 1));
            let mut weights: Vec<f64> =
                (start..end).map(|x| weight(filter, (x as f64 - centre + 0.5) / widen)).collect();
            let sum: f64 = weights.iter().sum();
            if sum != 0.0 {
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            (start, weights)
        };
        let mut taps = ExactTaps { window: Vec::with_capacity(window.len()), largest: 0.0 };
        for output in 0..length {
            let tap = tap(output);
            taps.largest = tap.1.iter().fold(taps.largest, |largest, &weight| largest.max(weight));
            if window.contains(&output) {
                taps.window.push(tap);
            }
        }
        taps
    }

    fn span(&self) -> Range<usize> {
        let start = self.window.iter().map(|(start, _)| *start).min().unwrap_or(0);
        start..self.window.iter().map(|(start, weights)| start + weights.len()).max().unwrap_or(start)
    }

    /// The weights as integers of at most 15 bits, and their fractional bits.
    fn fixed(&self) -> (Vec<(usize, Vec<i32>)>, u32) {
        let fits = |bits: u32| ((0.5 + self.largest * f64::from(1 << bits)) as i64) < 1 << 15;
        let bits = (1..=22).take_while(|&bits| fits(bits)).last().unwrap_or(0);
        let round = |weight: &f64| (weight * f64::from(1 << bits)).round_half_away();
        (self.window.iter().map(|(start, weights)| (*start, weights.iter().map(round).collect())).collect(), bits)
    }
}

/// Values of an image's part, three per pixel, and which part it is.
struct PixelWindow<T> {
    values: Vec<T>,
    columns: Range<usize>,
    rows: Range<usize>,
}

impl<T: Copy> PixelWindow<T> {
    /// One pixel's channel.
    fn at(&self, x: usize, y: usize, channel: usize) -> T {
        self.values[((y - self.rows.start) * self.columns.len() + x - self.columns.start) * 3 + channel]
    }

    /// A window whose pixels are sums along rows (`down` false) or columns.
    fn summed<W, U>(
        &self,
        taps: &[(usize, Vec<W>)],
        window: Range<usize>,
        down: bool,
        sum: impl Fn(&mut dyn Iterator<Item = (&W, T)>) -> U,
    ) -> PixelWindow<U> {
        let (columns, rows) = if down { (self.columns.clone(), window) } else { (window, self.rows.clone()) };
        let mut values = Vec::with_capacity(columns.len() * rows.len() * 3);
        for y in rows.clone() {
            for x in columns.clone() {
                let (start, weights) = &taps[if down { y - rows.start } else { x - columns.start }];
                for channel in 0..3 {
                    let source =
                        |i: usize| if down { self.at(x, start + i, channel) } else { self.at(start + i, y, channel) };
                    values.push(sum(&mut weights.iter().enumerate().map(|(i, weight)| (weight, source(i)))));
                }
            }
        }
        PixelWindow { values, columns, rows }
    }
}

/// Resizes to `size` = (width, height) and returns the given columns and rows, without rounding.
pub(crate) fn resize_floats(
    image: &Image,
    size: (usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
    filter: Filter,
) -> Vec<f32> {
    if filter == Filter::Nearest {
        return resize_window(image, size, columns, rows, filter)
            .pixels()
            .iter()
            .map(|&byte| f32::from(byte))
            .collect();
    }
    let (across, down) = taps(image, size, &columns, &rows, filter);
    let sum = |terms: &mut dyn Iterator<Item = (&f64, f64)>| terms.map(|(weight, value)| weight * value).sum::<f64>();
    let whole = window_of(image, across.span(), down.span(), f64::from);
    let wide = whole.summed(&across.window, columns, false, sum);
    wide.summed(&down.window, rows, true, sum).values.iter().map(|&value| value as f32).collect()
}

/// As [`resize_floats`], to bytes.
pub(crate) fn resize_bytes(
    image: &Image,
    size: (usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
    filter: Filter,
) -> Image {
    let (width, height) = (columns.len(), rows.len());
    let filter = match filter {
        Filter::Nearest => return resize_window(image, size, columns, rows, filter),
        // torchvision has no Lanczos for tensors; transformers takes the cubic filter then.
        Filter::Lanczos => Filter::Bicubic,
        filter => filter,
    };
    let (across, down) = taps(image, size, &columns, &rows, filter);
    let mut pixels = window_of(image, across.span(), down.span(), i32::from);
    for (taps, window, vertical) in [(across, columns, false), (down, rows, true)] {
        let (taps, bits) = taps.fixed();
        let half = (1 << bits) >> 1;
        pixels = pixels.summed(&taps, window, vertical, |terms| {
            let sum = terms.fold(half, |sum, (weight, value)| sum + weight * value);
            (sum >> bits).clamp(0, 255)
        });
    }
    Image::from_parts(width, height, pixels.values.iter().map(|&value| value as u8).collect())
}

fn taps(
    image: &Image,
    (width, height): (usize, usize),
    columns: &Range<usize>,
    rows: &Range<usize>,
    filter: Filter,
) -> (ExactTaps, ExactTaps) {
    (
        ExactTaps::new(image.width(), width, columns.clone(), filter),
        ExactTaps::new(image.height(), height, rows.clone(), filter),
    )
}

fn window_of<T>(image: &Image, columns: Range<usize>, rows: Range<usize>, convert: fn(u8) -> T) -> PixelWindow<T> {
    let mut values = Vec::with_capacity(columns.len() * rows.len() * 3);
    for y in rows.clone() {
        values.extend(image.row(y)[columns.start * 3..columns.end * 3].iter().map(|&byte| convert(byte)));
    }
    PixelWindow { values, columns, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(width: usize, height: usize) -> Image {
        let value = |i: usize| {
            let (x, y, c) = (i / 3 % width, i / 3 / width, i % 3);
            ((37 * x + 91 * y + 53 * c + 7 * x * y) % 256) as u8
        };
        Image::from_rgb(width, height, (0..width * height * 3).map(value).collect()).unwrap()
    }

    /// Sums of all bytes and the first bytes of the last two rows, by torchvision 0.29.2; floats of the last row.
    #[test]
    fn bytes_and_floats_are_those_of_torchvision() {
        use Filter::{Bicubic, Bilinear};
        for (from, to, filter, sum, bytes, floats) in [
            ((13, 11), (5, 7), Bilinear, 13614, [138, 105, 130, 149, 127, 135], [0.6425099, 0.4755557, 0.5227714]),
            ((13, 11), (5, 7), Bicubic, 13609, [139, 100, 128, 153, 131, 138], [0.6494808, 0.4800033, 0.538772]),
            ((6, 9), (11, 8), Bilinear, 34102, [102, 155, 208, 129, 121, 174], [0.7935295, 0.1480392, 0.3558824]),
            ((6, 9), (11, 8), Bicubic, 34085, [91, 168, 231, 129, 124, 187], [0.867389, 0.1014501, 0.3092932]),
        ] {
            let image = image(from.0, from.1);
            let resized = resize_bytes(&image, to, 0..to.0, 0..to.1, filter);
            assert_eq!(resized.pixels().iter().map(|&b| u32::from(b)).sum::<u32>(), sum, "{filter} {from:?}");
            assert_eq!(resized.row(to.1 - 2)[..6], bytes, "{filter} {from:?}");
            // A window has the values of the whole.
            let part = resize_bytes(&image, to, 1..4, 2..to.1, filter);
            assert_eq!(part.row(0), &resized.row(2)[3..12]);
            let last = resize_floats(&image, to, 0..1, to.1 - 1..to.1, filter);
            for (found, expected) in last.iter().zip(floats) {
                assert!((found / 255.0 - expected).abs() < 1e-6, "{filter} {from:?}: {found} {expected}");
            }
        }
    }
}
