//! The outermost layer: request ids, trace ids, logs, metrics, security headers, panics, problem documents.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use super::problem::{Dialect, Problem, ProblemKind, render};
use super::{App, Peer};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const CLOSED_BY_CLIENT: u16 = 499;
/// For answers that are data: nothing in them is ever run or framed.
const DATA_POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

pub async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut seen = Observed::new(app, &request);
    let dialect = Dialect::of_path(request.uri().path());
    let response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<&str>().copied().map(String::from);
        let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        tracing::error!(request_id = ?seen.id, what, "a request handler panicked");
        Problem::new(ProblemKind::Internal, "The server failed; its log has the cause.").into_response()
    });
    let status = response.status();
    let mut response = render(response, seen.id.to_str().unwrap_or_default(), dialect);
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, seen.id.clone());
    if let Some(parent) = &seen.trace_parent {
        headers.insert(TRACE_PARENT, parent.clone());
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(DATA_POLICY);
    seen.finish(status.as_u16());
    response
}

/// A request from its arrival to its answer. Dropped without one, the client has closed the connection.
struct Observed {
    app: Arc<App>,
    start: Instant,
    id: HeaderValue,
    trace_parent: Option<HeaderValue>,
    peer: Option<Peer>,
    method: Method,
    path: String,
    route: Option<MatchedPath>,
    status: Option<u16>,
}

impl Observed {
    fn new(app: Arc<App>, request: &Request) -> Self {
        app.metrics.requests_in_flight(1.0);
        Self {
            app,
            start: Instant::now(),
            id: request_id(request.headers()),
            trace_parent: request.headers().get(TRACE_PARENT).filter(|value| is_trace_parent(value)).cloned(),
            peer: request.extensions().get().copied(),
            method: request.method().clone(),
            path: request.uri().path().into(),
            route: request.extensions().get().cloned(),
            status: None,
        }
    }

    fn finish(&mut self, status: u16) {
        self.status = Some(status);
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let status = self.status.unwrap_or(CLOSED_BY_CLIENT);
        let time = self.start.elapsed();
        let route = self.route.as_ref().map_or("unmatched", MatchedPath::as_str);
        self.app.metrics.requests_in_flight(-1.0);
        self.app.metrics.request(route, &self.method, status, time);
        let trace = self.trace_parent.as_ref().and_then(|parent| parent.to_str().ok()?.get(3..35));
        tracing::info!(
            request_id = self.id.to_str().unwrap_or_default(),
            trace_id = trace,
            peer = self.peer.map(|Peer(address)| tracing::field::display(address)),
            method = %self.method,
            path = self.path,
            status,
            ms = (time.as_secs_f64() * 1e6).round() / 1e3,
            "request"
        );
    }
}

/// The client's id, if it is short and plain, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_plain = |value: &&HeaderValue| {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
        (1..=128).contains(&value.len()) && value.as_bytes().iter().all(plain)
    };
    if let Some(id) = headers.get(REQUEST_ID).filter(is_plain) {
        return id.clone();
    }
    // The standard library seeds its hash tables from the system's randomness; ids need to be distinct, not secret.
    let random = || RandomState::new().build_hasher().finish();
    let id = format!("{:016x}{:016x}", random(), random());
    HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("none"))
}

/// W3C Trace Context, version 00: `00-{32 hexadecimal digits}-{16}-{2}`.
fn is_trace_parent(value: &HeaderValue) -> bool {
    let parts: Vec<&[u8]> = value.as_bytes().split(|byte| *byte == b'-').collect();
    let hexadecimal = |part: &&[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    parts.iter().map(|part| part.len()).eq([2, 32, 16, 2]) && parts.iter().all(hexadecimal) && parts[0] == b"00"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_over_if_they_are_plain() {
        let with = |id: &str| HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_str(id).unwrap())]);
        assert_eq!(request_id(&with("a-1.b")), "a-1.b");
        for strange in ["a b", "<script>", "", &"x".repeat(200)] {
            assert_eq!(request_id(&with(strange)).len(), 32, "{strange}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }

    #[test]
    fn trace_parents_have_the_form_of_the_standard() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_trace_parent(&HeaderValue::from_static(good)));
        for wrong in ["", "00-x", &good.to_uppercase(), &good.replace("00-4", "01-4"), &format!("{good}-00")] {
            assert!(!is_trace_parent(&HeaderValue::from_str(wrong).unwrap()), "{wrong}");
        }
    }
}
