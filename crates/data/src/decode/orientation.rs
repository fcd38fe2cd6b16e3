//! The eight orientations of EXIF.

use crate::image::Image;

/// The orientation in an EXIF block, with or without its `Exif\0\0` prefix; 1 if there is none.
pub(super) fn from_exif(block: &[u8]) -> u8 {
    let block = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
    image::metadata::Orientation::from_exif_chunk(block).map_or(1, |found| found.to_exif())
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
