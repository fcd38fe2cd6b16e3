//! The inner loops of affine maps, with Pillow's arithmetic: f64 for interpolation, 16.16 fixed point for the nearest
//! pixel of a rotation, repeated addition for that of a translation.

#[cfg(target_arch = "x86_64")]
use super::avx2::{self, Avx2Proof};
use crate::image::Image;

/// Nearest-neighbour sampling.
pub(super) fn nearest(image: &mut Image, matrix: &[f64; 6], fill: [u8; 3]) {
    let [a, b, c, d, e, f] = *matrix;
    if b == 0.0 && d == 0.0 {
        return scale(image, matrix, fill);
    }
    let (width, height) = (image.width() as f64, image.height() as f64);
    let fits = |x: f64, y: f64| (x * a + y * b + c).abs() < 32768.0 && (x * d + y * e + f).abs() < 32768.0;
    let start = (c + a * 0.5 + b * 0.5, f + d * 0.5 + e * 0.5);
    if fits(0.0, 0.0) && fits(width, height) && fits(0.0, height) && fits(width, 0.0) {
        let fixed = |value: f64| (value * 65536.0 + 0.5).floor() as i32;
        let [a, b, d, e] = [a, b, d, e].map(fixed);
        let (mut x_start, mut y_start) = (fixed(start.0), fixed(start.1));
        pick_rows(image, fill, |set| {
            let (mut x, mut y) = (x_start, y_start);
            set.iter_mut().for_each(|place| {
                *place = (i64::from(x >> 16), i64::from(y >> 16));
                (x, y) = (x.wrapping_add(a), y.wrapping_add(d));
            });
            (x_start, y_start) = (x_start.wrapping_add(b), y_start.wrapping_add(e));
        });
    } else {
        // Pillow sums these in another order.
        let (mut x_start, mut y_start) = (c + b * 0.5 + a * 0.5, f + e * 0.5 + d * 0.5);
        pick_rows(image, fill, |set| {
            let (mut x, mut y) = (x_start, y_start);
            set.iter_mut().for_each(|place| {
                *place = (cut(x), cut(y));
                (x, y) = (x + a, y + d);
            });
            (x_start, y_start) = (x_start + b, y_start + e);
        });
    }
}

/// A map without rotation: columns and rows are independent.
fn scale(image: &mut Image, matrix: &[f64; 6], fill: [u8; 3]) {
    let mut y = matrix[5] + matrix[4] * 0.5;
    pick_rows(image, fill, |set| {
        let mut x = matrix[2] + matrix[0] * 0.5;
        let row = cut(y);
        set.iter_mut().for_each(|place| {
            *place = (cut(x), row);
            x += matrix[0];
        });
        y += matrix[4];
    });
}

/// Truncated towards zero; negative positions are outside.
fn cut(value: f64) -> i64 {
    if value < 0.0 { -1 } else { value as i64 }
}

/// Copies every pixel from its position in `places`, row by row.
fn pick_rows(image: &mut Image, fill: [u8; 3], mut places: impl FnMut(&mut [(i64, i64)])) {
    let (width, height) = (image.width(), image.height());
    let source = image.pixels().as_chunks::<3>().0.to_vec();
    let mut from = vec![(0, 0); width];
    for row in image.pixels_mut().chunks_exact_mut(width * 3) {
        places(&mut from);
        for (pixel, (x, y)) in row.as_chunks_mut::<3>().0.iter_mut().zip(&from) {
            let inside = (0..width as i64).contains(x) && (0..height as i64).contains(y);
            *pixel = if inside { source[*y as usize * width + *x as usize] } else { fill };
        }
    }
}

/// Pixels of four bytes (one unused) with a replicated border, so that interpolation needs no bounds checks.
pub(super) struct BorderedImage {
    pixels: Vec<[u8; 4]>,
    stride: usize,
}

/// The reach of interpolation: one pixel before, two after.
const BORDER: usize = 2;

impl BorderedImage {
    fn new(image: &Image) -> Self {
        let (width, height) = (image.width(), image.height());
        let stride = width + 2 * BORDER;
        let mut pixels = Vec::with_capacity(stride * (height + 2 * BORDER));
        for y in 0..height + 2 * BORDER {
            let row = image.row(y.saturating_sub(BORDER).min(height - 1)).as_chunks::<3>().0;
            let wide = |[red, green, blue]: [u8; 3]| [red, green, blue, 0];
            pixels.extend([wide(row[0]); BORDER]);
            pixels.extend(row.iter().copied().map(wide));
            pixels.extend([wide(row[width - 1]); BORDER]);
        }
        Self { pixels, stride }
    }

    /// The distance from one pixel to the one below.
    #[inline(always)]
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Neighbours in a row, black beyond the border, which is never read.
    #[inline(always)]
    pub(super) fn pixels_at<const COUNT: usize>(&self, at: usize) -> &[[u8; 4]; COUNT] {
        self.pixels.get(at..).and_then(|pixels| pixels.first_chunk()).unwrap_or(&[[0; 4]; COUNT])
    }
}

/// Interpolation of a pixel from its neighbours.
pub(super) trait Interpolation: Copy {
    /// The pixel at an offset of `dx` and `dy`, both in 0..=1, from the pixel at `at`.
    fn value(self, source: &BorderedImage, at: usize, dx: f64, dy: f64) -> [u8; 3];
}

