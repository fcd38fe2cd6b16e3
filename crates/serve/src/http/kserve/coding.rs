//! Compressed bodies.

use std::io::Read;

use axum::http::{HeaderMap, HeaderName};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};

use crate::http::problem::{Problem, ProblemKind};

/// How a body is compressed.
#[derive(Debug, Clone, Copy)]
pub enum ContentCoding {
    None,
    Gzip,
    Deflate,
}

impl ContentCoding {
    /// The coding that a header names.
    pub fn of(headers: &HeaderMap, name: HeaderName) -> Result<Self, Problem> {
        match headers.get(&name).map(|value| value.as_bytes()) {
            None | Some(b"identity") => Ok(Self::None),
            Some(b"gzip") => Ok(Self::Gzip),
            Some(b"deflate") => Ok(Self::Deflate),
            Some(_) => {
                let detail = format!("The header `{name}` should be gzip, deflate or identity.");
                Err(Problem::new(ProblemKind::UnsupportedMediaType, detail))
            }
        }
    }

    pub fn decompress(self, body: Bytes, most: usize) -> Result<Bytes, Problem> {
        let mut reader: Box<dyn Read + '_> = match self {
            Self::None => return Ok(body),
            Self::Gzip => Box::new(MultiGzDecoder::new(&body[..])),
            Self::Deflate => Box::new(ZlibDecoder::new(&body[..])),
        };
        let mut plain = Vec::new();
        let read = reader.by_ref().take(most as u64 + 1).read_to_end(&mut plain);
        read.map_err(|error| Problem::malformed(format!("The body cannot be decompressed: {error}.")))?;
        if plain.len() > most { Err(Problem::too_large(most)) } else { Ok(plain.into()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn compressed_bodies_end_at_the_limit() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&[b'x'; 100_000]).unwrap();
        let body = Bytes::from(gzip.finish().unwrap());
        assert_eq!(ContentCoding::Gzip.decompress(body.clone(), 100_000).unwrap().len(), 100_000);
        let error = ContentCoding::Gzip.decompress(body.clone(), 99_999).unwrap_err();
        assert_eq!(error.kind, ProblemKind::BodyTooLarge);
        assert_eq!(ContentCoding::Deflate.decompress(body, 9).unwrap_err().kind, ProblemKind::Malformed);
    }
}
