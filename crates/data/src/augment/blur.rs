//! Pillow's Gaussian blur: three box blurs in each direction, whose widths give the variance, with weights in 24-bit
//! fixed point and rounding to bytes after each pass.

use super::wide::wide;
use crate::image::Image;

const PASSES: usize = 3;

/// Blurs with a Gaussian of standard deviation `radius`, if that is positive.
pub fn gaussian_blur(image: &mut Image, radius: f64) {
    let Some(window) = BlurWindow::of_gaussian(radius as f32) else { return };
    let (width, height) = (image.width(), image.height());
    let mut line = vec![0; (width + 2 * window.reach()) * 3];
    let mut sums = vec![0; width * 3];
    for row in image.pixels_mut().chunks_exact_mut(width * 3) {
        for _ in 0..PASSES {
            blur_row(row, &window, &mut line, &mut sums);
        }
    }
    let mut source = vec![0; width * height * 3];
    for _ in 0..PASSES {
        source.copy_from_slice(image.pixels());
        blur_columns(&source, width * 3, &window, &mut sums, image.pixels_mut());
    }
}

/// A box of `2 * radius + 1` whole pixels and a fraction of one more at either end.
struct BlurWindow {
    radius: usize,
    whole: u32,
    part: u32,
}

impl BlurWindow {
    /// The box whose repetition has the variance of a Gaussian (Gwosdek et al., 2011), in Pillow's precision.
    fn of_gaussian(deviation: f32) -> Option<Self> {
        if deviation.is_nan() || deviation <= 0.0 {
            return None;
        }
        let variance = deviation * deviation / PASSES as f32;
        let length = (12.0 * f64::from(variance) + 1.0).sqrt() as f32;
        let whole = ((f64::from(length) - 1.0) / 2.0).floor() as f32;
        let part = (2.0 * whole + 1.0) * (whole * (whole + 1.0) - 3.0 * variance)
            / (6.0 * (variance - (whole + 1.0) * (whole + 1.0)));
        let length = whole + part;
        if length == 0.0 {
            return None;
        }
        let radius = length as usize;
        let weight = ((1 << 24) as f32 / (length * 2.0 + 1.0)) as u32;
        Some(Self { radius, whole: weight, part: ((1 << 24) - (radius as u32 * 2 + 1) * weight) / 2 })
    }

    /// The distance of the farthest pixel in the box.
    fn reach(&self) -> usize {
        self.radius + 1
    }
}

wide! {
    fn weigh(sums: &[u32], before: &[u8], after: &[u8], whole: u32, part: u32, out: &mut [u8]) {
        for ((out, sum), (before, after)) in out.iter_mut().zip(sums).zip(before.iter().zip(after)) {
            let ends = u32::from(*before) + u32::from(*after);
            *out = (sum.wrapping_mul(whole).wrapping_add(ends * part).wrapping_add(1 << 23) >> 24) as u8;
        }
    }
}

/// `line` holds the row, padded by its first and last pixel as far as the window reaches.
fn blur_row(row: &mut [u8], window: &BlurWindow, line: &mut [u8], sums: &mut [u32]) {
    let margin = window.reach() * 3;
    let (start, end) = (margin, margin + row.len());
    let (first, last) = ([row[0], row[1], row[2]], [row[row.len() - 3], row[row.len() - 2], row[row.len() - 1]]);
    line[..start].as_chunks_mut::<3>().0.fill(first);
    line[start..end].copy_from_slice(row);
    line[end..].as_chunks_mut::<3>().0.fill(last);

    // The sum of the window around the pixel before the first.
    let whole_pixels = (2 * window.radius + 1) * 3;
    let mut sum = [0u32; 3];
    for pixel in line[..whole_pixels].as_chunks::<3>().0 {
        sum.iter_mut().zip(pixel).for_each(|(sum, byte)| *sum += u32::from(*byte));
    }
    let leaving = line.as_chunks::<3>().0;
    let entering = line[whole_pixels..].as_chunks::<3>().0;
    for (sums, (leaving, entering)) in sums.as_chunks_mut::<3>().0.iter_mut().zip(leaving.iter().zip(entering)) {
        for channel in 0..3 {
            sum[channel] = sum[channel] + u32::from(entering[channel]) - u32::from(leaving[channel]);
        }
        *sums = sum;
    }
    weigh(sums, line, &line[whole_pixels + 3..], window.whole, window.part, row);
}

/// The sums of a whole row slide down together.
fn blur_columns(source: &[u8], stride: usize, window: &BlurWindow, sums: &mut [u32], out: &mut [u8]) {
    let height = source.len() / stride;
    let row = |y: isize| &source[y.clamp(0, height as isize - 1) as usize * stride..][..stride];
    let radius = window.radius as isize;
    sums.fill(0);
    for y in -radius - 1..radius {
        for (sum, byte) in sums.iter_mut().zip(row(y)) {
            *sum += u32::from(*byte);
        }
    }
    for (y, out) in (0..).zip(out.chunks_exact_mut(stride)) {
        let (before, after) = (row(y - radius - 1), row(y + radius + 1));
        for (sum, (leaving, entering)) in sums.iter_mut().zip(before.iter().zip(row(y + radius))) {
            *sum = *sum + u32::from(*entering) - u32::from(*leaving);
        }
        weigh(sums, before, after, window.whole, window.part, out);
    }
}
