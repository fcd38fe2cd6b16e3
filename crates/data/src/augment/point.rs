//! Operations on single bytes: inverting, solarizing, posterizing, and stretching or equalizing the histogram. The
//! bytes are those of Pillow's `ImageOps`.

use crate::image::Image;

/// Every byte `b` becomes `255 - b`.
pub fn invert(image: &mut Image) {
    image.pixels_mut().iter_mut().for_each(|byte| *byte = !*byte);
}

/// Inverts the bytes that are at least `threshold`.
pub fn solarize(image: &mut Image, threshold: f64) {
    // For integers, `<` gives the same result with the threshold rounded up.
    let threshold = threshold.ceil().clamp(0.0, 256.0) as u16;
    for byte in image.pixels_mut() {
        *byte = if u16::from(*byte) < threshold { *byte } else { !*byte };
    }
}

/// Adds `amount` to the bytes below 128, saturating at 255.
pub fn solarize_add(image: &mut Image, amount: u8) {
    for byte in image.pixels_mut() {
        *byte = if *byte < 128 { byte.saturating_add(amount) } else { *byte };
    }
}

/// Keeps the upper `bits` of every byte. With no bits the image is black, as in Pillow before 13, which then became an
/// error.
pub fn posterize(image: &mut Image, bits: u32) {
    let mask = if bits >= 8 { 0xff } else { !(0xff_u8 >> bits) };
    image.pixels_mut().iter_mut().for_each(|byte| *byte &= mask);
}

/// Stretches each channel so that its darkest value becomes 0 and its lightest 255.
pub fn auto_contrast(image: &mut Image) {
    let tables = extremes(image.pixels()).map(|[darkest, lightest]| stretched(darkest, lightest));
    look_up(image, &tables);
}

fn stretched(darkest: u8, lightest: u8) -> [u8; 256] {
    if lightest <= darkest {
        return std::array::from_fn(|byte| byte as u8);
    }
    let scale = 255.0 / f64::from(lightest - darkest);
    let offset = -f64::from(darkest) * scale;
    // The cast truncates and saturates, as Pillow does.
    std::array::from_fn(|byte| (byte as f64 * scale + offset) as u8)
}

/// Equalizes the histogram of each channel.
pub fn equalize(image: &mut Image) {
    let tables = histograms(image.pixels()).map(|histogram| levelled(&histogram));
    look_up(image, &tables);
}

fn levelled(histogram: &[u32; 256]) -> [u8; 256] {
    let last = histogram.iter().rev().find(|count| **count > 0).copied().unwrap_or(0);
    let step = (histogram.iter().map(|count| u64::from(*count)).sum::<u64>() - u64::from(last)) / 255;
    if step == 0 {
        return std::array::from_fn(|byte| byte as u8);
    }
    let mut below = step / 2;
    std::array::from_fn(|byte| {
        let level = (below / step).min(255) as u8;
        below += u64::from(histogram[byte]);
        level
    })
}

fn look_up(image: &mut Image, tables: &[[u8; 256]; 3]) {
    for pixel in image.pixels_mut().as_chunks_mut::<3>().0 {
        for (byte, table) in pixel.iter_mut().zip(tables) {
            *byte = table[usize::from(*byte)];
        }
    }
}

/// The minimum and the maximum of each channel.
fn extremes(pixels: &[u8]) -> [[u8; 2]; 3] {
    // A multiple of the pixel size and of the register size: one comparison per register.
    const GROUP: usize = 96;
    let (mut least, mut greatest) = ([255u8; GROUP], [0u8; GROUP]);
    let (groups, rest) = pixels.as_chunks::<GROUP>();
    for group in groups {
        for ((least, greatest), byte) in least.iter_mut().zip(&mut greatest).zip(group) {
            *least = (*least).min(*byte);
            *greatest = (*greatest).max(*byte);
        }
    }
    for ((least, greatest), byte) in least.iter_mut().zip(&mut greatest).zip(rest) {
        *least = (*least).min(*byte);
        *greatest = (*greatest).max(*byte);
    }
    std::array::from_fn(|channel| {
        let of_channel = |values: &[u8; GROUP]| values.iter().skip(channel).step_by(3).copied().collect::<Vec<_>>();
        [of_channel(&least).into_iter().min().unwrap_or(255), of_channel(&greatest).into_iter().max().unwrap_or(0)]
    })
}

/// The histogram of each channel.
fn histograms(pixels: &[u8]) -> [[u32; 256]; 3] {
    // Neighbouring pixels are often equal; two counters avoid a dependency between their increments.
    let mut counts = [[[0u32; 256]; 3]; 2];
    let (pairs, rest) = pixels.as_chunks::<6>();
    for pair in pairs {
        for (at, byte) in pair.iter().enumerate() {
            counts[at / 3][at % 3][usize::from(*byte)] += 1;
        }
    }
    for (channel, byte) in rest.iter().enumerate() {
        counts[0][channel][usize::from(*byte)] += 1;
    }
    std::array::from_fn(|channel| std::array::from_fn(|value| counts[0][channel][value] + counts[1][channel][value]))
}
