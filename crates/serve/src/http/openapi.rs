//! `GET /openapi.json`: every route, with every status that it can answer.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, HeaderBuilder, ObjectBuilder, Ref, Required, ResponseBuilder, Type};
use utoipa::{Modify, OpenApi};

use super::kserve::{MODEL, VERSION};
use super::problem::{PROBLEM_JSON, ProblemDocument};
use super::{admin, classify, embed, explain, health, kserve, metrics, models, openai};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "vit",
        description = "Vision Transformers as a service.\n\n\
            `X-Request-Timeout` shortens the time of a request: seconds (`0.5`) or milliseconds (`250ms`); when it is up, the \
            answer is 504. `X-Request-Id` is taken over into the answer and the log, `traceparent` likewise. Errors are \
            problem documents (RFC 9457)."
    ),
    paths(
        models::models, classify::classify, embed::embed, explain::explain, openai::embeddings,
        kserve::metadata, kserve::live, kserve::ready, kserve::repository_index, kserve::all_statistics,
        kserve::model_metadata, kserve::model_ready, kserve::config, kserve::statistics, kserve::infer,
        health::live, health::ready, metrics::metrics, admin::reload, document,
    ),
    components(schemas(ProblemDocument)),
    tags(
        (name = "Images", description = "Classes, embeddings and explanations of images"),
        (name = "OpenAI", description = "Embeddings in the shape of OpenAI's API"),
        (name = "KServe v2", description = "The Open Inference Protocol of KServe and Triton"),
        (name = "Health", description = "Probes and metrics"),
        (name = "Admin", description = "Administration"),
    ),
    modifiers(&VersionedPaths, &ErrorResponses, &KeySecurity),
)]
struct ApiDocument;

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| ApiDocument::openapi().to_json().unwrap_or_default().into());

/// This document
#[utoipa::path(
    get, path = "/openapi.json", tag = "Health",
    responses((status = 200, description = "The OpenAPI document", body = Object, content_type = "application/json")),
)]
pub async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

/// Method and path of every operation: `GET /v1/models`.
#[cfg(test)]
pub fn operations() -> std::collections::BTreeSet<String> {
    let document = ApiDocument::openapi();
    let operations = document.paths.paths.iter().flat_map(|(path, item)| {
        [("GET", &item.get), ("POST", &item.post)]
            .map(|(method, operation)| operation.as_ref().map(|_| format!("{method} {path}")))
    });
    operations.flatten().collect()
}

/// The operations of a path, with their methods.
fn operations_of(document: &mut utoipa::openapi::OpenApi) -> impl Iterator<Item = (&str, &mut Operation)> {
    document.paths.paths.iter_mut().flat_map(|(path, item)| {
        [item.get.as_mut(), item.post.as_mut()].into_iter().flatten().map(|operation| (path.as_str(), operation))
    })
}

/// Every path of a model exists with a version, too.
struct VersionedPaths;

impl Modify for VersionedPaths {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let paths = &mut document.paths.paths;
        let with_model: Vec<_> =
            paths.iter().filter(|(path, _)| path.starts_with(MODEL)).map(|(p, i)| (p.clone(), i.clone())).collect();
        for (path, mut item) in with_model {
            for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
                operation.operation_id = operation.operation_id.take().map(|id| format!("{id}_of_version"));
                let version = ParameterBuilder::new()
                    .name("version")
                    .parameter_in(ParameterIn::Path)
                    .required(Required::True)
                    .description(Some("The version"))
                    .schema(Some(ObjectBuilder::new().schema_type(Type::String)));
                operation.parameters.get_or_insert_default().push(version.build());
            }
            paths.insert(path.replacen(MODEL, VERSION, 1), item);
        }
    }
}

/// Errors are problem documents everywhere.
struct ErrorResponses;

impl Modify for ErrorResponses {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for (path, operation) in operations_of(document) {
            for status in statuses(path, operation.request_body.is_some()) {
                let (status, description) = *status;
                let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
                let mut response = ResponseBuilder::new().description(description).content(PROBLEM_JSON, content);
                if matches!(status, 429 | 503) {
                    let seconds = ObjectBuilder::new().schema_type(Type::Integer);
                    let header = HeaderBuilder::new().schema(seconds).description(Some("Seconds to wait"));
                    response = response.header("Retry-After", header.build());
                }
                operation.responses.responses.insert(status.to_string(), response.build().into());
            }
        }
    }
}

/// The errors of a path.
fn statuses(path: &str, has_body: bool) -> Vec<&'static (u16, &'static str)> {
    static ALL: [(u16, &str); 14] = [
        (400, "The request is malformed"),
        (401, "A valid API key is required"),
        (403, "This is not allowed here"),
        (404, "There is no such model"),
        (406, "There is no answer of the requested type"),
        (408, "The body arrived too slowly"),
        (409, "Another reload is running"),
        (413, "The body is too large"),
        (415, "The type of the body is not supported"),
        (422, "An option or an image is invalid"),
        (429, "The server is overloaded"),
        (500, "The server failed"),
        (503, "The server is shutting down, or no device of the model works"),
        (504, "The request's time was up"),
    ];
    let occurs = |status: u16| match status {
        500 => true,
        401 => !is_open(path),
        403 | 409 => path == "/admin/reload",
        400 => has_body || path.contains('{'),
        404 => has_body || path.contains('{'),
        406 => path == "/v1/explain",
        503 => has_body || path.ends_with("/ready"),
        _ => has_body,
    };
    ALL.iter().filter(|(status, _)| occurs(*status)).collect()
}

/// Routes that need no key.
fn is_open(path: &str) -> bool {
    path == "/openapi.json" || path.starts_with("/health/") || path.starts_with("/v2/health/")
}

/// Keys are needed if the server has any.
struct KeySecurity;

impl Modify for KeySecurity {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        components.add_security_scheme("key", SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key"))));
        for (path, operation) in operations_of(document) {
            if !is_open(path) {
                let none = SecurityRequirement::default();
                let schemes = ["bearer", "key"].map(|name| SecurityRequirement::new::<_, [&str; 0], &str>(name, []));
                operation.security = Some([vec![none], schemes.to_vec()].concat());
            }
        }
    }
}
