//! The eight orientations of EXIF.

use crate::image::Image;

/// The orientation in an EXIF block, with or without its `Exif\0\0` prefix; 1 if there is none.
pub(super) fn from_exif(block: &[u8]) -> u8 {
    let block = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
    tag(block).filter(|orientation| (1..=8).contains(orientation)).map_or(1, |orientation| orientation as u8)
}

/// The orientation among the tags of the first image, as TIFF stores them.
fn tag(block: &[u8]) -> Option<u16> {
    const ORIENTATION: u16 = 0x112;
    const SHORT: u16 = 3;
    let big = match block.first_chunk()? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let half = |at: usize| {
        let half = *block.get(at..)?.first_chunk()?;
        Some(if big { u16::from_be_bytes(half) } else { u16::from_le_bytes(half) })
    };
    let word = |at: usize| {
        let word = *block.get(at..)?.first_chunk()?;
        Some(if big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) })
    };
    let start = word(4)? as usize;
    for entry in 0..usize::from(half(start)?) {
        let at = start + 2 + 12 * entry;
        if (half(at)?, half(at + 2)?, word(at + 4)?) == (ORIENTATION, SHORT, 1) {
            return half(at + 8);
        }
    }
    None
}

/// Applies an orientation. Values that EXIF does not define have no effect.
pub(super) fn turn(image: Image, orientation: u8) -> Image {
    let (width, height) = (image.width(), image.height());
    let (right, bottom) = (width - 1, height - 1);
    // Maps each pixel of the result to its source.
    match orientation {
        2 => rearrange(&image, width, height, |x, y| (right - x, y)),
        3 => rearrange(&image, width, height, |x, y| (right - x, bottom - y)),
        4 => rearrange(&image, width, height, |x, y| (x, bottom - y)),
        5 => rearrange(&image, height, width, |x, y| (y, x)),
        6 => rearrange(&image, height, width, |x, y| (y, bottom - x)),
        7 => rearrange(&image, height, width, |x, y| (right - y, bottom - x)),
        8 => rearrange(&image, height, width, |x, y| (right - y, x)),
        _ => image,
    }
}

fn rearrange(image: &Image, width: usize, height: usize, source: impl Fn(usize, usize) -> (usize, usize)) -> Image {
    let mut pixels = vec![0; width * height * 3];
    for (y, row) in pixels.chunks_exact_mut(width * 3).enumerate() {
        for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
            let (from_x, from_y) = source(x, y);
            let at = (from_y * image.width() + from_x) * 3;
            pixel.copy_from_slice(&image.pixels()[at..at + 3]);
        }
    }
    Image::from_parts(width, height, pixels)
}
