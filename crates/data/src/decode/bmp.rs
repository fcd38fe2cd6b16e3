//! BMP: the headers of Windows and of OS/2 1 and 2; palettes, run lengths and bit masks. Colours are Pillow's; alpha is
//! dropped.

use super::{Decoded, ImageError, PixelLimit};
use crate::image::Image;

/// The header of a file, before that of the bitmap.
const FILE_HEADER: usize = 14;

/// OS/2's first header has 16-bit sizes and three bytes per colour.
const OLD_HEADER: u32 = 12;

/// Where bit masks are, behind the fields that all later headers begin with, or in the rest of a longer header.
const MASKS: usize = FILE_HEADER + 40;

const RAW: u32 = 0;
const RLE8: u32 = 1;
const RLE4: u32 = 2;
const BIT_MASKS: u32 = 3;
const ALPHA_BIT_MASKS: u32 = 6;

pub(super) fn decode(bytes: &[u8], limit: &PixelLimit) -> Result<Decoded, ImageError> {
    let header = Header::read(bytes, limit)?;
    let Header { width, height, .. } = header;
    let pixels = limit.check(width as u64, height as u64)?;
    let (data, coding) = header.data(bytes, limit)?;
    let rgb = match coding {
        Coding::Runs(palette) => {
            let mut indices = limit.zeros(width as u32, height as u32, pixels)?;
            Runs { four_bits: header.bits == 4, data, at: 0 }.expand(&mut indices, width, limit)?;
            let mut rgb = limit.zeros(width as u32, height as u32, pixels * 3)?;
            for (pixel, index) in rgb.chunks_exact_mut(3).zip(indices) {
                pixel.copy_from_slice(&palette[usize::from(index)]);
            }
            rgb
        }
        Coding::Rows(coding) => {
            let row_bits = width * usize::from(header.bits);
            let (used, stride) = (row_bits.div_ceil(8), row_bits.div_ceil(32) * 4);
            // The last row needs no padding.
            if data.len() < stride * (height - 1) + used {
                return Err(limit.truncated());
            }
            let mut rgb = limit.zeros(width as u32, height as u32, pixels * 3)?;
            for (row, stored) in rgb.chunks_exact_mut(width * 3).zip(data.chunks(stride)) {
                coding.read_row(stored, row, header.bits);
            }
            rgb
        }
    };
    let rgb = if header.from_top { rgb } else { upside_down(rgb, width * 3) };
    Ok(Decoded { image: Image::from_parts(width, height, rgb), orientation: 1 })
}

struct Header {
    size: u32,
    width: usize,
    height: usize,
    from_top: bool,
    bits: u16,
    compression: u32,
    /// The number of colours in the palette; 0 for all that the bits can tell apart.
    colours: u32,
}

impl Header {
    fn read(bytes: &[u8], limit: &PixelLimit) -> Result<Header, ImageError> {
        let half = |at| u16_at(bytes, at).ok_or_else(|| limit.truncated());
        let word = |at| u32_at(bytes, at).ok_or_else(|| limit.truncated());
        let size = word(FILE_HEADER)?;
        let header = match size {
            OLD_HEADER => Header {
                size,
                width: half(18)?.into(),
                height: half(20)?.into(),
                from_top: false,
                bits: half(24)?,
                compression: RAW,
                colours: 0,
            },
            40 | 52 | 56 | 64 | 108 | 124 => {
                let (width, height) = (word(18)? as i32, word(22)? as i32);
                Header {
                    size,
                    width: usize::try_from(width).map_err(|_| limit.damaged(format!("its width is {width}")))?,
                    height: height.unsigned_abs() as usize,
                    from_top: height < 0,
                    bits: half(28)?,
                    compression: word(30)?,
                    colours: word(46)?,
                }
            }
            other => return Err(limit.unsupported(format!("its header has {other} bytes"))),
        };
        Ok(header)
    }

