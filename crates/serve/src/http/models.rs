//! `GET /v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use crate::engine::{ModelCard, ServedModel};

/// The models, and the limits of requests.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// The models, the default first.
    pub models: Vec<ModelDescription>,
    /// Limits of requests.
    pub limits: RequestLimits,
    /// `list`, as in OpenAI's API.
    pub object: &'static str,
    /// The models once more, as in OpenAI's API.
    pub data: Vec<ModelObject>,
}

/// What a client may know about a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelDescription {
    /// Its name in requests.
    pub name: String,
    /// The beginning of the SHA-256 of its weights and configuration.
    pub version: String,
    /// Whether requests without a model get this one.
    pub default: bool,
    /// The architecture: `vit_base_patch16_224`, or its family.
    pub architecture: String,
    /// The number of parameters.
    pub parameters: u64,
    /// Height and width of its input.
    pub image_size: [usize; 2],
    /// The number of classes; 0 without a classification head.
    pub classes: usize,
    /// The classes' names; empty where they are not known.
    pub labels: Vec<String>,
    /// `single_label_classification` or `multi_label_classification`.
    pub problem_type: &'static str,
    /// Elements of an embedding.
    pub embedding: usize,
    /// Layers with attention.
    pub layers: usize,
    /// Heads of each of these layers.
    pub heads: Vec<usize>,
    /// Its devices, one per replica.
    pub device: Vec<String>,
    /// The precision.
    pub precision: String,
    /// The most images in one run.
    pub max_batch: usize,
    /// How long an image waits for others, in milliseconds.
    pub max_delay_ms: f64,
    /// Memory of all replicas.
    pub memory_bytes: usize,
    /// Methods of explanation that suit it.
    pub explain: Vec<String>,
}

/// Limits of requests.
#[derive(Debug, Serialize, ToSchema)]
pub struct RequestLimits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Pixels of an image.
    pub pixels: u64,
    /// Images of a request.
    pub images: usize,
    /// Seconds of a request.
    pub timeout_s: f64,
    /// Whether images are turned as their EXIF orientation says.
    pub apply_orientation: bool,
}

/// A model in OpenAI's shape.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelObject {
    /// The model's name.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// 0: the time is not known.
    pub created: u64,
    /// `vit`.
    pub owned_by: &'static str,
}

/// The models
#[utoipa::path(
    get, path = "/v1/models", tag = "Images",
    responses((status = 200, description = "The models, the default first", body = ModelList)),
)]
pub async fn models(State(app): State<Arc<App>>) -> Json<ModelList> {
    let models = app.engine.models();
    let object = |model: &Arc<ServedModel>| ModelObject {
        id: model.card().name.clone(),
        object: "model",
        created: 0,
        owned_by: "vit",
    };
    Json(ModelList {
        models: models.iter().enumerate().map(|(index, model)| describe(model.card(), index == 0)).collect(),
        limits: RequestLimits {
            body_bytes: app.options.max_body_bytes,
            pixels: app.options.engine.decode.max_pixels,
            images: app.options.max_images,
            timeout_s: app.options.timeout.as_secs_f64(),
            apply_orientation: app.options.engine.decode.apply_orientation,
        },
        object: "list",
        data: models.iter().map(object).collect(),
    })
}

fn describe(card: &ModelCard, default: bool) -> ModelDescription {
    let config = &card.config;
    ModelDescription {
        name: card.name.clone(),
        version: card.version.clone(),
        default,
        architecture: config.name.clone().unwrap_or_else(|| config.architecture.kind().into()),
        parameters: card.parameters,
        image_size: config.architecture.image_size(),
        classes: config.architecture.classes(),
        labels: config.labels.clone(),
        problem_type: config.problem_type.name(),
        embedding: card.embedding,
        layers: card.heads.len(),
        heads: card.heads.clone(),
        device: card.devices.clone(),
        precision: card.precision.clone(),
        max_batch: card.batches.iter().map(|(batch, _)| *batch).max().unwrap_or(1),
        max_delay_ms: card.max_delay.as_secs_f64() * 1e3,
        memory_bytes: card.memory_bytes,
        explain: card.methods.iter().map(ToString::to_string).collect(),
    }
}
