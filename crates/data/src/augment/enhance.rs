//! Brightness, contrast, colour and sharpness: a blend of the picture with black, its mean grey, its grey version or
//! its smoothed version. A factor of 1 changes nothing, 0 gives the other picture, above 1 goes away from it. The bytes
//! are those of Pillow's `ImageEnhance`, whose blend works in single precision and cuts off what is behind the point.

use super::wide::wide;
use crate::image::Image;

/// Blends with black.
pub fn brightness(image: &mut Image, factor: f64) {
    blend_with_constant(image.pixels_mut(), 0, factor as f32);
}

/// Blends with the mean grey of the picture.
pub fn contrast(image: &mut Image, factor: f64) {
    let sum: u64 = image.pixels().as_chunks::<3>().0.iter().map(|pixel| u64::from(grey(pixel))).sum();
    let mean = sum as f64 / (image.width() * image.height()) as f64;
    blend_with_constant(image.pixels_mut(), (mean + 0.5) as u8, factor as f32);
}

/// Blends with the grey picture: saturation.
pub fn colour(image: &mut Image, factor: f64) {
    const GROUP: usize = 64;
    let factor = factor as f32;
    for pixels in image.pixels_mut().chunks_mut(GROUP * 3) {
        let mut greys = [0; GROUP * 3];
        for (greys, pixel) in greys.as_chunks_mut::<3>().0.iter_mut().zip(pixels.as_chunks::<3>().0) {
            *greys = [grey(pixel); 3];
        }
        blend(&greys[..pixels.len()], pixels, factor);
    }
}

/// Makes the picture grey, keeping three equal channels.
pub fn to_grey(image: &mut Image) {
    for pixel in image.pixels_mut().as_chunks_mut::<3>().0 {
        *pixel = [grey(pixel); 3];
    }
}

/// Blends with the picture after a 3 x 3 smoothing, whose outermost pixels are not smoothed.
pub fn sharpness(image: &mut Image, factor: f64) {
    let (width, height) = (image.width(), image.height());
    if width < 3 || height < 3 {
        return;
    }
    let stride = width * 3;
    let source = image.pixels().to_vec();
    let mut sums = vec![0u16; stride];
    let mut smooth = vec![0u8; stride - 6];
    for y in 1..height - 1 {
        let rows = &source[(y - 1) * stride..(y + 2) * stride];
        let (above, rest) = rows.split_at(stride);
        let (this, below) = rest.split_at(stride);
        for ((sum, this), (above, below)) in sums.iter_mut().zip(this).zip(above.iter().zip(below)) {
            *sum = u16::from(*above) + u16::from(*this) + u16::from(*below);
        }
        let neighbours = sums.iter().zip(&sums[3..]).zip(&sums[6..]);
        for ((smooth, centre), ((left, middle), right)) in smooth.iter_mut().zip(&this[3..]).zip(neighbours) {
            *smooth = thirteenth(left + middle + right + 4 * u16::from(*centre));
        }
        blend(&smooth, &mut image.pixels_mut()[y * stride + 3..(y + 1) * stride - 3], factor as f32);
    }
}

/// A sum of thirteen bytes divided by 13 and rounded. No such quotient lies near a half, so that Pillow's
/// floating-point weights give the same.
#[inline(always)]
fn thirteenth(sum: u16) -> u8 {
    // Exact for every sum that occurs: a 13th in 16 bits after the point, rounded up.
    ((u32::from(sum + 6) * 5042) >> 16) as u8
}

/// Pillow's grey of a pixel: weights in 16 bits after the point, rounded.
#[inline(always)]
pub(super) fn grey(pixel: &[u8; 3]) -> u8 {
    let weighted = u32::from(pixel[0]) * 19595 + u32::from(pixel[1]) * 38470 + u32::from(pixel[2]) * 7471;
    ((weighted + 0x8000) >> 16) as u8
}

#[inline(always)]
fn blended(from: u8, to: u8, factor: f32) -> u8 {
    let difference = i32::from(to) - i32::from(from);
    let value = f32::from(from) + factor * difference as f32;
    value.clamp(0.0, 255.0) as i32 as u8
}

wide! {
    /// `to` becomes the blend from `from` to it.
    fn blend(from: &[u8], to: &mut [u8], factor: f32) {
        for (from, to) in from.iter().zip(to) {
            *to = blended(*from, *to, factor);
        }
    }
}

wide! {
    fn blend_with_constant(bytes: &mut [u8], from: u8, factor: f32) {
        for byte in bytes {
            *byte = blended(from, *byte, factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thirteenth_is_rounded() {
        for sum in 0..=255 * 13 {
            assert_eq!(thirteenth(sum), (f64::from(sum) / 13.0).round() as u8, "{sum}");
        }
    }
}