    /// The pixels as stored and how to read them.
    fn data<'a>(&self, bytes: &'a [u8], limit: &PixelLimit) -> Result<(&'a [u8], Coding), ImageError> {
        let from = |at: usize| bytes.get(at..).ok_or_else(|| limit.truncated());
        let word = |at| u32_at(bytes, at).ok_or_else(|| limit.truncated());
        let mut start = word(10)? as usize;
        let coding = match (self.compression, self.bits) {
            (RAW, 1 | 2 | 4 | 8) | (RLE8, 8) | (RLE4, 4) => {
                let (palette, end) = self.palette(bytes).ok_or_else(|| limit.truncated())?;
                // Some writers forget the palette when they say where the pixels are.
                if start == FILE_HEADER + self.size as usize {
                    start = end;
                }
                if self.compression == RAW { Coding::Rows(Rows::Palette(palette)) } else { Coding::Runs(palette) }
            }
            (RAW, 16) => Coding::Rows(Rows::masks([0x7c00, 0x3e0, 0x1f], limit)?),
            (RAW, 24) => Coding::Rows(Rows::Blue(3)),
            (RAW, 32) => Coding::Rows(Rows::Blue(4)),
            (BIT_MASKS | ALPHA_BIT_MASKS, 16 | 32) if self.size != 64 => {
                Coding::Rows(Rows::masks([word(MASKS)?, word(MASKS + 4)?, word(MASKS + 8)?], limit)?)
            }
            (compression, bits) => {
                return Err(limit.unsupported(format!("{bits} bits per pixel with compression {compression}")));
            }
        };
        Ok((from(start)?, coding))
    }

    /// The colours, with black where the file has fewer than an index can mean, and where they end.
    fn palette(&self, bytes: &[u8]) -> Option<(Box<Palette>, usize)> {
        let start = FILE_HEADER + self.size as usize;
        let bytes_each = if self.size == OLD_HEADER { 3 } else { 4 };
        let all = 1 << self.bits;
        let count = if self.colours == 0 { all } else { all.min(self.colours as usize) };
        let end = start + count * bytes_each;
        let mut palette = Box::new([[0; 3]; 256]);
        for (colour, stored) in palette.iter_mut().zip(bytes.get(start..end)?.chunks_exact(bytes_each)) {
            *colour = [stored[2], stored[1], stored[0]];
        }
        Some((palette, end))
    }
}

type Palette = [[u8; 3]; 256];

enum Coding {
    Rows(Rows),
    Runs(Box<Palette>),
}

/// How a row of pixels is stored.
enum Rows {
    Palette(Box<Palette>),
    /// Bytes from blue to red, and this many for a pixel.
    Blue(usize),
    /// The places of red, green and blue in 16 or 32 bits.
    Masks([Mask; 3]),
}

impl Rows {
    fn masks(masks: [u32; 3], limit: &PixelLimit) -> Result<Rows, ImageError> {
        match masks.map(Mask::of) {
            [Some(red), Some(green), Some(blue)] => Ok(Rows::Masks([red, green, blue])),
            _ => Err(limit.unsupported(format!("the bit masks {:#x}, {:#x} and {:#x}", masks[0], masks[1], masks[2]))),
        }
    }

    fn read_row(&self, stored: &[u8], row: &mut [u8], bits: u16) {
        let pixels = row.chunks_exact_mut(3);
        match self {
            Rows::Palette(palette) => {
                let (bits, in_byte) = (usize::from(bits), 8 / usize::from(bits));
                let mask = u8::MAX >> (8 - bits);
                for (x, pixel) in pixels.enumerate() {
                    // The first pixel has the highest bits.
                    let shift = (in_byte - 1 - x % in_byte) * bits;
                    pixel.copy_from_slice(&palette[usize::from(stored[x / in_byte] >> shift & mask)]);
                }
            }
            Rows::Blue(bytes) => {
                for (pixel, stored) in pixels.zip(stored.chunks_exact(*bytes)) {
                    pixel.copy_from_slice(&[stored[2], stored[1], stored[0]]);
                }
            }
            Rows::Masks(masks) => {
                for (pixel, stored) in pixels.zip(stored.chunks_exact(usize::from(bits) / 8)) {
                    let stored = stored.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
                    pixel.copy_from_slice(&masks.each_ref().map(|mask| mask.read(stored)));
                }
            }
        }
    }
}

/// A run of bits that holds a channel.
struct Mask {
    shift: u32,
    largest: u32,
}

impl Mask {
    fn of(mask: u32) -> Option<Mask> {
        let shift = mask.trailing_zeros();
        let largest = mask.checked_shr(shift)?;
        (largest & largest.wrapping_add(1) == 0).then_some(Mask { shift, largest })
    }

