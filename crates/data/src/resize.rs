//! Resizing with the same bytes as Pillow's `Image.resize` on 8-bit RGB, since models are trained behind Pillow: two
//! passes, each rounded to bytes, with weights in 22-bit fixed point. This module holds the filters, the weights and
//! the order of the passes; the loops are in `passes`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod passes;
pub(crate) mod torchvision;

use crate::image::Image;
use passes::{horizontal, vertical};
use std::f64::consts::PI;
use std::ops::Range;
use thiserror::Error;

pub use vit_preprocess::{Filter, UnknownFilter};

/// Half the width of the filter in pixels, when not shrinking.
fn support(filter: Filter) -> f64 {
    match filter {
        Filter::Nearest => 0.0,
        Filter::Box => 0.5,
        Filter::Bilinear | Filter::Hamming => 1.0,
        Filter::Bicubic => 2.0,
        Filter::Lanczos => 3.0,
    }
}

/// The weight at distance `x` from the centre.
fn weight(filter: Filter, x: f64) -> f64 {
    let distance = x.abs();
    match filter {
        // Half open, so that a pixel exactly between two outputs contributes to one of them.
        Filter::Nearest | Filter::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
        Filter::Bilinear => (1.0 - distance).max(0.0),
        Filter::Hamming if distance < 1.0 => {
            // Pillow's constants are f32, which changes bytes.
            sinc(distance) * (f64::from(0.54f32) + f64::from(0.46f32) * (distance * PI).cos())
        }
        Filter::Bicubic if distance < 1.0 => (1.5 * distance - 2.5) * distance * distance + 1.0,
        Filter::Bicubic if distance < 2.0 => (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5,
        Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
        _ => 0.0,
    }
}

/// An error of resizing.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ResizeError {
    /// The source box is empty or not inside the image.
    #[error("the box from ({left}, {top}) to ({right}, {bottom}) is not inside the {width} x {height} image")]
    Box {
        /// Left edge of the box.
        left: f64,
        /// Upper edge of the box.
        top: f64,
        /// Right edge of the box.
        right: f64,
        /// Lower edge of the box.
        bottom: f64,
        /// Width of the image.
        width: usize,
        /// Height of the image.
        height: usize,
    },
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        1.0
    } else {
        let x = x * PI;
        x.sin() / x
    }
}

/// Resizes the whole image to `width` x `height`; a size of zero counts as one.
pub fn resize(image: &Image, width: usize, height: usize, filter: Filter) -> Image {
    let (width, height) = (width.max(1), height.max(1));
    let plan = Resize { source: whole(image), size: (width, height), filter };
    plan.window(image, 0..width, 0..height)
}

/// Resizes the part of the image inside `source` = (left, top, right, bottom), whose edges may lie between pixels, to
/// `width` x `height`. The filter also reads pixels just outside the box.
pub fn resize_box(
    image: &Image,
    source: (f64, f64, f64, f64),
    width: usize,
    height: usize,
    filter: Filter,
) -> Result<Image, ResizeError> {
    let (left, top, right, bottom) = source;
    // Pillow stores the box as f32.
    let narrow = [left as f32, top as f32, right as f32, bottom as f32];
    let inside = narrow[0] >= 0.0
        && narrow[1] >= 0.0
        && f64::from(narrow[2]) <= image.width() as f64
        && f64::from(narrow[3]) <= image.height() as f64;
    // NaN fails this comparison.
    if !(inside && narrow[2] > narrow[0] && narrow[3] > narrow[1]) {
        return Err(ResizeError::Box { left, top, right, bottom, width: image.width(), height: image.height() });
    }
    let (width, height) = (width.max(1), height.max(1));
    let plan = Resize { source: narrow, size: (width, height), filter };
    Ok(plan.window(image, 0..width, 0..height))
}

/// The box of the whole image.
fn whole(image: &Image) -> [f32; 4] {
    [0.0, 0.0, image.width() as f32, image.height() as f32]
}

