//! WebP and GIF; sizes are checked between header and pixels.

use super::png::keep;
use super::{Decoded, ImageError, PixelLimit, orientation, webp};
use crate::image::Image;
use gif::ColorOutput;
use image_webp::WebPDecoder;
use std::io::{Cursor, ErrorKind};

/// Bytes that a decoder allocates in addition to copies of the image.
const TABLES: usize = 1 << 20;

pub(super) fn decode_webp(bytes: &[u8], limit: &PixelLimit) -> Result<Decoded, ImageError> {
    use image_webp::DecodingError;
    let explain = |error| match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => limit.truncated(),
        error => limit.damaged(error),
    };
    let exif = webp::inspect(bytes, limit)?;
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(explain)?;
    let (width, height) = decoder.dimensions();
    let pixels = limit.check(u64::from(width), u64::from(height))?;
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut stored = limit.zeros(width, height, pixels * channels)?;
    decoder.read_image(&mut stored).map_err(explain)?;
    let rgb = if channels == 4 { keep(stored, 4, [0, 1, 2]) } else { stored };
    let image = Image::from_parts(width as usize, height as usize, rgb);
    Ok(Decoded { image, orientation: orientation::from_exif(exif) })
}

/// The first frame on its canvas, which is black where the frame is not.
pub(super) fn decode_gif(bytes: &[u8], limit: &PixelLimit) -> Result<Decoded, ImageError> {
    use gif::DecodingError;
    let explain = |error| match error {
        DecodingError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => limit.truncated(),
        error => limit.damaged(error),
    };
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(ColorOutput::RGBA);
    let mut decoder = options.read_info(bytes).map_err(explain)?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let pixels = limit.check(width as u64, height as u64)?;
    let frame = decoder.next_frame_info().map_err(explain)?.ok_or_else(|| limit.damaged("it has no frame"))?;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (frame_width, frame_height) = (usize::from(frame.width), usize::from(frame.height));
    // A frame may be larger than its canvas.
    let length = frame_width * frame_height * 4;
    if length > pixels * 16 + TABLES {
        return Err(limit.damaged("its parts claim far more memory than its size needs"));
    }
    let mut stored = limit.zeros(frame_width as u32, frame_height as u32, length)?;
    decoder.read_into_buffer(&mut stored).map_err(explain)?;
    let stored = keep(stored, 4, [0, 1, 2]);
    let rgb = if (left, top, frame_width, frame_height) == (0, 0, width, height) {
        stored
    } else {
        let mut canvas = limit.zeros(width as u32, height as u32, pixels * 3)?;
        let visible = frame_width.min(width.saturating_sub(left)) * 3;
        if visible > 0 {
            let rows = canvas.chunks_exact_mut(width * 3).skip(top);
            for (row, frame_row) in rows.zip(stored.chunks_exact(frame_width * 3)) {
                row[left * 3..][..visible].copy_from_slice(&frame_row[..visible]);
            }
        }
        canvas
    };
    Ok(Decoded { image: Image::from_parts(width, height, rgb), orientation: 1 })
}
