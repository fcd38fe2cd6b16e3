//! `POST /admin/reload`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::problem::{Problem, ProblemKind};
use crate::engine::Reload;

/// How a reload ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReloadResponse {
    /// Every model.
    pub models: Vec<ReloadOutcome>,
}

/// How the reload of one model ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReloadOutcome {
    /// The model.
    pub name: String,
    /// The new version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why the old one stays in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Load models, API keys and certificates anew
///
/// New models are opened beside the old ones and then take their place; one that cannot be opened leaves the old one in
/// use. At the public address this needs API keys, or an address that only this machine reaches.
#[utoipa::path(
    post, path = "/admin/reload", tag = "Admin",
    responses((status = 200, description = "How it ended for each model", body = ReloadResponse)),
)]
pub async fn reload(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Json<ReloadResponse>, Problem> {
    let exposed = app.options.admin_bind.is_none() && !app.options.bind.ip().is_loopback();
    if exposed && !app.keys.are_required() {
        let detail =
            "A public address takes this request only with API keys; use SIGHUP or an address for administration.";
        return Err(Problem::new(ProblemKind::Forbidden, detail));
    }
    if is_from_another_site(&uri, &headers) {
        return Err(Problem::new(ProblemKind::Forbidden, "Pages of other sites cannot do this."));
    }
    let outcome = |Reload { name, outcome }| match outcome {
        Ok(version) => ReloadOutcome { name, version: Some(version), error: None },
        Err(error) => ReloadOutcome { name, version: None, error: Some(error.to_string()) },
    };
    Ok(Json(ReloadResponse { models: app.reload().await?.into_iter().map(outcome).collect() }))
}

/// A browser sends a form to any address on behalf of any page, and says so by `Origin`.
fn is_from_another_site(uri: &Uri, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return false };
    // HTTP/2 has the host in the URI, HTTP/1.1 in a header.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(Authority::as_str)).unwrap_or_default();
    let origin = origin.to_str().unwrap_or_default();
    origin.split_once("://").is_none_or(|(_, authority)| authority != host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_same_host_may_administrate() {
        let from = |uri: &str, headers: &[(&str, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            is_from_another_site(&uri.parse().unwrap(), &headers.collect())
        };
        assert!(!from("/admin/reload", &[("host", "here:1")]));
        assert!(!from("/admin/reload", &[("host", "here:1"), ("origin", "http://here:1")]));
        assert!(!from("https://here:1/admin/reload", &[("origin", "https://here:1")]));
        for origin in ["null", "http://there", "http://here:2", "http://here:1.evil"] {
            assert!(from("/admin/reload", &[("host", "here:1"), ("origin", origin)]), "{origin}");
        }
    }
}
