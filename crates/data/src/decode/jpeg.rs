//! JPEG with zune-jpeg, plus what it lacks: an error for truncated files (it fills the rest with grey), Pillow's
//! interpretation of CMYK, and the orientation.

mod reader;

use super::{Decoded, ImageError, PixelLimit, multiply_ink, orientation};
use crate::image::Image;
use reader::Reader;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

pub(super) fn decode(bytes: &[u8], limit: &PixelLimit) -> Result<Decoded, ImageError> {
    if !is_complete(bytes) {
        return Err(limit.truncated());
    }
    let explain = |error| explain(error, limit);
    // The format's maximum side; `PixelLimit` checks the pixels.
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(Reader::new(bytes), options);
    decoder.decode_headers().map_err(explain)?;
    let (width, height) = decoder.dimensions().unwrap_or((0, 0));
    limit.check(width as u64, height as u64)?;
    let orientation = decoder.exif().map_or(1, |exif| orientation::from_exif(exif));
    let stored = decoder.input_colorspace().unwrap_or(ColorSpace::Unknown);
    match stored {
        ColorSpace::Luma | ColorSpace::YCbCr | ColorSpace::RGB => {}
        // The decoder fixes the output colours when it reads the headers, so they are read again.
        ColorSpace::CMYK | ColorSpace::YCCK => {
            let options = options.jpeg_set_out_colorspace(stored);
            decoder = JpegDecoder::new_with_options(Reader::new(bytes), options);
        }
        other => {
            return Err(limit.unsupported(format!("its colours are {other:?}")));
        }
    }
    let mut pixels = decoder.decode().map_err(explain)?;
    match stored {
        ColorSpace::CMYK => multiply_out(&mut pixels, |ink| ink),
        ColorSpace::YCCK => multiply_out(&mut pixels, from_ycc),
        _ => {}
    }
    let image = Image::from_rgb(width, height, pixels).map_err(|error| limit.damaged(error))?;
    Ok(Decoded { image, orientation })
}

/// Whether the end-of-image marker is present. Pillow refuses a file without it, too.
fn is_complete(bytes: &[u8]) -> bool {
    // The usual case. It also accepts files with damage in the middle, which can still be decoded.
    if bytes.ends_with(b"\xff\xd9") {
        return true;
    }
    // In compressed data, 0xff is always followed by 0 or a restart marker. So going from segment to segment and
    // searching only the data between them is not misled by the end marker of a thumbnail in the EXIF block.
    let mut rest = bytes.get(2..).unwrap_or(&[]);
    loop {
        let Some(marker_at) = rest.iter().position(|byte| *byte == 0xff) else {
            return false;
        };
        rest = &rest[marker_at + 1..];
        match rest.first() {
            None => return false,
            Some(0xd9) => return true,
            // A fill byte before a marker. The second 0xff is read again.
            Some(0xff) => {}
            // Stuffed bytes, restart markers and start-of-image have no length.
            Some(0x00 | 0x01 | 0xd0..=0xd8) => rest = &rest[1..],
            Some(_) => {
                let Some([high, low]) = rest.get(1..3) else {
                    return false;
                };
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                match rest.get(1 + length..) {
                    Some(after) => rest = after,
                    None => return false,
                }
            }
        }
    }
}

/// CMYK to RGB in place. Like Pillow, this assumes Adobe's convention of 255 for no ink; `cmy` converts the first three
/// channels to it.
fn multiply_out(pixels: &mut Vec<u8>, cmy: impl Fn([u8; 3]) -> [u8; 3]) {
    let count = pixels.len() / 4;
    for pixel in 0..count {
        let at = pixel * 4;
        let stored = [pixels[at], pixels[at + 1], pixels[at + 2]];
        let rgb = multiply_ink(cmy(stored).map(|value| 255 - value), pixels[at + 3]);
        pixels[pixel * 3..pixel * 3 + 3].copy_from_slice(&rgb);
    }
    pixels.truncate(count * 3);
}

/// The first three channels of YCCK are the YCbCr of the complement of the stored CMY.
fn from_ycc([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    // 16-bit fixed point with libjpeg's constants and rounding.
    let half = 1 << 15;
    let red = y + ((91_881 * cr + half) >> 16);
    let green = y + ((-22_554 * cb - 46_802 * cr + half) >> 16);
    let blue = y + ((116_130 * cb + half) >> 16);
    [red, green, blue].map(|value| 255 - value.clamp(0, 255) as u8)
}

fn explain(error: DecodeErrors, limit: &PixelLimit) -> ImageError {
    match error {
        DecodeErrors::ExhaustedData => limit.truncated(),
        DecodeErrors::Unsupported(_) => limit.unsupported(error),
        _ => limit.damaged(error),
    }
}