/// Resizes to `size` = (width, height) but computes only the given columns and rows. The bytes are those of resizing
/// everything and cropping; the memory is that of the crop, also for an image one pixel wide and a hundred thousand
/// high.
pub(crate) fn resize_window(
    image: &Image,
    size: (usize, usize),
    columns: Range<usize>,
    rows: Range<usize>,
    filter: Filter,
) -> Image {
    let plan = Resize { source: whole(image), size, filter };
    plan.window(image, columns, rows)
}

struct Resize {
    source: [f32; 4],
    size: (usize, usize),
    filter: Filter,
}

impl Resize {
    fn window(&self, image: &Image, columns: Range<usize>, rows: Range<usize>) -> Image {
        let [left, top, right, bottom] = self.source;
        let (width, height) = self.size;
        if self.filter == Filter::Nearest {
            let xs = nearest_positions(left, right, width, image.width(), columns);
            let ys = nearest_positions(top, bottom, height, image.height(), rows);
            return pick(image, &xs, &ys);
        }
        let unchanged = |from: f32, to: f32, new: usize, old: usize| new == old && from == 0.0 && to == new as f32;
        let across = (!unchanged(left, right, width, image.width()))
            .then(|| FilterTaps::new(image.width(), left, right, width, columns.clone(), self.filter));
        let down = (!unchanged(top, bottom, height, image.height()))
            .then(|| FilterTaps::new(image.height(), top, bottom, height, rows.clone(), self.filter));

        // The rows and columns that the other pass reads.
        let rows_used = down.as_ref().map_or(rows.clone(), FilterTaps::span);
        let columns_used = across.as_ref().map_or(columns.clone(), FilterTaps::span);
        let view = PixelView { bytes: image.pixels(), width: image.width(), left: 0, top: 0 };
        let pixels = match (&across, &down) {
            (Some(across), Some(down)) if self.is_vertical_first(image) => {
                let bands = vertical(&view, columns_used.clone(), down);
                let view =
                    PixelView { bytes: &bands, width: columns_used.len(), left: columns_used.start, top: rows.start };
                horizontal(&view, rows.clone(), across)
            }
            (Some(across), Some(down)) => {
                let bands = horizontal(&view, rows_used.clone(), across);
                let view = PixelView { bytes: &bands, width: columns.len(), left: columns.start, top: rows_used.start };
                vertical(&view, columns.clone(), down)
            }
            (Some(across), None) => horizontal(&view, rows.clone(), across),
            (None, Some(down)) => vertical(&view, columns.clone(), down),
            (None, None) => {
                let mut pixels = Vec::with_capacity(rows.len() * columns.len() * 3);
                for y in rows.clone() {
                    pixels.extend_from_slice(&image.row(y)[columns.start * 3..columns.end * 3]);
                }
                pixels
            }
        };
        Image::from_parts(columns.len(), rows.len(), pixels)
    }

    /// The order of the passes changes the intermediate rounding, so it is Pillow's: horizontal first, but since Pillow
    /// 13 vertical first if the height shrinks by far more pixels. The size of the whole image decides, also if only a
    /// box of it is resized.
    fn is_vertical_first(&self, image: &Image) -> bool {
        let (width, height) = self.size;
        let fewer_rows = image.height().saturating_sub(height);
        let fewer_columns = image.width().saturating_sub(width);
        fewer_rows > fewer_columns.saturating_mul(2)
    }
}

/// Rows of pixels and their position in the image.
struct PixelView<'a> {
    bytes: &'a [u8],
    width: usize,
    left: usize,
    top: usize,
}

/// Fractional bits of the weights: 32, less 8 for the byte and 2 for sums outside of 0..1.
const PRECISION_BITS: u32 = 32 - 8 - 2;

/// The weights of one direction: output `i` is the sum over `k` of
/// `weights[i * stride + k] * input[starts[i] + k]`.
struct FilterTaps {
    starts: Vec<usize>,
    counts: Vec<usize>,
    weights: Vec<i32>,
    stride: usize,
}

