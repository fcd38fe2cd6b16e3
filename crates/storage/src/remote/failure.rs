//! Turns the errors of services into sentences.

use std::error::Error;

use object_store::client::{HttpError, HttpErrorKind};

use super::services::Service;
use super::transport::{NotConnected, PlainHttp, ProxyRefusal};
use crate::error::StorageError;
use crate::location::Location;

/// The reason for an error at a URL. Contains neither credentials nor signed URLs.
pub(super) fn translate(url: &str, error: &object_store::Error) -> StorageError {
    let location = Location::of(url.as_ref());
    let text = error.to_string();
    let code = code(&text);
    let service = location.as_ref().and_then(|location| Service::of(location.scheme));
    match code {
        Some("NoSuchBucket" | "ContainerNotFound") => {
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
    // Without other credentials, those of the machine's role are requested at these addresses.
    let asks_machine = ["169.254.", "metadata.google.internal"].iter().any(|address| text.contains(address));
    if let Some(service) = service.filter(|_| asks_machine) {
        return service.no_credentials();
    }
    match error {
        object_store::Error::NotFound { .. } => StorageError::Missing,
        object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => StorageError::Changed,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            match (code, refusal(&text)) {
                (None, Some(status)) if service.is_none() => StorageError::Refused(status.to_owned()),
                (code, status) => StorageError::Denied(code.or(status).unwrap_or("no reason is given").to_owned()),
            }
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            StorageError::NoListing
        }
        _ if text.contains("non-partial response") => StorageError::NoRanges,
        _ if text.contains("PROPFIND") => StorageError::NoListing,
        error => match refusal(&text) {
            Some(status) => StorageError::Refused(code.unwrap_or(status).to_owned()),
            None => generic(location, service, error, code),
        },
    }
}

fn generic(
    location: Option<Location>,
    service: Option<Service>,
    error: &object_store::Error,
    code: Option<&str>,
) -> StorageError {
    let host = || match (service, &location) {
        (Some(service), _) => service.endpoint(),
        (None, location) => location.as_ref().map_or_else(String::new, |location| location.bucket.to_owned()),
    };
    let chain = chain(error);
    // The innermost error is the cause; the others repeat it with the request.
    let reason = chain.last().map(|error| error.to_string()).unwrap_or_default();
    if chain.iter().any(|error| error.is::<PlainHttp>()) {
        return match service {
            Some(service) => StorageError::PlainHttp(service.allow_http()),
            None => StorageError::Refused("it redirects to http://, which has no encryption".into()),
        };
    }
    if let Some(ProxyRefusal { proxy, answer }) = chain.iter().find_map(|error| error.downcast_ref()) {
        return StorageError::Proxy { proxy: proxy.clone(), host: host(), reason: answer.clone() };
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

/// The innermost cause of an error.
pub(super) fn root_cause(error: &object_store::Error) -> String {
    chain(error).last().map_or_else(String::new, |cause| short(&cause.to_string()))
}

fn chain(error: &object_store::Error) -> Vec<&(dyn Error + 'static)> {
    let mut chain: Vec<&(dyn Error + 'static)> = vec![error];
    while let Some(source) = chain.last().and_then(|error| inner(*error)) {
        chain.push(source);
    }
    chain
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

/// The status of an answer that repeating the request would not change, such as `407 Proxy Authentication Required`.
fn refusal(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("non-2xx status code: ")?;
    let status = rest.split(':').next()?.trim();
    (status.starts_with('4') && !status.starts_with("408") && !status.starts_with("429")).then_some(status)
}

/// The first line of a text, at most a hundred characters.
fn short(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_an_answer_that_is_not_repeated() {
        let of = |status: &str| {
            format!("Error performing GET http://a/b in 2ms - Server returned non-2xx status code: {status}")
        };
        let proxy = of("407 Proxy Authentication Required: <html>: denied");
        assert_eq!(refusal(&proxy), Some("407 Proxy Authentication Required"));
        for repeated in ["500 Internal Server Error: ", "429 Too Many Requests: ", "408 Request Timeout: "] {
            assert_eq!(refusal(&of(repeated)), None);
        }
    }

    #[test]
    fn a_machine_without_a_role_has_no_credentials() {
        let text = "Error performing GET http://169.254.169.254/latest/api/token - status code: 403 Forbidden: denied";
        let error = object_store::Error::Generic { store: "S3", source: text.into() };
        assert!(matches!(translate("s3://bucket/a", &error), StorageError::NoCredentials { service: "S3", .. }));
    }
}
