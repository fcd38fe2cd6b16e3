//! One array as NumPy saves it: a magic word, a header that is a Python dict of three known keys, and the elements.

use crate::weights::element::{ByteOrder, Element};
use crate::weights::{Tensor, WeightsError, element_count, strided};

const MAGIC: &[u8] = b"\x93NUMPY";
/// More axes than NumPy itself allows.
const MAX_AXES: usize = 64;

/// The header of an array.
#[derive(Debug, PartialEq)]
struct NpyHeader {
    element: Element,
    order: ByteOrder,
    fortran: bool,
    shape: Vec<usize>,
}

/// The array in the bytes of a .npy file; `name` is for errors.
pub(super) fn parse(name: &str, bytes: &[u8]) -> Result<Tensor, WeightsError> {
    let damaged = |what: &str| WeightsError::damaged("npz", format!("array `{name}`: {what}"));
    let (text, data) = split(bytes).ok_or_else(|| damaged("it does not start with a NumPy header"))?;
    let header = NpyDict::parse(text)
        .ok_or_else(|| damaged("its header is not a dict of descr, fortran_order and shape"))?
        .check(name)?;

    let size = header.element.size();
    if element_count(&header.shape).and_then(|count| count.checked_mul(size)) != Some(data.len()) {
        return Err(damaged(&format!(
            "shape {:?} of {:?} does not have {} bytes",
            header.shape,
            header.element,
            data.len()
        )));
    }
    let values = if header.fortran && header.shape.len() > 1 {
        let gathered = strided::fortran(&header.shape)
            .and_then(|strides| strided::gather(data, size, 0, &header.shape, &strides))
            .ok_or_else(|| damaged("its shape, in Fortran order, reaches beyond its data"))?;
        header.element.decode(name, &gathered, header.order)?
    } else {
        header.element.decode(name, data, header.order)?
    };
    Tensor::new(header.shape, values)
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

/// The header's dict as written.
#[derive(Default)]
struct NpyDict<'a> {
    descr: Option<&'a str>,
    fortran: Option<bool>,
    shape: Option<Vec<usize>>,
}

impl<'a> NpyDict<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut dict = Self::default();
        let mut rest = text.trim().strip_prefix('{')?.trim_start();
        while !rest.starts_with('}') {
            let (key, after) = quoted(rest)?;
            rest = after.trim_start().strip_prefix(':')?.trim_start();
            match key {
                "descr" => {
                    // A list is a structured type, which the error names.
                    let (descr, after) = quoted(rest).or_else(|| {
                        rest.find(']').map(|end| rest.split_at(end + 1)).filter(|_| rest.starts_with('['))
                    })?;
                    dict.descr = Some(descr);
                    rest = after;
                }
                "fortran_order" => {
                    let (value, after) = match rest.strip_prefix("True") {
                        Some(after) => (true, after),
                        None => (false, rest.strip_prefix("False")?),
                    };
                    dict.fortran = Some(value);
                    rest = after;
                }
                "shape" => {
                    let (inside, after) = rest.strip_prefix('(')?.split_once(')')?;
                    dict.shape = Some(lengths(inside)?);
                    rest = after;
                }
                _ => return None,
            }
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        (rest == "}").then_some(dict)
    }

    fn check(self, name: &str) -> Result<NpyHeader, WeightsError> {
        let (Some(descr), Some(fortran), Some(shape)) = (self.descr, self.fortran, self.shape) else {
            return Err(WeightsError::damaged(
                "npz",
                format!("array `{name}`: its header lacks descr, fortran_order or shape"),
            ));
        };
        let (element, order) = element(descr).ok_or_else(|| {
            WeightsError::tensor(name, format!("element type `{descr}` is not read; save it as float32"))
        })?;
        Ok(NpyHeader { element, order, fortran, shape })
    }
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

fn element(descr: &str) -> Option<(Element, ByteOrder)> {
    let (order, kind) = descr.split_at_checked(1)?;
    let order = match order {
        "<" | "|" => ByteOrder::Little,
        ">" => ByteOrder::Big,
        _ => return None,
    };
    let element = match kind {
        "f8" => Element::F64,
        "f4" => Element::F32,
        "f2" => Element::F16,
        // NumPy has no bfloat16 and writes it as raw bytes of width 2; big_vision's files have these.
        "V2" => Element::BF16,
        "i8" => Element::I64,
        "i4" => Element::I32,
        "i2" => Element::I16,
        "i1" => Element::I8,
        "u8" => Element::U64,
        "u4" => Element::U32,
        "u2" => Element::U16,
        "u1" => Element::U8,
        "b1" => Element::Bool,
        _ => return None,
    };
    Some((element, order))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn every_documented_type_is_read() {
        let array = |descr: &str, data: &[u8]| {
            let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (1,), }}");
            parse("x", &npy(&header, data)).unwrap().data[0]
        };
        assert_eq!(array("<f4", &1.5f32.to_le_bytes()), 1.5);
        assert_eq!(array(">f4", &1.5f32.to_be_bytes()), 1.5);
        assert_eq!(array("<f8", &1.5f64.to_le_bytes()), 1.5);
        assert_eq!(array("<f2", &half::f16::from_f32(1.5).to_le_bytes()), 1.5);
        assert_eq!(array("|V2", &half::bf16::from_f32(1.5).to_le_bytes()), 1.5);
        assert_eq!(array("|i1", &[0xff]), -1.0);
        assert_eq!(array("<i4", &(-7i32).to_le_bytes()), -7.0);
        assert_eq!(array("<i8", &7i64.to_le_bytes()), 7.0);
    }

    #[test]
    fn fortran_order_becomes_row_major() {
        let data: Vec<u8> = [1f32, 4., 2., 5., 3., 6.].iter().flat_map(|v| v.to_le_bytes()).collect();
        let header = "{'shape': (2, 3), 'fortran_order': True, 'descr': '<f4'}   \n";
        let tensor = parse("x", &npy(header, &data)).unwrap();
        assert_eq!(tensor.shape, [2, 3]);
        assert_eq!(tensor.data, [1., 2., 3., 4., 5., 6.]);
    }

    #[test]
    fn hostile_headers_are_errors() {
        for header in [
            "",
            "{",
            "{'descr'",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} + 1",
            "{'descr': '<f4', 'shape': (1,)}",
            "{'é': 1}",
        ] {
            assert!(parse("x", &npy(header, &[0; 4])).is_err(), "{header}");
        }
    }
}
