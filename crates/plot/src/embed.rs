//! Images embedded in HTML pages and SVG files.

use base64::prelude::{BASE64_STANDARD, Engine};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use vit_data::{Filter, Image, resize};

use crate::PlotError;
use crate::bitmap::encode;

/// A file as a `data:` URI.
pub fn data_uri(kind: &str, bytes: &[u8]) -> String {
    let mut uri = format!("data:{kind};base64,");
    BASE64_STANDARD.encode_string(bytes, &mut uri);
    uri
}

/// A JPEG of the image with at most `longest` pixels on its longer side.
pub fn thumbnail(image: &Image, longest: usize) -> Result<Vec<u8>, PlotError> {
    let shrunk = shrunk(image, longest);
    let image = shrunk.as_ref().unwrap_or(image);
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 80);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode(image.pixels(), image.width() as u16, image.height() as u16, ColorType::Rgb)?;
    Ok(file)
}

/// The image resized to a longer side of `longest` pixels, if it is larger.
pub fn shrunk(image: &Image, longest: usize) -> Option<Image> {
    let scale = longest as f64 / image.width().max(image.height()) as f64;
    let side = |length: usize| ((length as f64 * scale).round() as usize).max(1);
    (scale < 1.0).then(|| resize(image, side(image.width()), side(image.height()), Filter::Lanczos))
}

/// RGBA pixels as a PNG file.
pub fn transparent_png(width: usize, height: usize, rgba: &[u8]) -> Result<Vec<u8>, PlotError> {
    encode(width as u32, height as u32, png::ColorType::Rgba, rgba)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_base_64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(data_uri("text/plain", bytes.as_bytes()), format!("data:text/plain;base64,{text}"));
        }
    }

    #[test]
    fn thumbnails_keep_their_shape_and_colours() {
        let photo = Image::from_rgb(900, 30, [200, 90, 40].repeat(900 * 30)).unwrap();
        let file = thumbnail(&photo, 300).unwrap();
        let read = vit_data::decode(&file, &vit_data::DecodeOptions::default()).unwrap();
        assert_eq!((read.width(), read.height()), (300, 10));
        let near = |(found, expected): (&u8, u8)| found.abs_diff(expected) < 6;
        assert!(read.pixels()[..3].iter().zip([200, 90, 40]).all(near), "{:?}", &read.pixels()[..3]);
        let line = Image::from_rgb(1, 5000, vec![7; 15000]).unwrap();
        assert!(thumbnail(&line, 100).is_ok());
    }
}
