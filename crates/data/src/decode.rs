//! Reading image files: JPEG, PNG, WebP, GIF, BMP and TIFF, to 8-bit RGB.
//!
//! The format is taken from the content, never from the name. Sizes are checked against a limit
//! before any memory in proportion to them is taken, because a file of a hundred bytes can claim
//! to be 50,000 pixels wide. Colours follow Pillow's `convert("RGB")`: alpha is dropped, profiles
//! are ignored, CMYK is multiplied out; 16-bit channels keep their high byte (Pillow does that for
//! colour, but clips 16-bit grey to white, which nobody wants).

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

/// How to read an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Turn the image as its EXIF orientation says. Training pipelines in Python often do not,
    /// people looking at the result always expect it.
    pub apply_orientation: bool,
    /// Refuse images with more pixels than this. The default is Pillow's (a 512 MiB image).
    pub max_pixels: u64,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { apply_orientation: true, max_pixels: 178_956_970 }
    }
}

/// Why an image could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Any of the others, with the file that it is about.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<ImageError>,
    },
    /// The file could not be read at all.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// The content is none of the formats.
    #[error("not an image that vit can read ({found}); supported: JPEG, PNG, WebP, GIF, BMP, TIFF")]
    NotAnImage {
        /// What the content looks like instead.
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
        /// The limit in force.
        max_pixels: u64,
    },
    /// More memory than there is.
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
        /// What decoding takes at most.
        bytes: usize,
    },
    /// More bytes in the file than any image needs.
    #[error("the file is larger than {MAX_FILE_BYTES} bytes, too large for an image; convert it first")]
    FileTooLarge,
    /// A side of zero.
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
    /// The file contradicts its format.
    #[error("{format} is damaged: {reason}")]
    Damaged {
        /// Its format.
        format: ImageFormat,
        /// What the decoder found.
        reason: String,
    },
    /// A variety of the format that is not supported.
    #[error("{format} of a kind that vit cannot read: {reason}; convert it to PNG or plain JPEG")]
    Unsupported {
        /// Its format.
        format: ImageFormat,
        /// What is special about it.
        reason: String,
    },
}

impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        ImageError::Io(error)
    }
}

/// No image within the pixel limit comes near this; an endless device file does.
pub(crate) const MAX_FILE_BYTES: u64 = 2 << 30;

/// Enough to recognise every format.
const START_BYTES: u64 = 64;

/// Reads the image in the file at `path`. Errors name it.
pub fn open(path: &Path, options: &DecodeOptions) -> Result<Image, ImageError> {
    read(path)
        .and_then(|bytes| decode(&bytes, options))
        .map_err(|error| ImageError::File { path: path.to_owned(), error: Box::new(error) })
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    let mut file = regular_file::open(path)?;
    let expected = file.metadata()?.len();
    let mut bytes = Vec::new();
    // A film given by mistake should be refused without reading all of it.
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

/// Reads the image in `bytes`, the whole content of a file.
pub fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<Image, ImageError> {
    let format = ImageFormat::of(bytes)?;
    let limit = PixelLimit { format, max_pixels: options.max_pixels };
    let decoded = guarded(format, || match format {
        ImageFormat::Jpeg => jpeg::decode(bytes, &limit),
        ImageFormat::Png => png::decode(bytes, &limit),
        ImageFormat::Tiff => tiff::decode(bytes, &limit),
        ImageFormat::WebP | ImageFormat::Gif | ImageFormat::Bmp => raster::decode(bytes, &limit),
    })?;
    Ok(if options.apply_orientation { orientation::turn(decoded.image, decoded.orientation) } else { decoded.image })
}

impl Image {
    /// Reads a JPEG, PNG, WebP, GIF, BMP or TIFF file, turned upright as its EXIF orientation says.
    pub fn open(path: impl AsRef<Path>) -> Result<Image, ImageError> {
        open(path.as_ref(), &DecodeOptions::default())
    }

    /// Decodes the content of such a file.
    pub fn from_encoded(bytes: &[u8]) -> Result<Image, ImageError> {
        decode(bytes, &DecodeOptions::default())
    }
}

const GAVE_UP: &str = "the decoder gave up on it";

/// The decoders are other people's code on hostile input. Fuzzing has found a JPEG whose sampling
/// factors make zune-jpeg 0.5.15 index outside of a row (`tests/hostile/decoder_panics.jpg`), and a
/// server must outlive the next one too, so a panic becomes an error about the file.
fn guarded<T>(format: ImageFormat, work: impl FnOnce() -> Result<T, ImageError>) -> Result<T, ImageError> {
    caught(work).unwrap_or_else(|| Err(ImageError::Damaged { format, reason: GAVE_UP.to_owned() }))
}

/// What `work` gives, or nothing if it panics. What it leaves half done must not be used afterwards.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    result.ok()
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread would now be caught and become an [`ImageError`]. The standard
/// panic hook prints it all the same; a program that does not want that installs a hook that asks
/// here first and stays silent.
pub fn catches_panics() -> bool {
    GUARDED.get()
}

/// An image as stored, and how to turn it.
struct Decoded {
    image: Image,
    /// The EXIF number, 1 to 8.
    orientation: u8,
}

/// CMYK to RGB as Pillow does it, without a colour profile: `ink` is 0 where there is none, and
/// `light` is what the black lets through, 255 where there is none.
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

    /// Fails if an image of this size must not or cannot be decoded; else gives its pixels.
    fn check(&self, width: u64, height: u64) -> Result<usize, ImageError> {
        let format = self.format;
        if width == 0 || height == 0 {
            return Err(ImageError::Empty { format, width, height });
        }
        let pixels = width
            .checked_mul(height)
            .filter(|pixels| *pixels <= self.max_pixels)
            // Room for all working memory, also where `usize` is 32 bits.
            .filter(|pixels| *pixels <= isize::MAX as u64 / 16)
            .map(|pixels| pixels as usize)
            .ok_or(ImageError::TooLarge { format, width, height, max_pixels: self.max_pixels })?;
        let bytes = pixels * self.working_bytes();
        match memory::suffices(bytes) {
            true => Ok(pixels),
            false => Err(ImageError::Memory { format, width, height, bytes }),
        }
    }

    /// Bytes per pixel that a decoder takes at the same time, at most: what is stored, and the image.
    fn working_bytes(&self) -> usize {
        match self.format {
            ImageFormat::Png | ImageFormat::Gif | ImageFormat::Bmp => 8,
            // Coefficients of three channels in 16 bits; a canvas beside the frame.
            ImageFormat::Jpeg | ImageFormat::WebP => 12,
            // Four channels of 16 bits.
            ImageFormat::Tiff => 16,
        }
    }

    /// Zeros for an image of this size, where there is memory for them.
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