    /// The channel, scaled to 8 bits and rounded down.
    fn read(&self, pixel: u32) -> u8 {
        let value = u64::from(pixel >> self.shift & self.largest);
        (value * 255 / u64::from(self.largest)) as u8
    }
}

/// Run lengths of palette indices, of eight bits or four.
struct Runs<'a> {
    four_bits: bool,
    data: &'a [u8],
    at: usize,
}

impl Runs<'_> {
    /// Fills rows in the order of the file. Pixels that are skipped stay 0; what runs over the end of a row is dropped.
    fn expand(mut self, indices: &mut [u8], width: usize, limit: &PixelLimit) -> Result<(), ImageError> {
        let (mut x, mut y) = (0, 0);
        let height = indices.len() / width;
        while y < height {
            let (count, value) = self.pair(limit)?;
            let row = &mut indices[y * width..][..width];
            match (count, value) {
                (0, 0) => (x, y) = (0, y + 1),
                (0, 1) => break,
                (0, 2) => {
                    let (right, down) = self.pair(limit)?;
                    (x, y) = (width.min(x + usize::from(right)), y + usize::from(down));
                }
                (0, count) => {
                    let count = usize::from(count);
                    let bytes = if self.four_bits { count.div_ceil(2) } else { count };
                    let literal = self.data.get(self.at..self.at + bytes).ok_or_else(|| limit.truncated())?;
                    // Literal runs are padded to an even number of bytes.
                    self.at += bytes.next_multiple_of(2);
                    for (i, index) in row[x..].iter_mut().take(count).enumerate() {
                        *index = if self.four_bits { nibble(literal[i / 2], i) } else { literal[i] };
                    }
                    x = width.min(x + count);
                }
                (count, value) => {
                    let count = usize::from(count);
                    for (i, index) in row[x..].iter_mut().take(count).enumerate() {
                        *index = if self.four_bits { nibble(value, i) } else { value };
                    }
                    x = width.min(x + count);
                }
            }
        }
        Ok(())
    }

    fn pair(&mut self, limit: &PixelLimit) -> Result<(u8, u8), ImageError> {
        let pair =
            self.data.get(self.at..).and_then(|rest| rest.first_chunk::<2>()).ok_or_else(|| limit.truncated())?;
        self.at += 2;
        Ok((pair[0], pair[1]))
    }
}

/// The high half of a byte for even pixels, the low half for odd ones.
fn nibble(byte: u8, pixel: usize) -> u8 {
    if pixel.is_multiple_of(2) { byte >> 4 } else { byte & 15 }
}

