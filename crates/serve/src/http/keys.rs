//! API keys: `Authorization: Bearer KEY` or `X-API-Key: KEY`.

use std::path::Path;
use std::sync::{Arc, RwLock};

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ring::digest::{SHA256, digest};
use subtle::{Choice, ConstantTimeEq};

use super::App;
use super::problem::{Problem, ProblemKind};
use crate::ServeError;

type KeyHash = [u8; 32];

/// The keys of the clients. Only their hashes are kept, so that all comparisons have the same length.
pub struct ApiKeys(Option<RwLock<Vec<KeyHash>>>);

impl ApiKeys {
    /// Reads a file with one key per line; blank lines and lines that begin with `#` are skipped. Without a file no key
    /// is needed.
    pub fn open(file: Option<&Path>) -> Result<Self, ServeError> {
        Ok(Self(file.map(read).transpose()?.map(RwLock::new)))
    }

    /// Reads the file again; on failure the old keys stay.
    pub fn reload(&self, file: &Path) -> Result<(), ServeError> {
        let Some(keys) = &self.0 else { return Ok(()) };
        let new = read(file)?;
        *keys.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = new;
        Ok(())
    }

    pub fn are_required(&self) -> bool {
        self.0.is_some()
    }

    fn admit(&self, headers: &HeaderMap) -> bool {
        let Some(keys) = &self.0 else { return true };
        let Some(key) = presented(headers) else { return false };
        let presented = hash(key);
        let keys = keys.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Every key is compared, so that the time does not depend on which one fits.
        keys.iter().fold(Choice::from(0), |found, key| found | key[..].ct_eq(&presented[..])).into()
    }
}

fn read(file: &Path) -> Result<Vec<KeyHash>, ServeError> {
    let wrong = |what: String| ServeError::ApiKeyFile { path: file.into(), what };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let keys: Vec<KeyHash> = (text.lines().map(str::trim))
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|key| hash(key.as_bytes()))
        .collect();
    if keys.is_empty() { Err(wrong("there is no key in it".into())) } else { Ok(keys) }
}

fn hash(key: &[u8]) -> KeyHash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, key).as_ref());
    hash
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(key) = headers.get("x-api-key") {
        return Some(key.as_bytes());
    }
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// Refuses requests without a key.
pub async fn require_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.keys.admit(request.headers()) {
        return next.run(request).await;
    }
    let detail = "Send a key as `Authorization: Bearer KEY` or `X-API-Key: KEY`.";
    Problem::new(ProblemKind::KeyMissing, detail).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_both_headers() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, "# ours\n\nfirst\n second \r\n").unwrap();
        let keys = ApiKeys::open(Some(&file)).unwrap();
        let admitted = |name: &'static str, value: &'static str| {
            keys.admit(&HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]))
        };
        assert!(admitted("x-api-key", "first") && admitted("authorization", "Bearer second"));
        assert!(admitted("authorization", "bearer  first"));
        for wrong in ["", "firs", "first2", "# ours"] {
            assert!(!admitted("x-api-key", wrong), "{wrong}");
        }
        assert!(!admitted("authorization", "Basic first") && !keys.admit(&HeaderMap::new()));
        std::fs::write(&file, "\n").unwrap();
        assert!(keys.reload(&file).is_err() && admitted("x-api-key", "first"));
        assert!(ApiKeys::open(None).unwrap().admit(&HeaderMap::new()));
    }
}
