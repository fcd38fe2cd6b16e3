//! Decoding of JPEG, PNG, WebP, GIF, BMP and TIFF to 8-bit RGB.
//!
//! The content decides the format, never the file name. Sizes are checked against a limit before memory in proportion
//! to them is allocated, because a file of a hundred bytes can claim to be 50,000 pixels wide. Colours follow Pillow's
//! `convert("RGB")`: alpha is dropped, profiles are ignored, CMYK is multiplied out. 16-bit channels keep their high
//! byte, as in Pillow for colour (which clips 16-bit grey to white).

mod bmp;
mod jpeg;
mod memory;
mod orientation;
mod png;
mod raster;
mod recognise;
mod tiff;
mod webp;

use crate::image::Image;
use std::cell::Cell;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use thiserror::Error;
use vit_system::regular_file;

pub use recognise::ImageFormat;

/// Options of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Apply the EXIF orientation. Training pipelines in Python often do not; viewers do.
    pub apply_orientation: bool,
    /// The maximum number of pixels. The default is Pillow's (a 512 MiB image).
    pub max_pixels: u64,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { apply_orientation: true, max_pixels: 178_956_970 }
    }
}

/// An error of decoding.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// An error and its file.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        error: Box<ImageError>,
    },
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// The content is of none of the formats.
    #[error("not an image that vit can read ({found}); supported: JPEG, PNG, WebP, GIF, BMP, TIFF")]
    NotAnImage {
        /// What the content looks like.
        found: &'static str,
    },
    /// More pixels than allowed.
    #[error("{format} of {width} x {height} pixels, over the limit of {max_pixels} pixels; make it smaller")]
    TooLarge {
        /// Its format.
        format: ImageFormat,
        /// Width that the header claims.
        width: u64,
        /// Height that the header claims.
        height: u64,
        /// The limit.
        max_pixels: u64,
    },
    /// More memory than is free.
    #[error(
        "{format} of {width} x {height} pixels takes up to {bytes} bytes of memory to decode, more than is free; make it \
         smaller"
    )]
    Memory {
        /// Its format.
        format: ImageFormat,
        /// Width that the header claims.
        width: u64,
        /// Height that the header claims.
        height: u64,
        /// The maximum memory of decoding.
        bytes: usize,
    },
    /// A file larger than any image needs.
    #[error("the file is larger than {MAX_FILE_BYTES} bytes, too large for an image; convert it first")]
    FileTooLarge,
    /// A width or height of zero.
    #[error("{format} of {width} x {height} pixels has nothing to show")]
    Empty {
        /// Its format.
        format: ImageFormat,
        /// Width that the header claims.
        width: u64,
        /// Height that the header claims.
        height: u64,
    },
    /// The file ends too early.
    #[error("{format} is cut short; copy or download it again")]
    Truncated {
        /// Its format.
        format: ImageFormat,
    },
    /// The file violates its format.
    #[error("{format} is damaged: {reason}")]
    Damaged {
        /// Its format.
        format: ImageFormat,
        /// The decoder's error.
        reason: String,
    },
    /// An unsupported variety of the format.
    #[error("{format} of a kind that vit cannot read: {reason}; convert it to PNG or plain JPEG")]
    Unsupported {
        /// Its format.
        format: ImageFormat,
        /// The variety.
        reason: String,
    },
}

impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        ImageError::Io(error)
    }
}

/// No image within the pixel limit comes near this, but an endless device file does.
pub(crate) const MAX_FILE_BYTES: u64 = 2 << 30;

/// Enough to recognise every format.
const START_BYTES: u64 = 64;

/// Decodes the file at `path`. Errors contain the path.
pub fn open(path: &Path, options: &DecodeOptions) -> Result<Image, ImageError> {
    read(path)
        .and_then(|bytes| decode(&bytes, options))
        .map_err(|error| ImageError::File { path: path.to_owned(), error: Box::new(error) })
}

/// The content of a file that begins as an image does.
pub fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    if vit_storage::is_url(path) {
        return match vit_storage::size(path)? > MAX_FILE_BYTES {
            true => Err(ImageError::FileTooLarge),
            false => Ok(vit_storage::read(path)?),
        };
    }
    let mut file = regular_file::open(path)?;
    let expected = file.metadata()?.len();
    let mut bytes = Vec::new();
    // A video given by mistake is refused without reading all of it.
    file.by_ref().take(START_BYTES).read_to_end(&mut bytes)?;
    ImageFormat::of(&bytes)?;
    if expected > MAX_FILE_BYTES {
        return Err(ImageError::FileTooLarge);
    }
    bytes.reserve_exact((expected as usize).saturating_sub(bytes.len()));
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ImageError::FileTooLarge);
    }
    Ok(bytes)
}

