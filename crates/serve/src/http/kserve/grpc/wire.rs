//! The wire format of Protocol Buffers: <https://protobuf.dev/programming-guides/encoding/>.
//!
//! Messages are read field by field, so that a reader refuses a list that is too long before it is in memory: an empty
//! element takes two bytes on the wire and hundreds as a value.

use bytes::{Buf, Bytes};

use crate::http::problem::Problem;

/// The value of a field, by wire type.
#[derive(Debug, PartialEq)]
pub enum Value {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
    /// A string, bytes, a message or packed elements.
    Bytes(Bytes),
}

/// The fields of a message with their numbers, in the order of the wire.
pub struct Fields(Bytes);

impl Fields {
    pub fn new(message: Bytes) -> Self {
        Self(message)
    }

    fn read(&mut self) -> Option<(u64, Value)> {
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.0)?),
            1 => Value::Fixed64(self.fixed()?),
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).ok().filter(|length| *length <= self.0.len())?;
                Value::Bytes(self.0.split_to(length))
            }
            5 => Value::Fixed32(self.fixed()?),
            _ => return None,
        };
        Some((key >> 3, value)).filter(|(number, _)| *number > 0)
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.0.first_chunk()?;
        self.0.advance(N);
        Some(bytes)
    }
}

impl Iterator for Fields {
    type Item = Result<(u64, Value), Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.0.clear();
        }
        Some(field.ok_or_else(malformed))
    }
}

impl Value {
    pub fn bytes(self) -> Result<Bytes, Problem> {
        if let Value::Bytes(bytes) = self { Ok(bytes) } else { Err(malformed()) }
    }

    pub fn text(self) -> Result<String, Problem> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| malformed())
    }

    /// The elements of a repeated integer, of which each may have a field of its own.
    pub fn integers(self, most: usize) -> Result<Vec<i64>, Problem> {
        let mut packed = match self {
            Value::Varint(element) => return Ok(vec![element as i64]),
            other => other.bytes()?,
        };
        let mut elements = Vec::new();
        while !packed.is_empty() && elements.len() < most {
            elements.push(varint(&mut packed).ok_or_else(malformed)? as i64);
        }
        if packed.is_empty() { Ok(elements) } else { Err(malformed()) }
    }

    /// The elements of a repeated float, little-endian.
    pub fn floats(self) -> Result<Vec<f32>, Problem> {
        match self {
            Value::Fixed32(element) => Ok(vec![f32::from_le_bytes(element)]),
            other => match other.bytes()?.as_chunks::<4>() {
                (elements, []) => Ok(elements.iter().map(|element| f32::from_le_bytes(*element)).collect()),
                _ => Err(malformed()),
            },
        }
    }
}

fn varint(bytes: &mut Bytes) -> Option<u64> {
    let mut value = 0u64;
    for index in 0..10 {
        let byte = bytes.try_get_u8().ok()?;
        value |= u64::from(byte & 0x7f).checked_shl(7 * index).unwrap_or(0);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

pub fn malformed() -> Problem {
    Problem::malformed("The message is not a valid Protocol Buffers message of this call.")
}

/// A message that is being written. As in proto3, fields with the value 0 or nothing are left out.
#[derive(Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    fn write_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn integer(mut self, number: u64, value: u64) -> Self {
        if value != 0 {
            self.write_varint(number << 3);
            self.write_varint(value);
        }
        self
    }

    pub fn flag(self, number: u64, value: bool) -> Self {
        self.integer(number, value.into())
    }

    pub fn text(self, number: u64, value: &str) -> Self {
        if value.is_empty() { self } else { self.element(number, value.as_bytes()) }
    }

    pub fn texts(self, number: u64, values: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        values.into_iter().fold(self, |message, value| message.element(number, value.as_ref().as_bytes()))
    }

    /// Bytes or a text in a list, where an empty one counts.
    pub fn element(mut self, number: u64, value: &[u8]) -> Self {
        self.write_varint(number << 3 | 2);
        self.write_varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub fn integers(self, number: u64, values: impl IntoIterator<Item = i64>) -> Self {
        let mut packed = Message::default();
        values.into_iter().for_each(|value| packed.write_varint(value as u64));
        self.message(number, packed)
    }

    pub fn message(self, number: u64, value: Message) -> Self {
        self.element(number, &value.0)
    }

    pub fn messages(self, number: u64, values: impl IntoIterator<Item = Message>) -> Self {
        values.into_iter().fold(self, |message, value| message.message(number, value))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &'static [u8]) -> Result<Vec<(u64, Value)>, Problem> {
        Fields::new(Bytes::from_static(bytes)).collect()
    }

    /// The examples of the format's documentation.
    #[test]
    fn fields_are_read_and_written() {
        assert_eq!(fields(b"\x08\x96\x01").unwrap(), [(1, Value::Varint(150))]);
        assert_eq!(fields(b"\x12\x07testing").unwrap(), [(2, Value::Bytes(Bytes::from_static(b"testing")))]);
        assert_eq!(fields(b"\x0d\x00\x00\x80\x3f").unwrap().remove(0).1.floats().unwrap(), [1.0]);
        let packed = fields(b"\x32\x06\x03\x8e\x02\x9e\xa7\x05").unwrap().remove(0);
        assert_eq!((packed.0, packed.1.integers(3).unwrap()), (6, vec![3, 270, 86942]));
        assert_eq!(Message::default().integer(1, 150).text(2, "testing").into_bytes(), b"\x08\x96\x01\x12\x07testing");
        assert_eq!(Message::default().integers(6, [3, 270, 86942]).into_bytes(), b"\x32\x06\x03\x8e\x02\x9e\xa7\x05");
        assert_eq!(Message::default().integer(1, 0).text(2, "").flag(3, false).len(), 0);
        let negative = Message::default().integers(1, [-1]).into_bytes();
        assert_eq!(Fields::new(negative.into()).next().unwrap().unwrap().1.integers(1).unwrap(), [-1]);
    }

    #[test]
    fn broken_messages_are_refused() {
        for broken in [&b"\x08"[..], b"\x08\x96", b"\x12\x07test", b"\x0d\x00", b"\x0b", b"\x00\x01", &[0xff; 11]] {
            assert!(fields(Box::leak(broken.to_vec().into_boxed_slice())).is_err(), "{broken:?}");
        }
        assert!(Value::Bytes(Bytes::from_static(&[1; 9])).integers(8).is_err(), "too many");
    }
}
