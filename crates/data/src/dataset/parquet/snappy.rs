//! Decompression of parts of a Snappy stream.
//!
//! Snappy compresses blocks of 64 KiB independently, so nothing in a block refers to bytes before it. The stream does
//! not record where blocks begin; one pass over it finds out
//! (<https://github.com/google/snappy/blob/main/format_description.txt>).

use std::ops::Range;

/// The block size of Google's library and of its ports.
const PIECE: usize = 1 << 16;

/// A position where decompression can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restart {
    /// The offset in the stream, including the length at its start.
    pub(super) packed: u32,
    /// The offset in the uncompressed data.
    pub(super) unpacked: u32,
}

/// One instruction of a stream.
enum SnappyElement {
    /// These bytes of the stream.
    Literal(Range<usize>),
    /// A copy of uncompressed bytes, `back` bytes ago.
    Copy { back: usize, length: usize },
}

/// The element at `position` of a stream, and the position of the next.
fn element(stream: &[u8], position: usize) -> Option<(SnappyElement, usize)> {
    let tag = *stream.get(position)?;
    let upper = usize::from(tag >> 2);
    let number = |at: usize, bytes: usize| {
        let bytes = stream.get(at..at + bytes)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let after = position + 1;
    match tag & 3 {
        0 => {
            let (length, start) = match upper {
                60..=63 => (number(after, upper - 59)?, after + upper - 59),
                _ => (upper, after),
            };
            let end = start.checked_add(length)?.checked_add(1).filter(|end| *end <= stream.len())?;
            Some((SnappyElement::Literal(start..end), end))
        }
        1 => {
            let back = usize::from(tag >> 5) << 8 | number(after, 1)?;
            Some((SnappyElement::Copy { back, length: 4 + (upper & 7) }, after + 1))
        }
        2 => Some((SnappyElement::Copy { back: number(after, 2)?, length: upper + 1 }, after + 2)),
        _ => Some((SnappyElement::Copy { back: number(after, 4)?, length: upper + 1 }, after + 4)),
    }
}

/// The positions where decompression of a whole stream can start, at least the first; `None` if it is damaged.
pub(super) fn restarts(stream: &[u8]) -> Option<Vec<Restart>> {
    let (length, rest) = super::pages::varint(stream)?;
    let length = usize::try_from(length).ok().filter(|length| u32::try_from(*length).is_ok())?;
    let mut position = stream.len() - rest.len();
    let mut unpacked = 0;
    let restart = |packed: usize, unpacked: usize| {
        Some(Restart { packed: u32::try_from(packed).ok()?, unpacked: u32::try_from(unpacked).ok()? })
    };
    let mut restarts = vec![restart(position, 0)?];
    while position < stream.len() {
        let last = restarts.last()?.unpacked as usize;
        if unpacked >= last + PIECE {
            restarts.push(restart(position, unpacked)?);
        }
        let (element, next) = element(stream, position)?;
        match element {
            SnappyElement::Literal(bytes) => unpacked += bytes.len(),
            SnappyElement::Copy { back, length } => {
                let from = unpacked.checked_sub(back).filter(|_| back > 0)?;
                // The copy reads bytes before these positions, so decompression cannot start there.
                while restarts.last().is_some_and(|restart| restart.unpacked as usize > from) {
                    restarts.pop();
                }
                unpacked += length;
            }
        }
        if unpacked > length {
            return None;
        }
        position = next;
    }
    (unpacked == length).then_some(restarts)
}

/// The first `length` bytes of a stream that begins at a [`Restart`]; `None` if it is damaged.
pub(super) fn unpack(stream: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // One element may reach beyond the end.
    bytes.try_reserve_exact(length.checked_add(stream.len().min(PIECE))?).ok()?;
    let mut position = 0;
    while bytes.len() < length {
        let (element, next) = element(stream, position)?;
        match element {
            SnappyElement::Literal(range) => bytes.extend_from_slice(&stream[range]),
            SnappyElement::Copy { back, length } => {
                let from = bytes.len().checked_sub(back).filter(|_| back > 0)?;
                for at in from..from + length {
                    bytes.push(bytes[at]);
                }
            }
        }
        position = next;
    }
    bytes.truncate(length);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mixture of incompressible and compressible data.
    fn content() -> Vec<u8> {
        let mut state = 1u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..300_000).map(|index| if index / 1000 % 3 == 0 { (index / 50) as u8 } else { random() }).collect()
    }

    #[test]
    fn every_part_unpacks_to_what_was_packed() {
        let content = content();
        let stream = snap::raw::Encoder::new().compress_vec(&content).unwrap();
        let restarts = restarts(&stream).unwrap();
        let starts: Vec<u32> = restarts.iter().map(|restart| restart.unpacked).collect();
        assert_eq!(starts, [0, 65_536, 131_072, 196_608, 262_144]);
        for restart in restarts {
            let start = restart.unpacked as usize;
            for length in [0, 1, 1000, 70_000, content.len()] {
                let length = length.min(content.len() - start);
                let found = unpack(&stream[restart.packed as usize..], length).unwrap();
                assert!(found == content[start..start + length], "{start} {length}");
            }
        }
    }

    #[test]
    fn no_place_to_begin_is_one_that_later_bytes_look_behind() {
        // 200,000 bytes, all copied from the one before: 1 literal, then copies of 64 bytes from 1 byte back.
        let mut stream = vec![0xc0, 0x9a, 0x0c, 0, 7];
        let mut unpacked = 1;
        while unpacked < 200_000 {
            let length = (200_000 - unpacked).min(64);
            stream.extend([((length - 1) << 2) as u8 | 2, 1, 0]);
            unpacked += length;
        }
        assert_eq!(restarts(&stream).unwrap(), [Restart { packed: 3, unpacked: 0 }]);
    }

    #[test]
    fn damaged_streams_are_refused() {
        let stream = snap::raw::Encoder::new().compress_vec(&content()).unwrap();
        for length in (0..stream.len()).step_by(997) {
            assert!(restarts(&stream[..length]).is_none());
        }
        for position in (0..stream.len()).step_by(101) {
            let mut changed = stream.clone();
            changed[position] ^= 0xff;
            if let Some(restarts) = restarts(&changed) {
                for restart in restarts {
                    let _ = unpack(&changed[restart.packed as usize..], 70_000);
                }
            }
        }
    }
}
