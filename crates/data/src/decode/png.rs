//! PNG with the `png` crate. Texts and colour profiles are skipped: they are unused, and compressed ones can expand to
//! any size.

use super::{Decoded, ImageError, PixelLimit, orientation};
use crate::image::Image;
use png::{ColorType, Decoder, DecodingError, Limits, Transformations};
use std::io::{Cursor, ErrorKind};

/// Bytes that the decoder allocates in addition to rows and pixels.
const TABLES: usize = 1 << 20;

pub(super) fn decode(bytes: &[u8], limit: &PixelLimit) -> Result<Decoded, ImageError> {
    let explain = |error| explain(error, limit);
    let limits = Limits {
        bytes: usize::try_from(limit.max_pixels).unwrap_or(usize::MAX).saturating_mul(8).saturating_add(TABLES),
    };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    // Palettes become colours and fewer bits become 8; 16 bits keep the high byte.
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let info = decoder.read_header_info().map_err(explain)?;
    let (width, height) = info.size();
    let pixels = limit.check(u64::from(width), u64::from(height))?;

    let mut reader = decoder.read_info().map_err(explain)?;
    // The decoder assumes a palette of whole colours and panics otherwise (png 0.18.1).
    let palette = reader.info().palette.as_deref().unwrap_or_default();
    if palette.len() % 3 != 0 || palette.len() > 3 * 256 {
        return Err(limit.damaged("its palette has the wrong length"));
    }
    let (colour, _) = reader.output_color_type();
    let channels = colour.samples();
    let mut stored = limit.zeros(width, height, pixels * channels)?;
    let frame = reader.next_frame(&mut stored).map_err(explain)?;
    // The first frame of an animation may be smaller than the canvas, but the default image may not.
    if (frame.width, frame.height) != (width, height) {
        return Err(limit.damaged("the first frame has another size than the image"));
    }
    let exif = reader.info().exif_metadata.as_deref().unwrap_or_default();
    let orientation = orientation::from_exif(exif);
    let rgb = match colour {
        ColorType::Rgb => stored,
        ColorType::Rgba => keep(stored, 4, [0, 1, 2]),
        ColorType::Grayscale => keep(stored, 1, [0; 3]),
        ColorType::GrayscaleAlpha => keep(stored, 2, [0; 3]),
        ColorType::Indexed => return Err(limit.damaged("a palette that was not expanded")),
    };
    Ok(Decoded { image: Image::from_parts(width as usize, height as usize, rgb), orientation })
}

/// RGB from pixels of `size` bytes, with red, green and blue at `channels`.
pub(super) fn keep(mut bytes: Vec<u8>, size: usize, channels: [usize; 3]) -> Vec<u8> {
    if size < 3 {
        return bytes.chunks_exact(size).flat_map(|pixel| channels.map(|channel| pixel[channel])).collect();
    }
    // In place, so that a large image is not held twice.
    let pixels = bytes.len() / size;
    for pixel in 0..pixels {
        let rgb = channels.map(|channel| bytes[pixel * size + channel]);
        bytes[pixel * 3..pixel * 3 + 3].copy_from_slice(&rgb);
    }
    bytes.truncate(pixels * 3);
    bytes
}

fn explain(error: DecodingError, limit: &PixelLimit) -> ImageError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => limit.truncated(),
        DecodingError::LimitsExceeded => limit.damaged("its parts claim far more memory than its size needs"),
        error => limit.damaged(error),
    }
}
