//! Recognises image formats, and for errors some other formats, by their first bytes.

use super::ImageError;

/// An image format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// Baseline and progressive, grey, colour and CMYK.
    Jpeg,
    /// All colour types and depths; the default image of an animation.
    Png,
    /// Lossy and lossless; the first frame of an animation.
    WebP,
    /// The first frame.
    Gif,
    /// Windows bitmaps.
    Bmp,
    /// The first page; not JPEG-compressed.
    Tiff,
}

impl std::fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ImageFormat::Jpeg => "JPEG",
            ImageFormat::Png => "PNG",
            ImageFormat::WebP => "WebP",
            ImageFormat::Gif => "GIF",
            ImageFormat::Bmp => "BMP",
            ImageFormat::Tiff => "TIFF",
        })
    }
}

impl ImageFormat {
    /// The format of a file that starts with `bytes`.
    pub fn of(bytes: &[u8]) -> Result<ImageFormat, ImageError> {
        if bytes.starts_with(b"\xff\xd8\xff") {
            Ok(ImageFormat::Jpeg)
        } else if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            Ok(ImageFormat::Png)
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Ok(ImageFormat::WebP)
        } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
            Ok(ImageFormat::Gif)
        } else if is_bmp(bytes) {
            Ok(ImageFormat::Bmp)
        } else if [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| bytes.starts_with(*magic)) {
            Ok(ImageFormat::Tiff)
        } else {
            Err(ImageError::NotAnImage { found: describe(bytes) })
        }
    }
}

/// `BM` alone would also match text, so the size of the second header must be a valid one.
fn is_bmp(bytes: &[u8]) -> bool {
    bytes.starts_with(b"BM") && matches!(bytes.get(14..18), Some([12 | 16 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0]))
}

fn describe(bytes: &[u8]) -> &'static str {
    let start = &bytes[..bytes.len().min(64)];
    let brand = bytes.get(4..8) == Some(b"ftyp");
    if bytes.is_empty() {
        "it is empty"
    } else if bytes.starts_with(b"%PDF") {
        "it is a PDF"
    } else if bytes.starts_with(b"PK\x03\x04") {
        "it is a zip archive"
    } else if bytes.starts_with(b"\x1f\x8b") {
        "it is gzip-compressed"
    } else if bytes.starts_with(b"8BPS") {
        "it is a Photoshop file"
    } else if brand && matches!(bytes.get(8..12), Some(b"avif" | b"avis")) {
        "it is an AVIF"
    } else if brand && matches!(bytes.get(8..11), Some(b"hei" | b"mif" | b"hev")) {
        "it is a HEIF or HEIC"
    } else if brand {
        "it is a video"
    } else if bytes.starts_with(b"\xff\x0a") || start.get(4..8) == Some(b"JXL ") {
        "it is a JPEG XL"
    } else if bytes.starts_with(b"\x93NUMPY") {
        "it is a NumPy array"
    } else if start.trim_ascii_start().starts_with(b"<") {
        "it starts with a tag, as HTML, XML and SVG do"
    } else if is_text(start) {
        "it starts with text"
    } else if start.iter().all(|byte| *byte == 0) {
        "it starts with zeros"
    } else {
        "its first bytes belong to no known format"
    }
}

fn is_text(start: &[u8]) -> bool {
    // The sample may end inside a character.
    let whole = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or(""),
        Err(_) => return false,
    };
    !whole.is_empty() && !whole.chars().any(|c| c.is_control() && !c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_called_text() {
        for text in ["notes\n", "BMW is a car maker", "Übermut tut selten gut: eine Fabel"] {
            let message = ImageFormat::of(text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains("it starts with text"), "{message}");
        }
        assert!(ImageFormat::of(b"").unwrap_err().to_string().contains("empty"));
        assert!(ImageFormat::of(b"<svg/>").unwrap_err().to_string().contains("tag"));
        assert!(ImageFormat::of(&[0; 9]).unwrap_err().to_string().contains("zeros"));
    }
}