/// Bilinear: 2 x 2 pixels.
pub(super) fn bilinear(image: &mut Image, matrix: &[f64; 6], fill: [u8; 3]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn compiled(proof: Avx2Proof, image: &mut Image, matrix: &[f64; 6], fill: [u8; 3]) {
            interpolate(avx2::Linear(proof), image, matrix, fill);
        }
        if let Some(proof) = Avx2Proof::detect() {
            // SAFETY: the CPU has AVX2.
            return unsafe { compiled(proof, image, matrix, fill) };
        }
    }
    interpolate(Linear, image, matrix, fill);
}

/// Bicubic: 4 x 4 pixels.
pub(super) fn bicubic(image: &mut Image, matrix: &[f64; 6], fill: [u8; 3]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn compiled(proof: Avx2Proof, image: &mut Image, matrix: &[f64; 6], fill: [u8; 3]) {
            interpolate(avx2::Cubic(proof), image, matrix, fill);
        }
        if let Some(proof) = Avx2Proof::detect() {
            // SAFETY: the CPU has AVX2.
            return unsafe { compiled(proof, image, matrix, fill) };
        }
    }
    interpolate(Cubic, image, matrix, fill);
}

/// Every pixel is interpolated at its source position; positions outside of the image get the fill colour.
#[inline(always)]
fn interpolate(interpolation: impl Interpolation, image: &mut Image, matrix: &[f64; 6], fill: [u8; 3]) {
    let bordered = BorderedImage::new(image);
    let [a, b, c, d, e, f] = *matrix;
    let (width, height) = (image.width(), image.height());
    let (right, bottom) = (width as f64, height as f64);
    for (y, row) in image.pixels_mut().chunks_exact_mut(width * 3).enumerate() {
        let y_out = y as f64 + 0.5;
        for (x, pixel) in row.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let x_out = x as f64 + 0.5;
            let x_in = a * x_out + b * y_out + c;
            let y_in = d * x_out + e * y_out + f;
            if !(x_in >= 0.0 && x_in < right && y_in >= 0.0 && y_in < bottom) {
                *pixel = fill;
                continue;
            }
            let (x_in, y_in) = (x_in - 0.5, y_in - 0.5);
            let (x_whole, y_whole) = (floor(x_in), floor(y_in));
            let at = (y_whole + BORDER as i32) as usize * bordered.stride + (x_whole + BORDER as i32) as usize;
            *pixel = interpolation.value(&bordered, at, x_in - f64::from(x_whole), y_in - f64::from(y_whole));
        }
    }
}

/// `f64::floor` for values above -1.
#[inline(always)]
fn floor(value: f64) -> i32 {
    if value < 0.0 { -1 } else { value as i32 }
}

#[derive(Clone, Copy)]
struct Linear;

impl Interpolation for Linear {
    #[inline(always)]
    fn value(self, source: &BorderedImage, at: usize, dx: f64, dy: f64) -> [u8; 3] {
        let between = |from: [f64; 4], to: [f64; 4], part: f64| {
            std::array::from_fn(|channel| from[channel] + (to[channel] - from[channel]) * part)
        };
        let row = |at: usize| {
            let [left, right] = *source.pixels_at::<2>(at);
            between(left.map(f64::from), right.map(f64::from), dx)
        };
        let upper = row(at);
        let value: [f64; 4] = if dy == 0.0 { upper } else { between(upper, row(at + source.stride()), dy) };
        std::array::from_fn(|channel| value[channel] as u8)
    }
}

#[derive(Clone, Copy)]
struct Cubic;

impl Interpolation for Cubic {
    #[inline(always)]
    fn value(self, source: &BorderedImage, at: usize, dx: f64, dy: f64) -> [u8; 3] {
        let row = |at: usize| cubic(source.pixels_at::<4>(at - 1).map(|pixel| pixel.map(f64::from)), dx);
        let value = if dy == 0.0 {
            row(at)
        } else {
            let stride = source.stride();
            cubic([row(at - stride), row(at), row(at + stride), row(at + 2 * stride)], dy)
        };
        // The cast truncates and saturates.
        std::array::from_fn(|channel| value[channel] as u8)
    }
}

/// Cubic convolution with a = -1 between the two inner values.
#[inline(always)]
fn cubic(values: [[f64; 4]; 4], part: f64) -> [f64; 4] {
    std::array::from_fn(|channel| {
        let [a, b, c, d] = values.map(|value| value[channel]);
        let (linear, square, cube) = (-a + c, 2.0 * (a - b) + c - d, -a + b - c + d);
        b + part * (linear + part * (square + part * cube))
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn registers_and_plain_loops_give_the_same_bytes(
            (width, height) in (1usize..24, 1usize..24),
            matrix in prop::array::uniform6(-3.0f64..3.0),
            whole in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 24 * 24 * 3),
        ) {
            let matrix = if whole { matrix.map(f64::round) } else { matrix };
            let image = Image::from_rgb(width, height, bytes[..width * height * 3].to_vec()).unwrap();
            let apply = |work: fn(&mut Image, &[f64; 6], [u8; 3])| {
                let mut image = image.clone();
                work(&mut image, &matrix, [1, 2, 3]);
                image
            };
            prop_assert!(apply(|image, matrix, fill| interpolate(Linear, image, matrix, fill)) == apply(bilinear));
            prop_assert!(apply(|image, matrix, fill| interpolate(Cubic, image, matrix, fill)) == apply(bicubic));
        }
    }
}
