//! Errors as problem documents (RFC 9457). A handler returns a [`Problem`]; the outermost layer renders it, because only
//! that has the request's id and covers the errors of the framework.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::kserve::grpc;
use crate::engine::{EngineError, Refused, WorkError};

/// The media type of problem documents.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Kinds of problems: the last segment of their `type`, their status and their title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    Malformed,
    KeyMissing,
    Forbidden,
    NotFound,
    UnknownModel,
    MethodNotAllowed,
    NotAcceptable,
    SlowBody,
    ReloadRunning,
    BodyTooLarge,
    UnsupportedMediaType,
    InvalidOption,
    InvalidImage,
    TooManyImages,
    UrlRefused,
    Unsuitable,
    NonFinite,
    QueueFull,
    Internal,
    Draining,
    DeviceLost,
    Deadline,
    /// Any other status of the framework.
    Other(StatusCode),
}

impl ProblemKind {
    fn parts(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::Malformed => ("malformed", 400, "The request is malformed"),
            Self::KeyMissing => ("api-key", 401, "A valid API key is required"),
            Self::Forbidden => ("forbidden", 403, "This is not allowed here"),
            Self::NotFound => ("not-found", 404, "There is nothing at this path"),
            Self::UnknownModel => ("unknown-model", 404, "There is no such model"),
            Self::MethodNotAllowed => ("method-not-allowed", 405, "The path has no such method"),
            Self::NotAcceptable => ("not-acceptable", 406, "There is no answer of the requested type"),
            Self::SlowBody => ("slow-body", 408, "The body arrived too slowly"),
            Self::ReloadRunning => ("reload-running", 409, "Another reload is running"),
            Self::BodyTooLarge => ("body-too-large", 413, "The body is too large"),
            Self::UnsupportedMediaType => ("unsupported-media-type", 415, "The type of the body is not supported"),
            Self::InvalidOption => ("invalid-option", 422, "An option is invalid"),
            Self::InvalidImage => ("invalid-image", 422, "An image cannot be read"),
            Self::TooManyImages => ("too-many-images", 422, "The request has too many images"),
            Self::UrlRefused => ("url-refused", 422, "A URL was not fetched"),
            Self::Unsuitable => ("unsuitable-model", 422, "The model cannot do this"),
            Self::NonFinite => ("non-finite", 422, "The model's output is not finite"),
            Self::QueueFull => ("queue-full", 429, "The server is overloaded"),
            Self::Internal => ("internal", 500, "The server failed"),
            Self::Draining => ("draining", 503, "The server is shutting down"),
            Self::DeviceLost => ("device-lost", 503, "No device of the model works"),
            Self::Deadline => ("deadline", 504, "The request's time was up"),
            Self::Other(status) => ("other", status.as_u16(), status.canonical_reason().unwrap_or("Error")),
        }
    }

    /// The last segment of the problem's type.
    pub fn slug(self) -> &'static str {
        self.parts().0
    }

    /// The status of the answer.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.parts().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// An error on its way to the client.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    pub kind: ProblemKind,
    pub detail: String,
    pub retry_after: Option<Duration>,
    /// The limit that was exceeded, in bytes or images.
    pub limit: Option<u64>,
    /// The images that the problem is about.
    pub images: Vec<ImageProblem>,
}

/// An image of a request and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ImageProblem {
    /// The position of the image in the request, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub detail: String,
}

impl Problem {
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), retry_after: None, limit: None, images: Vec::new() }
    }

    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Malformed, detail)
    }

    pub fn option(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::InvalidOption, detail)
    }

    pub fn image(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::InvalidImage, detail)
    }

    pub fn too_large(limit: usize) -> Self {
        let detail = format!("The body has more than {limit} bytes.");
        Self { limit: Some(limit as u64), ..Self::new(ProblemKind::BodyTooLarge, detail) }
    }

    pub fn too_many_images(limit: usize) -> Self {
        let detail = format!("A request may have {limit} images at most.");
        Self { limit: Some(limit as u64), ..Self::new(ProblemKind::TooManyImages, detail) }
    }

    pub fn deadline() -> Self {
        Self::new(ProblemKind::Deadline, "The request's time was up before it was answered.")
    }

    /// One problem for a request whose images all failed, or whose answer has no place for errors of single images.
    pub fn of_images(problems: Vec<(usize, Problem)>) -> Self {
        let images: Vec<ImageProblem> =
            problems.iter().map(|(index, p)| ImageProblem { index: *index, detail: p.detail.clone() }).collect();
        let Some((index, worst)) = problems.into_iter().max_by_key(|(_, problem)| problem.kind.status()) else {
            return Self::new(ProblemKind::Internal, "There are no images to report.");
        };
        let detail = format!("Image {index}: {}", worst.detail);
        Self { detail, images, ..worst }
    }

    fn from_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::new(ProblemKind::NotFound, "There is nothing at this path; see /docs."),
            StatusCode::METHOD_NOT_ALLOWED => {
                Self::new(ProblemKind::MethodNotAllowed, "The header `Allow` lists the methods of this path.")
            }
            other => Self::new(ProblemKind::Other(other), other.canonical_reason().unwrap_or("An error.")),
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let detail = sentence(&refused.to_string());
        match refused {
            Refused::Overloaded { retry_after } => {
                Self { retry_after: Some(retry_after), ..Self::new(ProblemKind::QueueFull, detail) }
            }
            Refused::TooMany { queue, .. } => {
                Self { limit: Some(queue as u64), ..Self::new(ProblemKind::TooManyImages, detail) }
            }
            Refused::Draining => Self::new(ProblemKind::Draining, detail),
            Refused::Lost(_) => Self::new(ProblemKind::DeviceLost, detail),
        }
    }
}

