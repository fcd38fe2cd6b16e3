//! Checks what the WebP decoder does not: the sizes of the images in the file, which may differ from that of the
//! canvas. It also finds the EXIF block, clipped to the file instead of trusting its length field.

use super::{ImageError, PixelLimit};

/// Checks every image in the file and returns the EXIF block, empty if there is none.
pub(super) fn inspect<'a>(bytes: &'a [u8], limit: &PixelLimit) -> Result<&'a [u8], ImageError> {
    let mut exif: &[u8] = &[];
    for (name, body) in Chunks(bytes.get(12..).unwrap_or(&[])) {
        match &name {
            b"EXIF" => exif = body,
            // A frame of an animation: 16 bytes of header, then chunks.
            b"ANMF" => {
                for (name, body) in Chunks(body.get(16..).unwrap_or(&[])) {
                    check_image(&name, body, limit)?;
                }
            }
            _ => check_image(&name, body, limit)?,
        }
    }
    Ok(exif)
}

fn check_image(name: &[u8; 4], body: &[u8], limit: &PixelLimit) -> Result<(), ImageError> {
    let size = match (name, body) {
        (b"VP8 ", [_, _, _, 0x9d, 0x01, 0x2a, w0, w1, h0, h1, ..]) => {
            let side = |low: u8, high: u8| u64::from(u16::from_le_bytes([low, high]) & 0x3fff);
            Some((side(*w0, *w1), side(*h0, *h1)))
        }
        (b"VP8L", [0x2f, a, b, c, d, ..]) => {
            let packed = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
            Some(((packed & 0x3fff) + 1, (packed >> 14 & 0x3fff) + 1))
        }
        _ => None,
    };
    if let Some((width, height)) = size {
        limit.check(width, height)?;
    }
    Ok(())
}

/// Name and content of each chunk; the last one may be shorter than its length field.
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = ([u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let body = &rest[..length.min(rest.len())];
        // Chunks start at even offsets.
        self.0 = rest.get(length.saturating_add(length % 2)..).unwrap_or(&[]);
        Some((*name, body))
    }
}
