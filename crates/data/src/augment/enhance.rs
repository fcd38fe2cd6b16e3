//! Brightness, contrast, colour and sharpness: a blend of the image with black, its mean grey, its grey version or its
//! smoothed version. A factor of 1 gives the image, 0 the other one; above 1 it is extrapolated. The bytes are those of
//! Pillow's `ImageEnhance`, which blends in f32 and truncates.

use super::wide::wide;
use crate::image::Image;

/// Blends with black.
pub fn brightness(image: &mut Image, factor: f64) {
    blend_with_constant(image.pixels_mut(), 0, factor as f32);
}

/// Blends with the mean grey of the image.
pub fn contrast(image: &mut Image, factor: f64) {
    let mut sum = 0;
    add_greys(image.pixels(), &mut sum);
    let mean = (sum / 3) as f64 / (image.width() * image.height()) as f64;
    blend_with_constant(image.pixels_mut(), (mean + 0.5) as u8, factor as f32);
}

/// Blends with the grey image: saturation.
pub fn colour(image: &mut Image, factor: f64) {
    blend_with_grey(image.pixels_mut(), factor as f32);
}

/// Makes the image grey, keeping three equal channels.
pub fn to_grey(image: &mut Image) {
    make_grey(image.pixels_mut());
}

/// Blends with the image after a 3 x 3 smoothing, which leaves the outermost pixels as they are.
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

/// A sum of thirteen bytes divided by 13, rounded. No such quotient is close to a half, so Pillow's floating-point
/// weights give the same.
#[inline(always)]
fn thirteenth(sum: u16) -> u8 {
    // Exact for every possible sum: 1/13 in 16-bit fixed point, rounded up.
    ((u32::from(sum + 6) * 5042) >> 16) as u8
}

/// Pixels per iteration.
const GROUP: usize = 32;

/// The bytes of [`GROUP`] pixels.
type PixelGroup = [u8; GROUP * 3];

// Indexed loops, because compilers vectorise them; and no `clamp`, which would let NaN pass.
#[allow(clippy::needless_range_loop, clippy::manual_clamp)]
mod group {
    use super::{GROUP, PixelGroup};

    /// The greys of a group, each three times, with Pillow's weights in 16-bit fixed point, rounded.
    #[inline(always)]
    pub(super) fn greys(pixels: &PixelGroup) -> PixelGroup {
        let mut greys = [0; GROUP];
        for at in 0..GROUP {
            let [red, green, blue] = [0, 1, 2].map(|channel| u32::from(pixels[at * 3 + channel]));
            greys[at] = ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16) as u8;
        }
        let mut three_times = [0; GROUP * 3];
        for at in 0..GROUP {
            three_times[at * 3] = greys[at];
            three_times[at * 3 + 1] = greys[at];
            three_times[at * 3 + 2] = greys[at];
        }
        three_times
    }

    /// Blends `from` and `to` into `to`.
    #[inline(always)]
    pub(super) fn blend(from: &PixelGroup, to: &mut PixelGroup, factor: f32) {
        for at in 0..GROUP * 3 {
            let difference = i32::from(to[at]) - i32::from(from[at]);
            let value = (f32::from(from[at]) + factor * difference as f32).max(0.0).min(255.0);
            // SAFETY: the value is between 0 and 255 for every factor. A checked cast would take most of the time.
            to[at] = unsafe { value.to_int_unchecked::<i32>() } as u8;
        }
    }
}

/// Calls a function with every whole group of pixels, and with the rest padded by black.
macro_rules! each_group {
    ($bytes:expr, $work:expr) => {{
        let (groups, rest) = $bytes.as_chunks_mut();
        for group in groups {
            $work(group);
        }
        let mut last: PixelGroup = [0; GROUP * 3];
        last[..rest.len()].copy_from_slice(rest);
        $work(&mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }};
}

wide! {
    fn make_grey(bytes: &mut [u8]) {
        each_group!(bytes, |pixels: &mut PixelGroup| *pixels = group::greys(pixels));
    }
}

wide! {
    fn blend_with_grey(bytes: &mut [u8], factor: f32) {
        each_group!(bytes, |pixels: &mut PixelGroup| group::blend(&group::greys(pixels), pixels, factor));
    }
}

wide! {
    fn blend_with_constant(bytes: &mut [u8], from: u8, factor: f32) {
        each_group!(bytes, |pixels: &mut PixelGroup| group::blend(&[from; GROUP * 3], pixels, factor));
    }
}

wide! {
    /// Sums the greys, each three times.
    fn add_greys(bytes: &[u8], sum: &mut u64) {
        let (groups, rest) = bytes.as_chunks();
        let mut last: PixelGroup = [0; GROUP * 3];
        last[..rest.len()].copy_from_slice(rest);
        for pixels in groups.iter().chain([&last]) {
            *sum += u64::from(group::greys(pixels).iter().map(|grey| u32::from(*grey)).sum::<u32>());
        }
    }
}

wide! {
    /// Blends `from` and `to` into `to`.
    fn blend(from: &[u8], to: &mut [u8], factor: f32) {
        let (from_groups, from_rest) = from.as_chunks();
        let mut groups = from_groups.iter();
        let mut last: PixelGroup = [0; GROUP * 3];
        last[..from_rest.len()].copy_from_slice(from_rest);
        each_group!(to, |pixels: &mut PixelGroup| group::blend(groups.next().unwrap_or(&last), pixels, factor));
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
