//! `POST /v1/embed`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::answers::{ImageResult, RequestTiming, answers, results};
use super::classify::ImageForm;
use super::images::ImageRequest;
use super::problem::Problem;
use crate::engine::{Answer, WorkOutput};

/// Options of embeddings.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "the fields document the options")]
pub struct EmbedOptions {
    /// The model; without it the first.
    model: Option<String>,
    /// `features` (the head's input, if not given), `class` (the class token), `mean` (of the patch tokens) or `patches`
    /// (all of them).
    #[param(inline)]
    pool: Option<PoolName>,
    /// Whether every vector is scaled to length 1.
    normalise: Option<bool>,
}

/// The vector that stands for an image.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "the variants document the names")]
pub enum PoolName {
    Features,
    Class,
    Mean,
    Patches,
}

/// Images in JSON, with the options of the query as members.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "the fields document the request")]
pub struct EmbedRequest {
    /// Images as base64 or as data URIs.
    images: Vec<String>,
    /// The model; without it the first.
    model: Option<String>,
    /// Which vector; `features` if not given.
    pool: Option<PoolName>,
    /// Whether every vector is scaled to length 1.
    normalise: Option<bool>,
}

/// Embeddings of images.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbedResponse {
    /// The model.
    pub model: String,
    /// The version of its weights.
    pub version: String,
    /// In the order of the images; an image without an answer has `error`, a problem document.
    pub results: Vec<ImageResult<ImageEmbedding>>,
    /// Where the time went.
    pub timing: RequestTiming,
}

/// The embedding of one image.
#[derive(Debug, Serialize, ToSchema)]
pub struct ImageEmbedding {
    /// The elements, row by row.
    pub embedding: Vec<f32>,
    /// `[dim]`, or `[patches, dim]` for all patches.
    pub shape: Vec<usize>,
}

/// Embeddings of images
///
/// The body is as for `/v1/classify`.
#[utoipa::path(
    post, path = "/v1/embed", tag = "Images", params(EmbedOptions),
    request_body(content(
        (EmbedRequest = "application/json"),
        (ImageForm = "multipart/form-data"),
        (Vec<u8> = "image/*"),
        (Vec<u8> = "application/octet-stream"),
    )),
    responses((status = 200, description = "The embedding of each image", body = EmbedResponse)),
)]
pub async fn embed(State(app): State<Arc<App>>, request: Request) -> Result<Json<EmbedResponse>, Problem> {
    let request = ImageRequest::read(&app, request, &["pool", "normalise"]).await?;
    let pool = request.fields.parsed("pool")?.unwrap_or_default();
    let normalise = request.fields.flag("normalise")?.unwrap_or(false);
    let model = app.engine.model(request.fields.text("model")?)?;
    let output = WorkOutput::Embedding { pool, normalise };
    let answers = answers(&app, &model, request.images, output, request.deadline).await?;
    let timing = RequestTiming::of(answers.iter().flatten().map(|answer| answer.timing));
    let embedding = |answer: Answer| ImageEmbedding { embedding: answer.embedding, shape: answer.embedding_shape };
    let results = results(answers.into_iter().map(|answer| answer.map(embedding)).collect())?;
    let (model, version) = (model.card().name.clone(), model.card().version.clone());
    Ok(Json(EmbedResponse { model, version, results, timing }))
}