/// Decodes the whole content of a file.
pub fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<Image, ImageError> {
    let format = ImageFormat::of(bytes)?;
    let limit = PixelLimit { format, max_pixels: options.max_pixels };
    let decoded = guarded(format, || match format {
        ImageFormat::Jpeg => jpeg::decode(bytes, &limit),
        ImageFormat::Png => png::decode(bytes, &limit),
        ImageFormat::Tiff => tiff::decode(bytes, &limit),
        ImageFormat::WebP => raster::decode_webp(bytes, &limit),
        ImageFormat::Gif => raster::decode_gif(bytes, &limit),
        ImageFormat::Bmp => bmp::decode(bytes, &limit),
    })?;
    Ok(if options.apply_orientation { orientation::turn(decoded.image, decoded.orientation) } else { decoded.image })
}

impl Image {
    /// Decodes a JPEG, PNG, WebP, GIF, BMP or TIFF file with its EXIF orientation applied.
    pub fn open(path: impl AsRef<Path>) -> Result<Image, ImageError> {
        open(path.as_ref(), &DecodeOptions::default())
    }

    /// Decodes the content of such a file.
    pub fn from_encoded(bytes: &[u8]) -> Result<Image, ImageError> {
        decode(bytes, &DecodeOptions::default())
    }
}

const GAVE_UP: &str = "the decoder gave up on it";

/// Turns a decoder's panic into an error. Fuzzing has found a JPEG whose sampling factors make zune-jpeg 0.5.15 index
/// outside of a row (`tests/hostile/decoder_panics.jpg`).
fn guarded<T>(format: ImageFormat, work: impl FnOnce() -> Result<T, ImageError>) -> Result<T, ImageError> {
    catch_panic(work).unwrap_or_else(|| Err(ImageError::Damaged { format, reason: GAVE_UP.to_owned() }))
}

/// The result of `work`, or `None` if it panics. State that it has modified must not be used afterwards.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    result.ok()
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread would be catch_panic and become an [`ImageError`]. A panic hook can use this to stay
/// silent.
pub fn catches_panics() -> bool {
    GUARDED.get()
}

/// An image as stored, and its orientation.
struct Decoded {
    image: Image,
    /// The EXIF orientation, 1 to 8.
    orientation: u8,
}

/// CMYK to RGB as in Pillow, without a colour profile: `ink` is 0 for none, `light` is 255 for no black.
fn multiply_ink(ink: [u8; 3], light: u8) -> [u8; 3] {
    let light = u32::from(light);
    ink.map(|ink| {
        // ink * light / 255, rounded, without the division.
        let product = u32::from(ink) * light + 128;
        (light - (((product >> 8) + product) >> 8)) as u8
    })
}

/// The check that every decoder makes between header and pixels.
struct PixelLimit {
    format: ImageFormat,
    max_pixels: u64,
}

impl PixelLimit {
    fn truncated(&self) -> ImageError {
        ImageError::Truncated { format: self.format }
    }

    fn damaged(&self, reason: impl ToString) -> ImageError {
        ImageError::Damaged { format: self.format, reason: reason.to_string().trim().to_owned() }
    }

    fn unsupported(&self, reason: impl ToString) -> ImageError {
        ImageError::Unsupported { format: self.format, reason: reason.to_string().trim().to_owned() }
    }

    /// Fails if an image of this size must not or cannot be decoded; otherwise returns its number of pixels.
    fn check(&self, width: u64, height: u64) -> Result<usize, ImageError> {
        let format = self.format;
        if width == 0 || height == 0 {
            return Err(ImageError::Empty { format, width, height });
        }
        let pixels = width
            .checked_mul(height)
            .filter(|pixels| *pixels <= self.max_pixels)
            // The working memory must fit, also if `usize` has 32 bits.
            .filter(|pixels| *pixels <= isize::MAX as u64 / 16)
            .map(|pixels| pixels as usize)
            .ok_or(ImageError::TooLarge { format, width, height, max_pixels: self.max_pixels })?;
        let bytes = pixels * self.working_bytes();
        match memory::suffices(bytes) {
            true => Ok(pixels),
            false => Err(ImageError::Memory { format, width, height, bytes }),
        }
    }

    /// The maximum number of bytes per pixel that a decoder holds at once: the stored data and the image.
    fn working_bytes(&self) -> usize {
        match self.format {
            ImageFormat::Png | ImageFormat::Gif | ImageFormat::Bmp => 8,
            // 16-bit coefficients of three channels; a canvas beside the frame.
            ImageFormat::Jpeg | ImageFormat::WebP => 12,
            // Four channels of 16 bits.
            ImageFormat::Tiff => 16,
        }
    }

    /// Zeros for an image of this size, if there is memory for them.
    fn zeros(&self, width: u32, height: u32, length: usize) -> Result<Vec<u8>, ImageError> {
        let mut zeros = Vec::new();
        zeros.try_reserve_exact(length).map_err(|_| ImageError::Memory {
            format: self.format,
            width: width.into(),
            height: height.into(),
            bytes: length,
        })?;
        zeros.resize(length, 0);
        Ok(zeros)
    }
}
