//! A decoded picture.

use std::path::Path;

use vit_data::DecodeOptions;

use crate::Error;

/// A picture in memory, eight bits for each of red, green and blue.
#[derive(Debug, Clone, PartialEq)]
pub struct Image(pub(crate) vit_data::Image);

impl Image {
    /// Reads a JPEG, PNG, WebP, GIF, BMP or TIFF file, turned upright as its EXIF orientation says.
    pub fn open(path: impl AsRef<Path>) -> Result<Image, Error> {
        Ok(Image(vit_data::open(path.as_ref(), &DecodeOptions::default())?))
    }

    /// Decodes the bytes of such a file.
    pub fn decode(bytes: &[u8]) -> Result<Image, Error> {
        Ok(Image(vit_data::decode(bytes, &DecodeOptions::default())?))
    }
}

impl From<vit_data::Image> for Image {
    fn from(image: vit_data::Image) -> Self {
        Image(image)
    }
}
