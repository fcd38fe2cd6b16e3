//! Resizing as torchvision does it with tensors on a CPU, antialiased, columns first. The filters are Pillow's; the weights of
//! bytes have 15 bits instead of 22, and floats are computed in f32 with the rounding of PyTorch's binaries for x86.

use super::{RoundHalfAway, pick, support, weight};
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
        sum: impl Fn(&[W], &dyn Fn(usize) -> T) -> U,
    ) -> PixelWindow<U> {
        let (columns, rows) = if down { (self.columns.clone(), window) } else { (window, self.rows.clone()) };
        let mut values = Vec::with_capacity(columns.len() * rows.len() * 3);
        for y in rows.clone() {
            for x in columns.clone() {
                let (start, weights) = &taps[if down { y - rows.start } else { x - columns.start }];
                for channel in 0..3 {
                    let source =
                        |i: usize| if down { self.at(x, start + i, channel) } else { self.at(start + i, y, channel) };
                    values.push(sum(weights, &source));
                }
            }
        }
        PixelWindow { values, columns, rows }
    }
}

/// f32 weights of the outputs in `window`, of `length` outputs that cover `input` pixels: for each its first input and the
/// weights from there on.
fn float_taps(input: usize, length: usize, window: Range<usize>, filter: Filter) -> Vec<(usize, Vec<f32>)> {
    let scale = input as f32 / length as f32;
    let widen = scale.max(1.0);
    let (support, inverse) = (support(filter) as f32 * widen, 1.0 / widen);
    let tap = |output: usize| {
        // PyTorch's 0.5 is a double.
        let centre = (f64::from(scale) * (output as f64 + 0.5)) as f32;
        let start = ((f64::from(centre - support) + 0.5) as usize).min(input.saturating_sub(1));
        let end = ((f64::from(centre + support) + 0.5) as usize).clamp(start + 1, input.max(start + 1));
        let distance = |x: usize| ((f64::from(x as f32 - centre) + 0.5) * f64::from(inverse)) as f32;
        let mut weights: Vec<f32> = (start..end).map(|x| float_weight(filter, distance(x))).collect();
        let sum: f32 = weights.iter().sum();
        if sum != 0.0 {
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        (start, weights)
    };
    window.map(tap).collect()
}

/// The weight at distance `x` from the centre, with fused multiplications and additions.
fn float_weight(filter: Filter, x: f32) -> f32 {
    const A: f32 = -0.5;
    let x = x.abs();
    match filter {
        Filter::Bilinear => (1.0 - x).max(0.0),
        Filter::Bicubic if x < 1.0 => ((A + 2.0).mul_add(x, -(A + 3.0)) * x).mul_add(x, 1.0),
        Filter::Bicubic if x < 2.0 => A.mul_add(x, -5.0 * A).mul_add(x, 8.0 * A).mul_add(x, -4.0 * A),
        filter => weight(filter, f64::from(x)) as f32,
    }
}

/// The weighted sum of an output: products are rounded in groups of four after the first, and fused with the addition in the
/// rest, as the vectorised loop of PyTorch's binaries does.
fn float_sum(weights: &[f32], value: &dyn Fn(usize) -> f32) -> f32 {
    let grouped = (weights.len() - 1) / 4 * 4;
    (1..weights.len()).fold(weights[0] * value(0), |sum, i| match i <= grouped {
        true => sum + weights[i] * value(i),
        false => weights[i].mul_add(value(i), sum),
    })
}

/// The span of inputs that taps read.
fn span<W>(taps: &[(usize, Vec<W>)]) -> Range<usize> {
    let start = taps.iter().map(|(start, _)| *start).min().unwrap_or(0);
    start..taps.iter().map(|(start, weights)| start + weights.len()).max().unwrap_or(start)
}

/// Resizes to `size` = (width, height) and returns the given columns and rows, as values from 0 to 1.
pub(crate) fn resize_floats(
    image: &Image,
    size: (usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
    filter: Filter,
) -> Vec<f32> {
    if filter == Filter::Nearest {
        return nearest(image, size, columns, rows).pixels().iter().map(|&byte| to_unit(byte)).collect();
    }
    let across = float_taps(image.width(), size.0, columns.clone(), filter);
    let down = float_taps(image.height(), size.1, rows.clone(), filter);
    let whole = window_of(image, span(&across), span(&down), to_unit);
    let wide = whole.summed(&across, columns, false, float_sum);
    wide.summed(&down, rows, true, float_sum).values
}

/// A byte from 0 to 1.
fn to_unit(byte: u8) -> f32 {
    f32::from(byte) * (1.0 / 255.0)
}

/// As [`resize_floats`], to bytes.
pub(crate) fn resize_bytes(
    image: &Image,
    size: (usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
    filter: Filter,
) -> Image {
    if filter == Filter::Nearest {
        return nearest(image, size, columns, rows);
    }
    let (width, height) = (columns.len(), rows.len());
    let across = ExactTaps::new(image.width(), size.0, columns.clone(), filter);
    let down = ExactTaps::new(image.height(), size.1, rows.clone(), filter);
    let mut pixels = window_of(image, span(&across.window), span(&down.window), i32::from);
    for (taps, window, vertical) in [(across, columns, false), (down, rows, true)] {
        let (taps, bits) = taps.fixed();
        let half = (1 << bits) >> 1;
        pixels = pixels.summed(&taps, window, vertical, |weights, value| {
            let sum = weights.iter().enumerate().fold(half, |sum, (i, weight)| sum + weight * value(i));
            (sum >> bits).clamp(0, 255)
        });
    }
    Image::from_parts(width, height, pixels.values.iter().map(|&value| value as u8).collect())
}

/// The mode `nearest-exact`, by which transformers resamples.
fn nearest(image: &Image, (width, height): (usize, usize), columns: Range<usize>, rows: Range<usize>) -> Image {
    // The centre of an output between two inputs goes to the one or the other by f32's rounding, with a fused
    // multiplication and subtraction.
    let positions = |input: usize, length: usize, window: Range<usize>| -> Vec<Option<usize>> {
        let scale = input as f32 / length as f32;
        let under = |output: usize| scale.mul_add(output as f32 + 0.5, -0.5).max(0.0) + 0.5;
        window.map(|output| Some((under(output) as usize).min(input - 1))).collect()
    };
    pick(image, &positions(image.width(), width, columns), &positions(image.height(), height, rows))
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

    /// The inputs that torchvision 0.29.2 takes where a centre is between two of them.
    #[test]
    fn nearest_rounds_as_torchvision() {
        let line = |width: usize| Image::from_rgb(width, 1, (0..width * 3).map(|i| (i / 3) as u8).collect()).unwrap();
        for (input, length, output, expected) in
            [(62, 279, 49, 11), (236, 243, 121, 118), (224, 268, 167, 140), (12, 246, 20, 1), (6, 249, 41, 1)]
        {
            let resized = resize_bytes(&line(input), (length, 1), 0..length, 0..1, Filter::Nearest);
            assert_eq!(resized.row(0)[output * 3], expected, "{input} to {length}, output {output}");
        }
    }

    /// Sums of all bytes and the first bytes of the last two rows, by torchvision 0.29.2; floats of the last row.
    #[test]
    fn bytes_and_floats_are_those_of_torchvision() {
        use Filter::{Bicubic, Bilinear};
        for (from, to, filter, sum, bytes, floats) in [
            ((13, 11), (5, 7), Bilinear, 13614, [138, 105, 130, 149, 127, 135], [0.6425099, 0.47555566, 0.52277136]),
            ((13, 11), (5, 7), Bicubic, 13609, [139, 100, 128, 153, 131, 138], [0.6494808, 0.48000333, 0.538772]),
            ((6, 9), (11, 8), Bilinear, 34102, [102, 155, 208, 129, 121, 174], [0.79352945, 0.14803922, 0.35588238]),
            ((6, 9), (11, 8), Bicubic, 34085, [91, 168, 231, 129, 124, 187], [0.86738896, 0.10145006, 0.30929318]),
            ((90, 70), (11, 8), Bilinear, 33748, [128, 125, 127, 130, 128, 126], [0.48950514, 0.5281614, 0.4694484]),
            ((90, 70), (11, 8), Bicubic, 33753, [127, 124, 127, 130, 129, 125], [0.48667103, 0.53883505, 0.46475068]),
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
                assert_eq!(*found, expected, "{filter} {from:?}");
            }
        }
    }
}
