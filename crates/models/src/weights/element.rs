//! The element types that weights files use, and their conversion to `f32`. Integers convert only where `f32` holds
//! them exactly, so that an index or a counter never changes silently.

use half::{bf16, f16};

use super::WeightsError;

/// How one element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F64,
    F32,
    F16,
    BF16,
    F8E4M3,
    F8E5M2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

/// The byte order of a file's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl Element {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// The elements in `bytes` as `f32`; `name` is the tensor's, for errors. The caller must refuse trailing bytes that do not
    /// fill an element.
    pub fn decode(self, name: &str, bytes: &[u8], order: ByteOrder) -> Result<Vec<f32>, WeightsError> {
        Ok(match self {
            Self::F64 => floats(bytes, order, |b| f64::from_le_bytes(b) as f32),
            Self::F32 => floats(bytes, order, f32::from_le_bytes),
            Self::F16 => floats(bytes, order, |b| f16::from_le_bytes(b).to_f32()),
            Self::BF16 => floats(bytes, order, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F8E4M3 => floats(bytes, order, |[b]: [u8; 1]| f8_e4m3(b)),
            // The upper byte of an f16: five exponent bits and the first two of its mantissa.
            Self::F8E5M2 => floats(bytes, order, |[b]: [u8; 1]| f16::from_bits(u16::from(b) << 8).to_f32()),
            Self::I64 => integers(name, bytes, order, |b| i128::from(i64::from_le_bytes(b)))?,
            Self::I32 => integers(name, bytes, order, |b| i128::from(i32::from_le_bytes(b)))?,
            Self::I16 => floats(bytes, order, |b| f32::from(i16::from_le_bytes(b))),
            Self::I8 => floats(bytes, order, |b| f32::from(i8::from_le_bytes(b))),
            Self::U64 => integers(name, bytes, order, |b| i128::from(u64::from_le_bytes(b)))?,
            Self::U32 => integers(name, bytes, order, |b| i128::from(u32::from_le_bytes(b)))?,
            Self::U16 => floats(bytes, order, |b| f32::from(u16::from_le_bytes(b))),
            Self::U8 => floats(bytes, order, |[b]: [u8; 1]| f32::from(b)),
            Self::Bool => floats(bytes, order, |[b]: [u8; 1]| f32::from(u8::from(b != 0))),
        })
    }
}

fn floats<const N: usize>(bytes: &[u8], order: ByteOrder, convert: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (elements, _) = bytes.as_chunks::<N>();
    match order {
        ByteOrder::Little => elements.iter().map(|&b| convert(b)).collect(),
        ByteOrder::Big => elements.iter().map(|&b| convert(reversed(b))).collect(),
    }
}

fn integers<const N: usize>(
    name: &str,
    bytes: &[u8],
    order: ByteOrder,
    convert: impl Fn([u8; N]) -> i128,
) -> Result<Vec<f32>, WeightsError> {
    let (elements, _) = bytes.as_chunks::<N>();
    let mut values = Vec::with_capacity(elements.len());
    for &element in elements {
        let element = match order {
            ByteOrder::Little => element,
            ByteOrder::Big => reversed(element),
        };
        let exact = convert(element);
        let value = exact as f32;
        if value as i128 != exact {
            return Err(WeightsError::tensor(name, format!("the integer {exact} has no exact f32")));
        }
        values.push(value);
    }
    Ok(values)
}

fn reversed<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
    bytes.reverse();
    bytes
}

/// The `e4m3fn` variant: no infinities, and only all ones is NaN.
fn f8_e4m3(bits: u8) -> f32 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 3 & 0xf);
    let mantissa = f32::from(bits & 7);
    sign * match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_values_are_as_published() {
        let e4m3 = |b: u8| Element::F8E4M3.decode("x", &[b], ByteOrder::Little).unwrap()[0];
        assert_eq!(e4m3(0x7e), 448.0);
        assert_eq!(e4m3(0x38), 1.0);
        assert_eq!(e4m3(0x01), 2f32.powi(-9));
        assert_eq!(e4m3(0xb8), -1.0);
        assert!(e4m3(0x7f).is_nan());
        let e5m2 = |b: u8| Element::F8E5M2.decode("x", &[b], ByteOrder::Little).unwrap()[0];
        assert_eq!(e5m2(0x7b), 57344.0);
        assert_eq!(e5m2(0x3c), 1.0);
    }

    #[test]
    fn integers_that_f32_cannot_hold_are_refused_by_name() {
        let decode = |v: i64| Element::I64.decode("steps", &v.to_le_bytes(), ByteOrder::Little);
        assert_eq!(decode(1 << 24).unwrap(), [16777216.0]);
        assert_eq!(decode(i64::MIN).unwrap(), [-9.223372e18]);
        assert!(decode((1 << 24) + 1).unwrap_err().to_string().contains("`steps`"));
        assert!(decode(i64::MAX).is_err());
    }

    #[test]
    fn big_endian_is_reversed() {
        let bytes = 1.5f32.to_be_bytes();
        assert_eq!(Element::F32.decode("x", &bytes, ByteOrder::Big).unwrap(), [1.5]);
    }
}
