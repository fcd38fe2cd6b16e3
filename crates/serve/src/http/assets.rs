//! The files of the page, which are embedded in the binary.

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::page::Asset;

/// Scripts, styles and requests only from this server; images also from memory.
const PAGE_POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; \
                           form-action 'none'";

/// A file, or 304 if the client has it.
pub fn answer(asset: &'static Asset, headers: &HeaderMap) -> Response {
    let known = headers.get(IF_NONE_MATCH).is_some_and(|tags| {
        tags.to_str().is_ok_and(|tags| tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == asset.etag))
    });
    let about = [
        (CONTENT_TYPE, asset.content_type),
        (ETAG, &asset.etag),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, PAGE_POLICY),
    ];
    match known {
        true => (StatusCode::NOT_MODIFIED, about).into_response(),
        false => (about, asset.body).into_response(),
    }
}
