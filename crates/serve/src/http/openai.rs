//! `POST /v1/embeddings` in the shape of OpenAI's API, for clients of vector stores.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use utoipa::ToSchema;
use vit::Pool;

use super::App;
use super::answers::{answers, complete};
use super::images::ImageRequest;
use super::problem::Problem;
use crate::engine::WorkOutput;

/// A request in OpenAI's shape.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "the fields document the request")]
pub struct EmbeddingsRequest {
    /// The model.
    model: Option<String>,
    /// Images as data URIs or base64.
    input: Vec<String>,
    /// `float` or `base64` (of little-endian f32).
    encoding_format: Option<EncodingFormat>,
    /// The length of the model's features; no other is possible.
    dimensions: Option<usize>,
    /// Has no effect.
    user: Option<String>,
}

/// How embeddings are written.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "the variants document the names")]
pub enum EncodingFormat {
    Float,
    Base64,
}

/// An answer in OpenAI's shape.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingsResponse {
    /// `list`.
    pub object: &'static str,
    /// In the order of the input.
    pub data: Vec<EmbeddingObject>,
    /// The model.
    pub model: String,
    /// Images count as tokens.
    pub usage: Usage,
}

/// One embedding.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingObject {
    /// `embedding`.
    pub object: &'static str,
    /// The position in the input.
    pub index: usize,
    /// The elements, or the base64 of their bytes.
    pub embedding: EncodedEmbedding,
}

/// The elements of an embedding, of length 1.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum EncodedEmbedding {
    /// The elements.
    Float(Vec<f32>),
    /// The base64 of little-endian f32.
    Base64(String),
}

/// What the request used.
#[derive(Debug, Serialize, ToSchema)]
pub struct Usage {
    /// Images of the request.
    pub prompt_tokens: usize,
    /// The same.
    pub total_tokens: usize,
}

/// Embeddings in the shape of OpenAI's API
///
/// Images take the place of texts. Embeddings are the model's features scaled to length 1, as OpenAI's are.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "OpenAI",
    request_body(content = EmbeddingsRequest, content_type = "application/json"),
    responses((status = 200, description = "The embedding of each image", body = EmbeddingsResponse)),
)]
pub async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Result<Json<EmbeddingsResponse>, Problem> {
    let request = ImageRequest::read_json(&app, request, &["encoding_format", "dimensions", "user"]).await?;
    let fields = &request.fields;
    let model = app.engine.model(fields.text("model")?)?;
    let in_base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(Problem::option("`encoding_format` should be float or base64.")),
    };
    let length = model.card().embedding;
    if fields.integer("dimensions", 1..=usize::MAX)?.is_some_and(|asked| asked != length) {
        return Err(Problem::option(format!("`dimensions` cannot be chosen; this model's embeddings have {length}.")));
    }
    let images = request.images.len();
    let output = WorkOutput::Embedding { pool: Pool::Features, normalise: true };
    let answers = complete(answers(&app, &model, request.images, output, request.deadline).await?)?;
    let encoded = |elements: Vec<f32>| match in_base64 {
        false => EncodedEmbedding::Float(elements),
        true => {
            let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
            EncodedEmbedding::Base64(BASE64_STANDARD.encode(bytes))
        }
    };
    let data = answers.into_iter().enumerate().map(|(index, answer)| EmbeddingObject {
        object: "embedding",
        index,
        embedding: encoded(answer.embedding),
    });
    Ok(Json(EmbeddingsResponse {
        object: "list",
        data: data.collect(),
        model: model.card().name.clone(),
        usage: Usage { prompt_tokens: images, total_tokens: images },
    }))
}
