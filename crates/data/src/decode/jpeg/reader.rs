//! The input of zune-jpeg, whose innermost loop reads four bytes at a time. Its `ZCursor` uses `std::io::Read`, with a
//! call of `memcpy` each time; this reader is inlined to a few instructions. It returns the same bytes, also beyond the
//! end.

use zune_core::bytestream::{ZByteIoError, ZByteReaderTrait, ZSeekFrom};

/// A file in memory and the read position, which may be beyond the end.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    #[inline(always)]
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.position..).unwrap_or(&[])
    }
}

impl ZByteReaderTrait for Reader<'_> {
    #[inline(always)]
    fn read_byte_no_error(&mut self) -> u8 {
        match self.rest().first() {
            Some(byte) => {
                self.position += 1;
                *byte
            }
            None => 0,
        }
    }

    #[inline(always)]
    fn read_exact_bytes(&mut self, buf: &mut [u8]) -> Result<(), ZByteIoError> {
        self.peek_exact_bytes(buf)?;
        self.position += buf.len();
        Ok(())
    }

    #[inline(always)]
    fn read_bytes(&mut self, buf: &mut [u8]) -> Result<usize, ZByteIoError> {
        let count = self.peek_bytes(buf)?;
        self.position += count;
        Ok(count)
    }

    #[inline(always)]
    fn peek_bytes(&mut self, buf: &mut [u8]) -> Result<usize, ZByteIoError> {
        let rest = self.rest();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    #[inline(always)]
    fn peek_exact_bytes(&mut self, buf: &mut [u8]) -> Result<(), ZByteIoError> {
        let rest = self.rest();
        let found = rest.get(..buf.len()).ok_or(ZByteIoError::NotEnoughBytes(rest.len(), buf.len()))?;
        buf.copy_from_slice(found);
        Ok(())
    }

    #[inline(always)]
    fn z_seek(&mut self, from: ZSeekFrom) -> Result<u64, ZByteIoError> {
        let moved = match from {
            ZSeekFrom::Start(position) => usize::try_from(position).ok(),
            ZSeekFrom::End(offset) => self.bytes.len().checked_add_signed(offset as isize),
            ZSeekFrom::Current(offset) => self.position.checked_add_signed(offset as isize),
        };
        self.position = moved.ok_or(ZByteIoError::SeekError("Negative seek"))?;
        Ok(self.position as u64)
    }

    #[inline(always)]
    fn is_eof(&mut self) -> Result<bool, ZByteIoError> {
        Ok(self.position >= self.bytes.len())
    }

    #[inline(always)]
    fn z_position(&mut self) -> Result<u64, ZByteIoError> {
        Ok(self.position as u64)
    }

    fn read_remaining(&mut self, sink: &mut Vec<u8>) -> Result<usize, ZByteIoError> {
        let rest = self.rest();
        sink.extend_from_slice(rest);
        self.position += rest.len();
        Ok(rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zune_core::bytestream::ZCursor;

    #[derive(Clone, Debug)]
    enum CursorCall {
        Byte,
        Exact(usize),
        Some(usize),
        Peek(usize),
        PeekExact(usize),
        Start(u64),
        End(i64),
        Current(i64),
        Eof,
        Position,
        Remaining,
    }

    fn any_call() -> impl Strategy<Value = CursorCall> {
        prop_oneof![
            Just(CursorCall::Byte),
            (0usize..9).prop_map(CursorCall::Exact),
            (0usize..9).prop_map(CursorCall::Some),
            (0usize..9).prop_map(CursorCall::Peek),
            (0usize..9).prop_map(CursorCall::PeekExact),
            (0u64..40).prop_map(CursorCall::Start),
            (-40i64..9).prop_map(CursorCall::End),
            (-9i64..9).prop_map(CursorCall::Current),
            Just(CursorCall::Eof),
            Just(CursorCall::Position),
            Just(CursorCall::Remaining),
        ]
    }

    /// The returned value and the bytes read; all errors are equal.
    fn result_of(reader: &mut impl ZByteReaderTrait, call: &CursorCall) -> Option<(u64, Vec<u8>)> {
        let fill = |length: usize| vec![0xaa; length];
        match *call {
            CursorCall::Byte => Some((u64::from(reader.read_byte_no_error()), vec![])),
            CursorCall::Exact(length) => {
                let mut buf = fill(length);
                reader.read_exact_bytes(&mut buf).ok().map(|()| (0, buf))
            }
            CursorCall::Some(length) => {
                let mut buf = fill(length);
                reader.read_bytes(&mut buf).ok().map(|n| (n as u64, buf))
            }
            CursorCall::Peek(length) => {
                let mut buf = fill(length);
                reader.peek_bytes(&mut buf).ok().map(|n| (n as u64, buf))
            }
            CursorCall::PeekExact(length) => {
                let mut buf = fill(length);
                reader.peek_exact_bytes(&mut buf).ok().map(|()| (0, buf))
            }
            CursorCall::Start(position) => reader.z_seek(ZSeekFrom::Start(position)).ok().map(|at| (at, vec![])),
            CursorCall::End(offset) => reader.z_seek(ZSeekFrom::End(offset)).ok().map(|at| (at, vec![])),
            CursorCall::Current(offset) => reader.z_seek(ZSeekFrom::Current(offset)).ok().map(|at| (at, vec![])),
            CursorCall::Eof => reader.is_eof().ok().map(|end| (u64::from(end), vec![])),
            CursorCall::Position => reader.z_position().ok().map(|at| (at, vec![])),
            CursorCall::Remaining => {
                let mut sink = vec![];
                reader.read_remaining(&mut sink).ok().map(|n| (n as u64, sink))
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_reads_as_the_cursor_does(
            bytes in prop::collection::vec(any::<u8>(), 0..32),
            calls in prop::collection::vec(any_call(), 1..40),
        ) {
            let mut ours = Reader::new(&bytes);
            let mut theirs = ZCursor::new(&bytes);
            for call in &calls {
                prop_assert_eq!(result_of(&mut ours, call), result_of(&mut theirs, call), "{:?}", call);
            }
        }
    }
}
