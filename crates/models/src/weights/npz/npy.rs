//! One array of an archive, of any element type, as f32.

use vit_system::npy;

use crate::weights::element::{ByteOrder, Element};
use crate::weights::{Tensor, WeightsError, element_count, strided};

/// The array in the bytes of a .npy file; `name` is for errors.
pub(super) fn parse(name: &str, bytes: &[u8]) -> Result<Tensor, WeightsError> {
    let damaged = |what: &str| WeightsError::damaged("npz", format!("array `{name}`: {what}"));
    let (header, data) = npy::parse(bytes).map_err(damaged)?;
    let (element, order) = element(header.descr).ok_or_else(|| {
        WeightsError::tensor(name, format!("element type `{}` is not read; save it as float32", header.descr))
    })?;

    let size = element.size();
    if element_count(&header.shape).and_then(|count| count.checked_mul(size)) != Some(data.len()) {
        return Err(damaged(&format!("shape {:?} of {element:?} does not have {} bytes", header.shape, data.len())));
    }
    let values = if header.fortran && header.shape.len() > 1 {
        let gathered = strided::fortran(&header.shape)
            .and_then(|strides| strided::gather(data, size, 0, &header.shape, &strides))
            .ok_or_else(|| damaged("its shape, in Fortran order, reaches beyond its data"))?;
        element.decode(name, &gathered, order)?
    } else {
        element.decode(name, data, order)?
    };
    Tensor::new(header.shape, values)
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
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
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
