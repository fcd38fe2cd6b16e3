//! The image type of all crates: 8-bit RGB, interleaved, at least one pixel. Decoders produce it, resizing and
//! augmentation work on it.

use thiserror::Error;

/// An unsuitable number of bytes for an image's size.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ShapeError {
    /// A side is zero.
    #[error("an image needs at least one pixel, this one is {width} x {height}")]
    Empty {
        /// Width given.
        width: usize,
        /// Height given.
        height: usize,
    },
    /// The number of bytes is not `width * height * 3`.
    #[error("a {width} x {height} RGB image has width * height * 3 bytes, {found} were given")]
    Length {
        /// Width given.
        width: usize,
        /// Height given.
        height: usize,
        /// Bytes given.
        found: usize,
    },
}

/// An 8-bit RGB image: interleaved, rows from top to bottom (HWC).
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Image {
    /// Takes `pixels` as rows of `R, G, B` bytes; their number must be `width * height * 3`.
    pub fn from_rgb(width: usize, height: usize, pixels: Vec<u8>) -> Result<Self, ShapeError> {
        if width == 0 || height == 0 {
            return Err(ShapeError::Empty { width, height });
        }
        let expected = width.checked_mul(height).and_then(|n| n.checked_mul(3));
        if expected != Some(pixels.len()) {
            return Err(ShapeError::Length { width, height, found: pixels.len() });
        }
        Ok(Self { width, height, pixels })
    }

    /// For callers in this crate that guarantee the length.
    pub(crate) fn from_parts(width: usize, height: usize, pixels: Vec<u8>) -> Self {
        debug_assert!(width > 0 && height > 0 && pixels.len() == width * height * 3);
        Self { width, height, pixels }
    }

    /// Pixels per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// All bytes, `height * width * 3` of them.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// All bytes, mutable.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// The bytes, without copying them.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// The bytes of row `y`, which must be less than [`height`](Self::height).
    pub fn row(&self, y: usize) -> &[u8] {
        &self.pixels[y * self.width * 3..(y + 1) * self.width * 3]
    }

    /// The grey image (all three channels equal) with Pillow's weights for `convert("L")`.
    pub fn to_grey(&self) -> Image {
        let mut grey = self.clone();
        for pixel in grey.pixels.chunks_exact_mut(3) {
            let weighted = u32::from(pixel[0]) * 19595 + u32::from(pixel[1]) * 38470 + u32::from(pixel[2]) * 7471;
            // The weights add up to 2^16, so the result always fits a byte.
            pixel.fill(((weighted + 0x8000) >> 16) as u8);
        }
        grey
    }
}

impl std::fmt::Debug for Image {
    /// Prints the size alone: pixels would flood the message of a failed assertion.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} x {})", self.width, self.height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_length_is_refused() {
        assert!(Image::from_rgb(2, 2, vec![0; 12]).is_ok());
        assert!(matches!(Image::from_rgb(2, 2, vec![0; 11]), Err(ShapeError::Length { found: 11, .. })));
        assert!(matches!(Image::from_rgb(0, 2, vec![]), Err(ShapeError::Empty { .. })));
        assert!(Image::from_rgb(usize::MAX, 2, vec![]).is_err());
    }

    #[test]
    fn grey_stays_grey() {
        let ramp: Vec<u8> = (0..=255u8).flat_map(|v| [v, v, v]).collect();
        let image = Image::from_rgb(256, 1, ramp).unwrap();
        assert_eq!(image.to_grey(), image);
    }
}
