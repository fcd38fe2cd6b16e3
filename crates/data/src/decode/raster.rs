//! WebP, GIF and BMP with the `image` crate; sizes are checked between header and pixels.

use super::png::keep;
use super::{Decoded, ImageError, ImageFormat, PixelLimit, orientation, webp};
use crate::image::Image;
use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, webp::WebPDecoder};
use image::error::{ImageError as DecoderError, LimitErrorKind};
use image::{ColorType, ImageDecoder, Limits};
use std::error::Error;
use std::io::{Cursor, ErrorKind};

/// Bytes that a decoder allocates in addition to copies of the image.
const TABLES: u64 = 1 << 20;

pub(super) fn decode(bytes: &[u8], limit: &PixelLimit) -> Result<Decoded, ImageError> {
    let reader = Cursor::new(bytes);
    let explain = |error| explain(error, limit);
    match limit.format {
        ImageFormat::WebP => {
            let exif = webp::inspect(bytes, limit)?;
            let decoder = WebPDecoder::new(reader).map_err(explain)?;
            finish(decoder, orientation::from_exif(exif), limit)
        }
        ImageFormat::Gif => finish(GifDecoder::new(reader).map_err(explain)?, 1, limit),
        ImageFormat::Bmp => {
            // The decoder has limits of its own, with less specific errors.
            if let Some((width, height)) = bmp_size(bytes) {
                limit.check(width, height)?;
            }
            finish(BmpDecoder::new(reader).map_err(explain)?, 1, limit)
        }
        other => Err(limit.unsupported(format!("{other} is read elsewhere"))),
    }
}

/// Width and height in the header of a BMP; a negative height means rows from the top. `None` leaves the error to the
/// decoder.
fn bmp_size(bytes: &[u8]) -> Option<(u64, u64)> {
    let old = bytes.get(14) == Some(&12);
    let side = |index: usize| -> Option<i64> {
        Some(if old {
            let field = bytes.get(18 + 2 * index..)?.first_chunk::<2>()?;
            u16::from_le_bytes(*field).into()
        } else {
            let field = bytes.get(18 + 4 * index..)?.first_chunk::<4>()?;
            i32::from_le_bytes(*field).into()
        })
    };
    let width = u64::try_from(side(0)?).ok()?;
    Some((width, side(1)?.unsigned_abs()))
}

fn finish(mut decoder: impl ImageDecoder, orientation: u8, limit: &PixelLimit) -> Result<Decoded, ImageError> {
    let (width, height) = decoder.dimensions();
    let pixels = limit.check(u64::from(width), u64::from(height))?;
    let layout = decoder.color_type();
    let total = pixels * usize::from(layout.bytes_per_pixel());
    // Decoders hold at most a few copies of the image.
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(total as u64 * 4 + TABLES);
    decoder.set_limits(limits).map_err(|error| explain(error, limit))?;
    let mut stored = limit.zeros(width, height, total)?;
    decoder.read_image(&mut stored).map_err(|error| explain(error, limit))?;
    let rgb = match layout {
        ColorType::Rgb8 => stored,
        ColorType::Rgba8 => keep(stored, 4, [0, 1, 2]),
        ColorType::L8 => keep(stored, 1, [0; 3]),
        other => return Err(limit.unsupported(format!("pixels stored as {other:?}"))),
    };
    Ok(Decoded { image: Image::from_parts(width as usize, height as usize, rgb), orientation })
}

fn explain(error: DecoderError, limit: &PixelLimit) -> ImageError {
    match &error {
        DecoderError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => limit.truncated(),
        DecoderError::Unsupported(error) => limit.unsupported(error),
        DecoderError::Limits(reason) if reason.kind() == LimitErrorKind::InsufficientMemory => {
            limit.damaged("its parts claim far more memory than its size needs")
        }
        // The source error does not repeat the format.
        error => match error.source() {
            Some(source) => limit.damaged(source),
            None => limit.damaged(error),
        },
    }
}
