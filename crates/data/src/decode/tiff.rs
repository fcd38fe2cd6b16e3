//! TIFF with the `tiff` crate: the first image, grey, colour, CMYK or palette, of 1 to 16 bits. The directory is
//! checked first, because the crate allocates memory for any number of values that a tag claims, and does not support
//! palettes.

mod directory;

use super::{Decoded, ImageError, PixelLimit, multiply_ink};
use crate::image::Image;
use directory::Directory;
use std::io::{Cursor, ErrorKind};
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;
use tiff::{ColorType, TiffError};

pub(super) fn decode(bytes: &[u8], limit: &PixelLimit) -> Result<Decoded, ImageError> {
    let explain = |error| explain(error, limit);
    let directory = Directory::read(bytes).map_err(|reason| limit.damaged(reason))?;
    let patched = directory.palette_as_grey(bytes);
    let source = patched.as_deref().unwrap_or(bytes);

    let mut decoder = Decoder::new(Cursor::new(source)).map_err(explain)?;
    let (width, height) = decoder.dimensions().map_err(explain)?;
    let pixels = limit.check(u64::from(width), u64::from(height))?;
    // At most five samples of 16 bits, and tags that fit into the file.
    let mut limits = Limits::default();
    limits.decoding_buffer_size = pixels * 10 + bytes.len() * 32;
    limits.intermediate_buffer_size = pixels * 10 + bytes.len();
    let mut decoder = decoder.with_limits(limits);

    let colour = decoder.colortype().map_err(explain)?;
    let (bits, channels) = match colour {
        ColorType::Gray(bits @ (1 | 2 | 4 | 8 | 16)) => (bits, 1),
        ColorType::RGB(bits @ (8 | 16)) => (bits, 3),
        ColorType::RGBA(bits @ (8 | 16)) => (bits, 4),
        ColorType::CMYK(bits @ (8 | 16)) => (bits, 4),
        // Grey and a second channel, usually alpha, which is dropped.
        ColorType::Multiband { bit_depth: bits @ (8 | 16), num_samples: 2 } => (bits, 2),
        other => return Err(limit.unsupported(format!("its colours are {other:?}"))),
    };
    let palette = match &patched {
        Some(_) => {
            let entries = decoder.get_tag_u16_vec(Tag::ColorMap).map_err(explain)?;
            if bits > 8 || entries.len() != 3 << bits {
                return Err(limit.damaged("its palette has the wrong length"));
            }
            Some(entries)
        }
        None => None,
    };
    // An orientation of another type is ignored.
    let orientation = decoder.find_tag_unsigned::<u8>(Tag::Orientation).ok().flatten().unwrap_or(1);

    let mut result = DecodingResult::U8(Vec::new());
    let layout = decoder.read_image_to_buffer(&mut result).map_err(explain)?;
    let bytes = match result {
        DecodingResult::U8(samples) => samples,
        DecodingResult::U16(samples) => samples.into_iter().map(|s| (s >> 8) as u8).collect(),
        _ => return Err(limit.unsupported("its samples are signed, floating or very deep")),
    };
    let samples = if bits < 8 {
        // Palette indices keep their value; greys are scaled to 255.
        let scale = if palette.is_some() { 1 } else { 255 / ((1 << bits) - 1) };
        unpack(&bytes, width as usize, bits, scale)
    } else {
        bytes
    };
    if samples.len() < pixels * channels {
        return Err(limit.truncated());
    }
    let planes = layout.planes > 1;
    let sample = |pixel: usize, channel: usize| {
        samples[if planes { channel * pixels + pixel } else { pixel * channels + channel }]
    };
    let mut rgb = Vec::with_capacity(pixels * 3);
    for pixel in 0..pixels {
        rgb.extend(match (&palette, channels) {
            (Some(entries), _) => {
                let index = usize::from(sample(pixel, 0));
                // All reds, then all greens, then all blues.
                [0, 1, 2].map(|channel| (entries[(channel << bits) + index] >> 8) as u8)
            }
            (None, 1 | 2) => [sample(pixel, 0); 3],
            (None, _) => {
                let first = [0, 1, 2].map(|channel| sample(pixel, channel));
                match colour {
                    ColorType::CMYK(_) => multiply_ink(first, 255 - sample(pixel, 3)),
                    _ => first,
                }
            }
        });
    }
    Ok(Decoded { image: Image::from_parts(width as usize, height as usize, rgb), orientation })
}

/// Unpacks samples of fewer than 8 bits to one per byte; each row starts with a new byte.
fn unpack(bytes: &[u8], width: usize, bits: u8, scale: u8) -> Vec<u8> {
    let row_bytes = (width * usize::from(bits)).div_ceil(8);
    let mask = (1u8 << bits) - 1;
    let per_byte = usize::from(8 / bits);
    bytes
        .chunks_exact(row_bytes)
        .flat_map(|row| {
            (0..width).map(move |x| {
                let shift = 8 - usize::from(bits) * (x % per_byte + 1);
                ((row[x / per_byte] >> shift) & mask) * scale
            })
        })
        .collect()
}

fn explain(error: TiffError, limit: &PixelLimit) -> ImageError {
    match error {
        TiffError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => limit.truncated(),
        TiffError::UnsupportedError(reason) => limit.unsupported(reason),
        TiffError::LimitsExceeded => limit.damaged("its parts claim far more memory than its size needs"),
        error => limit.damaged(error),
    }
}
