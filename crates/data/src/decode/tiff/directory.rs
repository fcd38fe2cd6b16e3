//! The first directory of a TIFF file: checks that its tags fit into the file, and finds the interpretation of its
//! colours.

const PHOTOMETRIC: u16 = 262;
const PALETTE: u64 = 3;
const BLACK_IS_ZERO: u8 = 1;

/// The relevant content of a directory.
pub(super) struct Directory {
    /// The offset of the photometric tag's low byte, if its value is palette.
    palette_at: Option<usize>,
}

impl Directory {
    /// Checks the tags.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, &'static str> {
        let file = File { bytes, big_endian: bytes.starts_with(b"MM") };
        let wide = matches!(bytes.get(..4), Some(b"II+\0" | b"MM\0+"));
        // BigTIFF has the same fields, twice as wide.
        let word = if wide { 8 } else { 4 };
        let start = file.number(word, word).ok_or(CUT)?;
        let start = usize::try_from(start).map_err(|_| CUT)?;
        let count_size = if wide { 8 } else { 2 };
        let count = file.number(start, count_size).ok_or(CUT)?;
        let entry_size = 4 + 2 * word;
        let first = start.saturating_add(count_size);
        let room = bytes.len().saturating_sub(first) / entry_size;
        if count > room as u64 {
            return Err(CUT);
        }
        let mut palette_at = None;
        for entry in 0..count as usize {
            let at = first + entry * entry_size;
            let tag = file.number(at, 2).ok_or(CUT)?;
            let kind = file.number(at + 2, 2).ok_or(CUT)?;
            let values = file.number(at + 4, word).ok_or(CUT)?;
            if values.saturating_mul(size_of_kind(kind)) > bytes.len() as u64 {
                return Err("a tag claims more values than the file has bytes");
            }
            let value_at = at + 4 + word;
            if tag == u64::from(PHOTOMETRIC) && file.number(value_at, 2) == Some(PALETTE) {
                palette_at = Some(value_at + usize::from(file.big_endian));
            }
        }
        Ok(Self { palette_at })
    }

    /// For an image with a palette, the file with its photometric tag changed to grey: the decoder then returns the
    /// indices, and the palette is applied afterwards.
    pub(super) fn palette_as_grey(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let at = self.palette_at?;
        let mut patched = bytes.to_vec();
        *patched.get_mut(at)? = BLACK_IS_ZERO;
        Some(patched)
    }
}

const CUT: &str = "its directory lies outside of the file";

fn size_of_kind(kind: u64) -> u64 {
    match kind {
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16..=18 => 8,
        _ => 1,
    }
}

struct File<'a> {
    bytes: &'a [u8],
    big_endian: bool,
}

impl File<'_> {
    /// The integer of `size` bytes at `at`.
    fn number(&self, at: usize, size: usize) -> Option<u64> {
        let field = self.bytes.get(at..at.checked_add(size)?)?;
        let append = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Some(if self.big_endian { field.iter().fold(0, append) } else { field.iter().rev().fold(0, append) })
    }
}