impl From<WorkError> for Problem {
    fn from(error: WorkError) -> Self {
        let kind = match &error {
            WorkError::Image(_) | WorkError::Length { .. } => ProblemKind::InvalidImage,
            WorkError::Unsuitable(_) => ProblemKind::Unsuitable,
            WorkError::NonFinite(_) => ProblemKind::NonFinite,
            WorkError::Deadline => ProblemKind::Deadline,
            WorkError::DeviceLost(_) => ProblemKind::DeviceLost,
            WorkError::Internal(_) => ProblemKind::Internal,
        };
        Self::new(kind, sentence(&error.to_string()))
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let kind = match &error {
            EngineError::UnknownModel { .. } => ProblemKind::UnknownModel,
            _ => ProblemKind::Internal,
        };
        Self::new(kind, sentence(&error.to_string()))
    }
}

/// Library errors are clauses (`the queue is full`); `detail` is a sentence.
fn sentence(clause: &str) -> String {
    let mut letters = clause.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if clause.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.kind.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The members that a protocol's clients read errors from, beside those of RFC 9457.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Plain,
    /// `error` is a text.
    KServe,
    /// `error` is an object with `message`, `type` and `code`.
    OpenAi,
    /// No document: a status in the headers.
    Grpc,
}

impl Dialect {
    pub fn of_path(path: &str) -> Self {
        match path {
            "/v1/embeddings" => Self::OpenAi,
            _ if path == "/v2" || path.starts_with("/v2/") => Self::KServe,
            _ if path.starts_with(grpc::SERVICE) => Self::Grpc,
            _ => Self::Plain,
        }
    }
}

/// A problem document.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemDocument<'a> {
    /// A relative reference that names the kind of problem: `/problems/queue-full`.
    #[serde(rename = "type")]
    #[schema(example = "/problems/queue-full")]
    kind: String,
    /// The kind in words.
    title: &'a str,
    /// The status of the answer.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What happened, in a sentence.
    detail: &'a str,
    /// The id of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    /// The limit that was exceeded, in bytes or images.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    /// The images that the problem is about.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    images: &'a [ImageProblem],
    /// The detail once more, as the protocol of the path has it: a text for KServe, an object for OpenAI's clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    error: Option<ProtocolError<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ProtocolError<'a> {
    Text(&'a str),
    Object { message: &'a str, r#type: &'a str, param: Option<()>, code: &'a str },
}

impl Problem {
    /// The document, for a whole answer or for one image of it.
    pub fn document<'a>(&'a self, instance: Option<&'a str>, dialect: Dialect) -> ProblemDocument<'a> {
        let (slug, status, title) = self.kind.parts();
        let error = match dialect {
            Dialect::Plain | Dialect::Grpc => None,
            Dialect::KServe => Some(ProtocolError::Text(&self.detail)),
            Dialect::OpenAi => {
                let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
                Some(ProtocolError::Object { message: &self.detail, r#type: kind, param: None, code: slug })
            }
        };
        ProblemDocument {
            kind: format!("/problems/{slug}"),
            title,
            status,
            detail: &self.detail,
            instance,
            limit: self.limit,
            images: &self.images,
            error,
        }
    }
}

/// Replaces the body of an answer that is an error by its problem document.
pub fn render(response: Response, instance: &str, dialect: Dialect) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let problem = parts.extensions.remove::<Problem>().unwrap_or_else(|| Problem::from_status(status));
    if dialect == Dialect::Grpc {
        return grpc::refusal(&problem);
    }
    let document = serde_json::to_vec(&problem.document(Some(instance), dialect)).unwrap_or_default();
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    match (problem.retry_after, problem.kind) {
        (None, ProblemKind::KeyMissing) => {
            parts.headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        (None, ProblemKind::Draining | ProblemKind::DeviceLost) => {
            parts.headers.insert(RETRY_AFTER, HeaderValue::from(5));
        }
        (None, _) => {}
        (Some(time), _) => {
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            parts.headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
    }
    Response::from_parts(parts, Body::from(document))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_have_the_members_of_their_protocol() {
        let problem = Problem::from(Refused::Overloaded { retry_after: Duration::from_millis(1500) });
        let plain = serde_json::to_value(problem.document(Some("id"), Dialect::Plain)).unwrap();
        assert_eq!(plain["type"], "/problems/queue-full");
        assert_eq!((plain["status"].as_u64(), plain["instance"].as_str()), (Some(429), Some("id")));
        assert!(plain.get("error").is_none());
        let kserve = serde_json::to_value(problem.document(None, Dialect::of_path("/v2/models/m/infer"))).unwrap();
        assert_eq!(kserve["error"], kserve["detail"]);
        let openai = serde_json::to_value(problem.document(None, Dialect::of_path("/v1/embeddings"))).unwrap();
        assert_eq!(openai["error"]["message"], openai["detail"]);
        let response = render(problem.into_response(), "id", Dialect::Plain);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
    }

    #[test]
    fn the_gravest_image_decides_about_the_status() {
        let problems = vec![(0, Problem::image("bad")), (2, Problem::new(ProblemKind::DeviceLost, "gone"))];
        let problem = Problem::of_images(problems);
        assert_eq!((problem.kind, problem.images.len()), (ProblemKind::DeviceLost, 2));
        assert_eq!(problem.detail, "Image 2: gone");
    }
}
