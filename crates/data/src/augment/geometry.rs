//! Geometric operations: flips, rotations, shears and translations that keep the image's size. The bytes are those of
//! Pillow's `transpose`, `rotate` and `transform`; uncovered pixels get the fill colour.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod sample;

use crate::image::Image;
use crate::resize::Filter;

/// The interpolation of geometric operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Nearest neighbour.
    Nearest,
    /// Bilinear, 2 x 2 pixels.
    Bilinear,
    /// Bicubic, 4 x 4 pixels.
    Bicubic,
}

impl From<Filter> for Sampling {
    /// The counterpart of a resizing filter; bicubic for filters without one.
    fn from(filter: Filter) -> Self {
        match filter {
            Filter::Nearest => Sampling::Nearest,
            Filter::Bilinear => Sampling::Bilinear,
            _ => Sampling::Bicubic,
        }
    }
}

/// Horizontal flip.
pub fn flip(image: &mut Image) {
    let stride = image.width() * 3;
    for row in image.pixels_mut().chunks_exact_mut(stride) {
        row.as_chunks_mut::<3>().0.reverse();
    }
}

/// Vertical flip.
pub fn flip_vertically(image: &mut Image) {
    let stride = image.width() * 3;
    let half = image.height() / 2 * stride;
    let (upper, lower) = image.pixels_mut().split_at_mut(half);
    for (above, below) in upper.chunks_exact_mut(stride).zip(lower.chunks_exact_mut(stride).rev()) {
        above.swap_with_slice(below);
    }
}

/// Rotates around the centre, counter-clockwise.
pub fn rotate(image: &mut Image, degrees: f64, sampling: Sampling, fill: [u8; 3]) {
    let degrees = degrees.rem_euclid(360.0);
    let (width, height) = (image.width(), image.height());
    if degrees == 0.0 {
        return;
    }
    if degrees == 180.0 {
        return image.pixels_mut().as_chunks_mut::<3>().0.reverse();
    }
    if width == height && (degrees == 90.0 || degrees == 270.0) {
        return quarter_turn(image, degrees == 90.0);
    }
    let angle = -degrees.to_radians();
    let (sine, cosine) = (to_15_digits(angle.sin()), to_15_digits(angle.cos()));
    let (x, y) = (width as f64 / 2.0, height as f64 / 2.0);
    let across = cosine * -x + sine * -y + 0.0;
    let down = to_15_digits(-angle.sin()) * -x + cosine * -y + 0.0;
    let matrix = [cosine, sine, across + x, to_15_digits(-angle.sin()), cosine, down + y];
    transform(image, &matrix, sampling, fill);
}

/// Python's `round(number, 15)`.
fn to_15_digits(number: f64) -> f64 {
    format!("{number:.15}").parse().unwrap_or(number)
}

fn quarter_turn(image: &mut Image, counter_clockwise: bool) {
    let side = image.width();
    let source = image.pixels().as_chunks::<3>().0.to_vec();
    for (at, pixel) in image.pixels_mut().as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let (x, y) = (at % side, at / side);
        *pixel = if counter_clockwise { source[x * side + side - 1 - y] } else { source[(side - 1 - x) * side + y] };
    }
}

/// Shears along the rows: row `y` moves by `factor * y` to the left.
pub fn shear_x(image: &mut Image, factor: f64, sampling: Sampling, fill: [u8; 3]) {
    transform(image, &[1.0, factor, 0.0, 0.0, 1.0, 0.0], sampling, fill);
}

/// Shears along the columns: column `x` moves by `factor * x` upwards.
pub fn shear_y(image: &mut Image, factor: f64, sampling: Sampling, fill: [u8; 3]) {
    transform(image, &[1.0, 0.0, 0.0, factor, 1.0, 0.0], sampling, fill);
}

/// Moves the image by `x` to the left and by `y` upwards.
pub fn translate(image: &mut Image, x: f64, y: f64, sampling: Sampling, fill: [u8; 3]) {
    transform(image, &[1.0, 0.0, x, 0.0, 1.0, y], sampling, fill);
}

/// Applies an affine map: the pixel at (x, y) comes from (`a x + b y + c`, `d x + e y + f`) for a `matrix` of a to f.
pub fn transform(image: &mut Image, matrix: &[f64; 6], sampling: Sampling, fill: [u8; 3]) {
    match sampling {
        Sampling::Nearest => sample::nearest(image, matrix, fill),
        Sampling::Bilinear => sample::bilinear(image, matrix, fill),
        Sampling::Bicubic => sample::bicubic(image, matrix, fill),
    }
}