fn upside_down(mut rgb: Vec<u8>, row: usize) -> Vec<u8> {
    let mut rows = rgb.chunks_exact_mut(row);
    while let (Some(top), Some(bottom)) = (rows.next(), rows.next_back()) {
        top.swap_with_slice(bottom);
    }
    rgb
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{DecodeOptions, decode};

    /// A file with Windows' first header; `tables` are bit masks or colours.
    fn bmp(size: [i32; 2], bits: u32, compression: u32, tables: &[u32], data: &[u8]) -> Vec<u8> {
        let start = (54 + 4 * tables.len()) as u32;
        let colours = if bits <= 8 { tables.len() as u32 } else { 0 };
        let [width, height] = size.map(|side| side as u32);
        let fields = [0, 0, start, 40, width, height, 1 | bits << 16, compression, 0, 0, 0, colours, 0];
        let words = fields.iter().chain(tables).flat_map(|word| word.to_le_bytes());
        b"BM".iter().copied().chain(words).chain(data.iter().copied()).collect()
    }

    fn pixels(file: &[u8]) -> Result<Vec<[u8; 3]>, ImageError> {
        let image = decode(file, &DecodeOptions::default())?;
        Ok(image.pixels().as_chunks().0.to_vec())
    }

    const COLOURS: [u32; 4] = [0x000000, 0xff0000, 0x00ff00, 0x0000ff];
    const BLACK: [u8; 3] = [0, 0, 0];
    const RED: [u8; 3] = [255, 0, 0];
    const GREEN: [u8; 3] = [0, 255, 0];
    const BLUE: [u8; 3] = [0, 0, 255];

    #[test]
    fn run_lengths_of_eight_bits() {
        // Two red, three literals with padding, the end of a row; one down and one right, green, and the end.
        let data = [2, 1, 0, 3, 2, 3, 1, 0, 0, 0, 0, 2, 1, 0, 1, 2, 0, 1];
        let found = pixels(&bmp([5, 3], 8, RLE8, &COLOURS, &data)).unwrap();
        let expected = [[BLACK; 5], [BLACK, GREEN, BLACK, BLACK, BLACK], [RED, RED, GREEN, BLUE, RED]];
        assert_eq!(found, expected.concat());
    }

    #[test]
    fn run_lengths_of_four_bits() {
        // Three of red and green in turns, three literals in two bytes, and more than fits into the row.
        let data = [3, 0x12, 0, 3, 0x32, 0x10, 0, 0, 200, 0x33, 0, 1];
        let found = pixels(&bmp([6, 2], 4, RLE4, &COLOURS, &data)).unwrap();
        assert_eq!(found, [[BLUE; 6], [RED, GREEN, RED, BLUE, GREEN, RED]].concat());
    }

    #[test]
    fn bit_masks_are_scaled_to_eight_bits_and_rounded_down() {
        let five_six_five = bmp([2, -1], 16, BIT_MASKS, &[0xf800, 0x7e0, 0x1f], &[0xff, 0xff, 0x61, 0x18]);
        assert_eq!(pixels(&five_six_five).unwrap(), [[255; 3], [24, 12, 8]]);
        let default = bmp([2, -1], 16, RAW, &[], &[0x1f, 0, 0, 0x7c]);
        assert_eq!(pixels(&default).unwrap(), [BLUE, RED]);
        let ten = bmp([1, 1], 32, BIT_MASKS, &[0x3ff, 0xffc00, 0x3ff00000], &(0x3ffu32 | 512 << 10).to_le_bytes());
        assert_eq!(pixels(&ten).unwrap(), [[255, 127, 0]]);
        let error = pixels(&bmp([1, 1], 32, BIT_MASKS, &[0xff, 0, 0xa0], &[0; 4])).unwrap_err().to_string();
        assert!(error.contains("the bit masks 0xff, 0x0 and 0xa0"), "{error}");
    }

    #[test]
    fn palettes_of_one_and_two_bits_and_rows_from_the_top() {
        let one = bmp([9, -2], 1, RAW, &COLOURS[..2], &[0x81, 0x80, 0, 0, 0, 0]);
        assert_eq!(pixels(&one).unwrap()[..9], [RED, BLACK, BLACK, BLACK, BLACK, BLACK, BLACK, RED, RED]);
        let two = bmp([5, 1], 2, RAW, &COLOURS, &[0b00_01_10_11, 0b10_00_00_00]);
        assert_eq!(pixels(&two).unwrap(), [BLACK, RED, GREEN, BLUE, GREEN]);
        // A colour that the palette does not have.
        let beyond = bmp([1, 1], 8, RAW, &COLOURS, &[200]);
        assert_eq!(pixels(&beyond).unwrap(), [BLACK]);
    }

    #[test]
    fn the_first_header_of_os_2() {
        let mut file = b"BM".to_vec();
        [0u32, 0, 32, 12].iter().for_each(|word| file.extend(word.to_le_bytes()));
        [2u16, 1, 1, 1].iter().for_each(|half| file.extend(half.to_le_bytes()));
        file.extend([255, 0, 0, 0, 0, 255, 0b0100_0000]);
        assert_eq!(pixels(&file).unwrap(), [BLUE, RED]);
    }

    #[test]
    fn a_file_that_ends_early_is_cut_short() {
        let raw = bmp([2, 2], 24, RAW, &[], &[7; 13]);
        let runs = bmp([2, 2], 8, RLE8, &COLOURS, &[2, 1, 0, 0, 2]);
        let palette = bmp([2, 2], 8, RAW, &[], &[7; 8]);
        for file in [raw, runs, palette] {
            assert!(matches!(pixels(&file), Err(ImageError::Truncated { .. })));
        }
        assert_eq!(pixels(&bmp([2, 2], 24, RAW, &[], &[7; 14])).unwrap(), [[7; 3]; 4]);
    }
}
