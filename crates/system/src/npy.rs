//! One array as NumPy saves it: a magic word, a header that is a Python dict of three known keys, and the elements.

use std::io::{self, Write};
use std::path::Path;

use crate::atomic_file;

const MAGIC: &[u8] = b"\x93NUMPY";
/// More axes than NumPy itself allows.
const MAX_AXES: usize = 64;

/// Writes an f32 array of this shape, row-major, to a file that appears once it is complete.
pub fn write(path: &Path, shape: &[usize], values: &[f32]) -> io::Result<()> {
    atomic_file::write_with(path, |out| {
        start(out, "<f4", shape)?;
        append(out, values)
    })
}

/// Writes the header of an array of this shape, row-major. `descr` is NumPy's name of the element type, such as `<f4`; the
/// elements follow.
pub fn start(out: &mut impl Write, descr: &str, shape: &[usize]) -> io::Result<()> {
    let extents: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", extents.trim_end());
    // The header follows 10 bytes, ends with a newline, and is padded so that the data start at a multiple of 64.
    let padding = (10 + header.len() + 1).next_multiple_of(64) - (10 + header.len() + 1);
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())
}

/// Writes more f32 elements, in order.
pub fn append(out: &mut impl Write, values: &[f32]) -> io::Result<()> {
    values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
}

/// The header of an array.
#[derive(Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// NumPy's name of the element type, such as `<f4`, or the list of a structured type.
    pub descr: &'a str,
    /// Whether the first axis, instead of the last, is contiguous.
    pub fortran: bool,
    /// The extent of every axis.
    pub shape: Vec<usize>,
}

/// The header at the start of a .npy file, and the bytes after it, which are not compared with the shape.
pub fn parse(bytes: &[u8]) -> Result<(Header<'_>, &[u8]), &'static str> {
    let (text, data) = split(bytes).ok_or("it does not start with a NumPy header")?;
    let header = dict(text).ok_or("its header is not a dict of descr, fortran_order and shape")?;
    Ok((header, data))
}

/// The header's text and the data after it.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (&[major, _minor], rest) = rest.split_first_chunk()?;
    let (length, rest) = match major {
        1 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::try_from(u32::from_le_bytes(*length)).ok()?, rest)
        }
        _ => return None,
    };
    let (text, data) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(text).ok()?, data))
}

fn dict(text: &str) -> Option<Header<'_>> {
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    while !rest.starts_with('}') {
        let (key, after) = quoted(rest)?;
        rest = after.trim_start().strip_prefix(':')?.trim_start();
        match key {
            "descr" => {
                let list = || rest.find(']').map(|end| rest.split_at(end + 1)).filter(|_| rest.starts_with('['));
                let (value, after) = quoted(rest).or_else(list)?;
                descr = Some(value);
                rest = after;
            }
            "fortran_order" => {
                let (value, after) = match rest.strip_prefix("True") {
                    Some(after) => (true, after),
                    None => (false, rest.strip_prefix("False")?),
                };
                fortran = Some(value);
                rest = after;
            }
            "shape" => {
                let (inside, after) = rest.strip_prefix('(')?.split_once(')')?;
                shape = Some(lengths(inside)?);
                rest = after;
            }
            _ => return None,
        }
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    if rest != "}" {
        return None;
    }
    Some(Header { descr: descr?, fortran: fortran?, shape: shape? })
}

/// The string at the start of `text` and what follows it. Type names and keys never need escapes.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// `3, 4` or `3,`; a long `3L` was written by Python 2.
fn lengths(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    let text = text.strip_suffix(',').unwrap_or(text);
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut shape = Vec::new();
    for axis in text.split(',') {
        if shape.len() == MAX_AXES {
            return None;
        }
        let axis = axis.trim();
        let digits = axis.strip_suffix('L').unwrap_or(axis);
        // The standard parser would accept a plus sign, too.
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        shape.push(digits.parse().ok()?);
    }
    Some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_written() {
        let mut bytes = Vec::new();
        start(&mut bytes, "<f2", &[3, 512]).unwrap();
        assert_eq!(bytes.len() % 64, 0);
        bytes.extend([7, 8]);
        let expected = Header { descr: "<f2", fortran: false, shape: vec![3, 512] };
        assert_eq!(parse(&bytes), Ok((expected, &[7u8, 8][..])));
        assert!(parse(&bytes[..40]).is_err());
    }
}
