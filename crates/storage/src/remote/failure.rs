//! Turns the errors of services into sentences.

use std::error::Error;

use object_store::client::{HttpError, HttpErrorKind};

use super::transport::{NotConnected, PlainHttp};
use crate::error::StorageError;
use crate::location::Location;

/// The reason for an error at a URL. Contains neither credentials nor signed URLs.
pub(super) fn translate(url: &str, error: &object_store::Error) -> StorageError {
    let location = Location::of(url.as_ref());
    let text = error.to_string();
    let code = code(&text);
    match code {
        Some("NoSuchBucket") => {
            return StorageError::NoBucket(location.map_or_else(String::new, |location| location.bucket.to_owned()));
        }
        Some(
            code @ ("InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "InvalidToken"
            | "AuthenticationFailed"
            | "RequestTimeTooSkewed"),
        ) => return StorageError::Credentials(code.to_owned()),
        Some("AccessDenied") => return StorageError::Denied("AccessDenied".to_owned()),
        _ => {}
    }
    match error {
        object_store::Error::NotFound { .. } => StorageError::Missing,
        object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => StorageError::Changed,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            StorageError::Denied(code.unwrap_or("status 403").to_owned())
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            StorageError::NoListing
        }
        _ if text.contains("non-partial response") => StorageError::NoRanges,
        _ if text.contains("PROPFIND") => StorageError::NoListing,
        error => generic(location, error, code),
    }
}

fn generic(location: Option<Location>, error: &object_store::Error, code: Option<&str>) -> StorageError {
    let host = || match location.as_ref().map(|location| (location.scheme, location.bucket)) {
        Some(("http" | "https", server)) => server.to_owned(),
        Some(("s3", _)) => {
            let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter();
            endpoint.filter_map(|name| std::env::var(name).ok()).next().unwrap_or_else(|| "Amazon S3".into())
        }
        Some(("gs", _)) => "Google Cloud Storage".into(),
        _ => "Azure Blob Storage".into(),
    };
    let mut chain: Vec<&(dyn Error + 'static)> = vec![error];
    while let Some(source) = chain.last().and_then(|error| inner(*error)) {
        chain.push(source);
    }
    // The innermost error is the cause; the others repeat it with the request.
    let reason = chain.last().map(|error| error.to_string()).unwrap_or_default();
    if chain.iter().any(|error| error.is::<PlainHttp>()) {
        return StorageError::PlainHttp;
    }
    if chain.iter().any(|error| error.is::<rustls::Error>()) {
        return StorageError::Tls { host: host(), reason };
    }
    let request = chain.iter().find_map(|error| error.downcast_ref::<HttpError>());
    match request.map(HttpError::kind) {
        Some(HttpErrorKind::Timeout) => StorageError::Unreachable { host: host(), reason },
        Some(_) if chain.iter().any(|error| error.is::<NotConnected>()) => {
            StorageError::Unreachable { host: host(), reason }
        }
        _ => StorageError::Server(code.map_or_else(|| short(&reason), str::to_owned)),
    }
}

/// The cause of an error; that of an I/O error is the error it carries.
fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let carried = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    carried.map(|carried| carried as &(dyn Error + 'static)).or_else(|| error.source())
}

/// The code in the answer of a service.
fn code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    rest.split_once("</Code>").map(|(code, _)| code)
}

/// The first line of a text, at most a hundred characters.
fn short(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(100).collect()
}
