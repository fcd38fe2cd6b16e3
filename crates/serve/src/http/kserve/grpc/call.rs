//! A unary gRPC call over HTTP/2: one framed message in the body, the status in the trailers.
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};

use super::super::coding::ContentCoding;
use super::wire::Message;
use crate::http::App;
use crate::http::body::{HeldShare, receive};
use crate::http::problem::{Problem, ProblemKind};

const CONTENT: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// After how many milliseconds a client that retries should do so.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
/// A flag whether the message is compressed, and its length.
const PREFIX: usize = 5;

/// The message of a call.
pub struct Call {
    pub message: Bytes,
    pub deadline: Instant,
    /// The share of memory for the message.
    pub held: HeldShare,
}

impl Call {
    /// Reads the message within the limits of any body.
    pub async fn read(app: &App, request: Request) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let headers = parts.headers;
        let is_grpc = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(CONTENT.as_bytes()));
        if !is_grpc {
            let detail = "`Content-Type` should be application/grpc.";
            return Err(Problem::new(ProblemKind::UnsupportedMediaType, detail));
        }
        let deadline = deadline(&headers, app.options.timeout)?;
        let (body, held) = receive(&app.body_limits, &headers, body, deadline).await?;
        let coding = ContentCoding::of(&headers, ENCODING)?;
        let most = app.options.max_body_bytes;
        let message = app.parse(body.len(), move || unframe(body, coding, most)).await?;
        Ok(Self { message, deadline, held })
    }
}

/// The only message of a body.
fn unframe(mut body: Bytes, coding: ContentCoding, most: usize) -> Result<Bytes, Problem> {
    let wrong = || Problem::malformed("The body should be one message with its length before it.");
    let prefix: [u8; PREFIX] = *body.first_chunk().ok_or_else(wrong)?;
    let [compressed, length @ ..] = prefix;
    body.advance(PREFIX);
    if u32::from_be_bytes(length) as usize != body.len() {
        return Err(wrong());
    }
    match compressed {
        0 => Ok(body),
        1 => coding.decompress(body, most),
        _ => Err(wrong()),
    }
}

/// When a call that has just arrived must be answered.
fn deadline(headers: &HeaderMap, limit: Duration) -> Result<Instant, Problem> {
    let wrong = || Problem::malformed("`grpc-timeout` should be up to 8 digits and a unit of H, M, S, m, u, n.");
    let time = match headers.get(TIMEOUT) {
        None => limit,
        Some(value) => value.to_str().ok().and_then(timeout).ok_or_else(wrong)?.min(limit),
    };
    Ok(Instant::now() + time)
}

fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| plain)?;
    match unit {
        "H" => Some(Duration::from_secs(3600 * count)),
        "M" => Some(Duration::from_secs(60 * count)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// The answer with a message.
pub fn reply(message: Message) -> Response {
    let mut framed = Vec::with_capacity(PREFIX + message.len());
    framed.push(0);
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(&message.into_bytes());
    let trailers = HeaderMap::from_iter([(STATUS, HeaderValue::from(0))]);
    let body = Full::new(Bytes::from(framed)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, CONTENT);
    response
}

/// The answer with an error, whose status is in the headers.
pub fn refusal(problem: &Problem) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, CONTENT);
    headers.insert(STATUS, HeaderValue::from(code(problem.kind)));
    if let Ok(detail) = HeaderValue::try_from(percent_encoded(&problem.detail)) {
        headers.insert(MESSAGE, detail);
    }
    if let Some(time) = problem.retry_after {
        headers.insert(PUSHBACK, HeaderValue::from(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    }
    response
}

/// The status code of gRPC.
fn code(kind: ProblemKind) -> u16 {
    match kind {
        ProblemKind::Other(_) => 2,
        ProblemKind::Malformed
        | ProblemKind::InvalidOption
        | ProblemKind::InvalidImage
        | ProblemKind::TooManyImages
        | ProblemKind::UrlRefused
        | ProblemKind::NonFinite => 3,
        ProblemKind::Deadline | ProblemKind::SlowBody => 4,
        ProblemKind::UnknownModel => 5,
        ProblemKind::Forbidden => 7,
        ProblemKind::QueueFull | ProblemKind::BodyTooLarge => 8,
        ProblemKind::Unsuitable => 9,
        ProblemKind::ReloadRunning => 10,
        ProblemKind::NotFound
        | ProblemKind::MethodNotAllowed
        | ProblemKind::NotAcceptable
        | ProblemKind::UnsupportedMediaType => 12,
        ProblemKind::Internal => 13,
        ProblemKind::Draining | ProblemKind::DeviceLost => 14,
        ProblemKind::KeyMissing => 16,
    }
}

/// As `grpc-message` holds a text.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_unit() {
        for (text, milliseconds) in [("2S", 2000), ("250m", 250), ("1H", 3_600_000), ("99999999n", 99)] {
            assert_eq!(timeout(text).map(|time| time.as_millis()), Some(milliseconds), "{text}");
        }
        for wrong in ["", "S", "1", "1s", "-1S", "+1S", "123456789S", "1é"] {
            assert_eq!(timeout(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_body_is_one_message() {
        let unframe = |body: &'static [u8]| unframe(Bytes::from_static(body), ContentCoding::None, 100);
        assert_eq!(unframe(b"\0\0\0\0\x02hi").unwrap(), "hi");
        for wrong in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x03hi", b"\0\0\0\0\x01hi", b"\x02\0\0\0\x02hi"] {
            assert!(unframe(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn messages_are_plain_ascii() {
        assert_eq!(percent_encoded("100% `é`\n"), "100%25 `%C3%A9`%0A");
    }
}
