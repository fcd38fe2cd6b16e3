//! What the server and its models are.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::{IMAGE, IMAGE_BYTES, ModelPath};
use crate::engine::ModelCard;
use crate::http::App;
use crate::http::problem::Problem;

/// The server.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerMetadata {
    pub name: &'static str,
    pub version: &'static str,
    /// Extensions of the protocol.
    pub extensions: Vec<&'static str>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelMetadata {
    pub name: String,
    pub versions: Vec<String>,
    pub platform: &'static str,
    /// One of them is given.
    pub inputs: Vec<TensorMetadata>,
    pub outputs: Vec<TensorMetadata>,
}

/// An input or output.
#[derive(Debug, Serialize, ToSchema)]
pub struct TensorMetadata {
    pub name: &'static str,
    pub datatype: &'static str,
    /// -1 is the number of images.
    pub shape: Vec<i64>,
}

/// The configuration of a model, as Triton gives it.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelConfig {
    pub name: String,
    pub platform: &'static str,
    pub backend: &'static str,
    pub max_batch_size: usize,
    pub input: Vec<TensorConfig>,
    pub output: Vec<TensorConfig>,
    pub instance_group: Vec<InstanceGroup>,
    pub dynamic_batching: DynamicBatching,
}

/// An input or output of one image.
#[derive(Debug, Serialize, ToSchema)]
pub struct TensorConfig {
    pub name: &'static str,
    pub data_type: String,
    pub dims: Vec<i64>,
    pub optional: bool,
}

/// Replicas of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct InstanceGroup {
    pub name: String,
    pub kind: &'static str,
    pub count: usize,
}

/// How images become batches.
#[derive(Debug, Serialize, ToSchema)]
pub struct DynamicBatching {
    pub preferred_batch_size: Vec<usize>,
    pub max_queue_delay_microseconds: u64,
}

/// A model of the repository.
#[derive(Debug, Serialize, ToSchema)]
pub struct RepositoryEntry {
    pub name: String,
    pub version: String,
    pub state: &'static str,
    pub reason: &'static str,
}

/// The server
#[utoipa::path(
    get, path = "/v2", tag = "KServe v2",
    responses((status = 200, description = "Name, version and extensions", body = ServerMetadata)),
)]
pub async fn metadata() -> Json<ServerMetadata> {
    Json(ServerMetadata::new())
}

impl ServerMetadata {
    pub fn new() -> Self {
        let extensions =
            vec!["binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics"];
        Self { name: "vit", version: env!("CARGO_PKG_VERSION"), extensions }
    }
}

/// Inputs and outputs of a model
#[utoipa::path(
    get, path = "/v2/models/{model}", tag = "KServe v2",
    params(("model" = String, Path, description = "The model")),
    responses((status = 200, description = "Its tensors and versions", body = ModelMetadata)),
)]
pub async fn model_metadata(
    State(app): State<Arc<App>>,
    Path(path): Path<ModelPath>,
) -> Result<Json<ModelMetadata>, Problem> {
    Ok(Json(ModelMetadata::of(path.find(&app)?.card())))
}

impl ModelMetadata {
    pub fn of(card: &ModelCard) -> Self {
        let batched = |TensorSpec { name, datatype, dims }: TensorSpec| TensorMetadata {
            name,
            datatype,
            shape: [vec![-1], dims].concat(),
        };
        Self {
            name: card.name.clone(),
            versions: vec![card.version.clone()],
            platform: "vit",
            inputs: inputs(card).map(batched).into(),
            outputs: outputs(card).into_iter().map(batched).collect(),
        }
    }
}

/// The configuration of a model
#[utoipa::path(
    get, path = "/v2/models/{model}/config", tag = "KServe v2",
    params(("model" = String, Path, description = "The model")),
    responses((status = 200, description = "As Triton gives it", body = ModelConfig)),
)]
pub async fn config(State(app): State<Arc<App>>, Path(path): Path<ModelPath>) -> Result<Json<ModelConfig>, Problem> {
    Ok(Json(ModelConfig::of(path.find(&app)?.card())))
}

impl ModelConfig {
    pub fn of(card: &ModelCard) -> Self {
        let tensor = |optional: bool| {
            move |TensorSpec { name, datatype, dims }: TensorSpec| {
                let data_type = if datatype == "BYTES" { "STRING" } else { datatype };
                let dims = if dims.is_empty() { vec![1] } else { dims };
                TensorConfig { name, data_type: format!("TYPE_{data_type}"), dims, optional }
            }
        };
        let kind = |device: &String| if device.starts_with("cpu") { "KIND_CPU" } else { "KIND_GPU" };
        let group = |device: &String| InstanceGroup { name: device.clone(), kind: kind(device), count: 1 };
        let preferred_batch_size: Vec<usize> = card.batches.iter().map(|(batch, _)| *batch).collect();
        Self {
            name: card.name.clone(),
            platform: "vit",
            backend: "vit",
            max_batch_size: preferred_batch_size.iter().copied().max().unwrap_or(1),
            input: inputs(card).map(tensor(true)).into(),
            output: outputs(card).into_iter().map(tensor(false)).collect(),
            instance_group: card.devices.iter().map(group).collect(),
            dynamic_batching: DynamicBatching {
                preferred_batch_size,
                max_queue_delay_microseconds: card.max_delay.as_micros() as u64,
            },
        }
    }
}

/// All models
#[utoipa::path(
    post, path = "/v2/repository/index", tag = "KServe v2",
    responses((status = 200, description = "Every model with its state", body = Vec<RepositoryEntry>)),
)]
pub async fn repository_index(State(app): State<Arc<App>>) -> Json<Vec<RepositoryEntry>> {
    Json(app.engine.models().iter().map(|model| RepositoryEntry::of(model.card())).collect())
}

impl RepositoryEntry {
    pub fn of(card: &ModelCard) -> Self {
        Self { name: card.name.clone(), version: card.version.clone(), state: "READY", reason: "" }
    }
}

/// A tensor of one image.
struct TensorSpec {
    name: &'static str,
    datatype: &'static str,
    dims: Vec<i64>,
}

fn inputs(card: &ModelCard) -> [TensorSpec; 2] {
    let architecture = &card.config.architecture;
    let [height, width] = architecture.image_size();
    let dims = [architecture.channels(), height, width].map(|side| side as i64).to_vec();
    [
        TensorSpec { name: IMAGE, datatype: "FP32", dims },
        TensorSpec { name: IMAGE_BYTES, datatype: "BYTES", dims: vec![] },
    ]
}

fn outputs(card: &ModelCard) -> Vec<TensorSpec> {
    let classes = card.config.architecture.classes() as i64;
    let tensor = |name, length| TensorSpec { name, datatype: "FP32", dims: vec![length] };
    let of_head = ["logits", "probabilities"].map(|name| tensor(name, classes));
    of_head.into_iter().filter(|_| classes > 0).chain([tensor("features", card.embedding as i64)]).collect()
}
