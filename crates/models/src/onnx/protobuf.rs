//! The wire format of Protocol Buffers, as far as it is needed to write ONNX:
//! <https://protobuf.dev/programming-guides/encoding/>. ONNX is proto2: a field with the value 0 differs from one that is
//! absent, so zeros are written.

/// A message that is being written.
#[derive(Debug, Default, Clone)]
pub(super) struct Message(Vec<u8>);

impl Message {
    fn push_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn integer(mut self, field: u64, value: i64) -> Self {
        self.push_varint(field << 3);
        // Negative integers have the ten bytes of their two's complement.
        self.push_varint(value as u64);
        self
    }

    pub fn float(mut self, field: u64, value: f32) -> Self {
        self.push_varint(field << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    pub fn message(self, field: u64, value: &Message) -> Self {
        self.bytes(field, &value.0)
    }

    pub fn messages<'a>(self, field: u64, values: impl IntoIterator<Item = &'a Message>) -> Self {
        values.into_iter().fold(self, |message, value| message.message(field, value))
    }

    pub fn bytes(self, field: u64, value: &[u8]) -> Self {
        let mut message = self.header(field, value.len() as u64);
        message.0.extend_from_slice(value);
        message
    }

    /// The start of a field of so many bytes, which the caller writes after this message.
    pub fn header(mut self, field: u64, length: u64) -> Self {
        self.push_varint(field << 3 | 2);
        self.push_varint(length);
        self
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Message;

    /// The examples of the format's documentation.
    #[test]
    fn fields_are_encoded() {
        assert_eq!(Message::default().integer(1, 150).text(2, "testing").as_bytes(), b"\x08\x96\x01\x12\x07testing");
        assert_eq!(Message::default().integer(1, 0).as_bytes(), b"\x08\x00");
        assert_eq!(Message::default().integer(1, -1).as_bytes(), b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        assert_eq!(Message::default().float(1, 1.0).as_bytes(), b"\x0d\x00\x00\x80\x3f");
        let inner = Message::default().integer(1, 150);
        assert_eq!(Message::default().message(3, &inner).as_bytes(), b"\x1a\x03\x08\x96\x01");
        assert_eq!(Message::default().header(3, 3).as_bytes(), b"\x1a\x03");
    }
}