impl FilterTaps {
    /// Weights for the outputs in `window`, of `length` outputs covering `from..to` of an input
    /// with `input` pixels.
    fn new(input: usize, from: f32, to: f32, length: usize, window: Range<usize>, filter: Filter) -> Self {
        let scale = f64::from(to - from) / length as f64;
        let widen = scale.max(1.0);
        let support = support(filter) * widen;
        let stride = (support.ceil() as usize * 2 + 1).min(input.max(1));
        let mut taps = FilterTaps {
            starts: Vec::with_capacity(window.len()),
            counts: Vec::with_capacity(window.len()),
            weights: vec![0; window.len() * stride],
            stride,
        };
        let mut exact = Vec::with_capacity(stride);
        for (output, fixed) in window.zip(taps.weights.chunks_exact_mut(stride)) {
            let centre = f64::from(from) + (output as f64 + 0.5) * scale;
            // `as` truncates towards zero and saturates, which the edges rely on.
            let start = ((centre - support + 0.5) as usize).min(input);
            let end = ((centre + support + 0.5) as usize).min(input).max(start);
            exact.clear();
            exact.extend(
                (start..end.min(start + stride)).map(|x| weight(filter, (x as f64 - centre + 0.5) * (1.0 / widen))),
            );
            let sum: f64 = exact.iter().sum();
            for (weight, fixed) in exact.iter().zip(fixed) {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                *fixed = (weight * f64::from(1 << PRECISION_BITS)).round_half_away();
            }
            taps.starts.push(start);
            taps.counts.push(exact.len());
        }
        taps
    }

    /// The inputs that any output uses.
    fn span(&self) -> Range<usize> {
        let start = self.starts.iter().copied().min().unwrap_or(0);
        let ends = self.starts.iter().zip(&self.counts).map(|(s, n)| s + n);
        start..ends.max().unwrap_or(start)
    }

    /// For each output, its first input and its weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        self.starts
            .iter()
            .zip(&self.counts)
            .zip(self.weights.chunks_exact(self.stride))
            .map(|((start, count), weights)| (*start, &weights[..*count]))
    }
}

/// Unlike `f64::round`: adding 0.5 may itself round.
trait RoundHalfAway {
    fn round_half_away(self) -> i32;
}

impl RoundHalfAway for f64 {
    fn round_half_away(self) -> i32 {
        (if self < 0.0 { self - 0.5 } else { self + 0.5 }) as i32
    }
}

/// From this size on, Pillow cannot hold the image, so there are no bytes to agree with; positions are multiplied
/// instead of added up.
const FAR: usize = 1 << 24;

/// The input pixel under the centre of each output in `window`, `None` outside of the image.
fn nearest_positions(from: f32, to: f32, length: usize, input: usize, window: Range<usize>) -> Vec<Option<usize>> {
    let step = f64::from(to - from) / length as f64;
    let mut position = f64::from(from) + step * 0.5;
    if window.start < FAR {
        // Pillow adds the step repeatedly; a multiplication sometimes gives other pixels.
        for _ in 0..window.start {
            position += step;
        }
    } else {
        position += step * window.start as f64;
    }
    window
        .map(|_| {
            let under = (position >= 0.0 && position < input as f64).then_some(position as usize);
            position += step;
            under
        })
        .collect()
}

/// The image of the given columns and rows, black for `None`.
fn pick(image: &Image, xs: &[Option<usize>], ys: &[Option<usize>]) -> Image {
    let mut pixels = vec![0; xs.len() * ys.len() * 3];
    for (row, y) in pixels.chunks_exact_mut(xs.len() * 3).zip(ys) {
        let Some(source) = y.map(|y| image.row(y)) else {
            continue;
        };
        for (pixel, x) in row.chunks_exact_mut(3).zip(xs) {
            if let Some(x) = x {
                pixel.copy_from_slice(&source[x * 3..x * 3 + 3]);
            }
        }
    }
    Image::from_parts(xs.len(), ys.len(), pixels)
}
