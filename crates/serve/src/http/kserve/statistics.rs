//! Counters of models, in the form of Triton's statistics extension.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::ModelPath;
use crate::engine::{ServedModel, Statistics};
use crate::http::App;
use crate::http::problem::Problem;

/// Counters of models.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelStatistics {
    pub model_stats: Vec<StatisticsEntry>,
}

/// Counters of a model since start.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatisticsEntry {
    pub name: String,
    pub version: String,
    /// Images that were answered.
    pub inference_count: u64,
    /// Runs of the model.
    pub execution_count: u64,
    pub inference_stats: InferenceStatistics,
}

/// Where the time went.
#[derive(Debug, Serialize, ToSchema)]
pub struct InferenceStatistics {
    pub success: CountAndTime,
    pub fail: CountAndTime,
    /// From decoded to the start of the batch.
    pub queue: CountAndTime,
    /// Decoding and preprocessing.
    pub compute_input: CountAndTime,
    /// Runs of the model.
    pub compute_infer: CountAndTime,
    pub compute_output: CountAndTime,
}

/// A count and the sum of times.
#[derive(Debug, Serialize, ToSchema)]
pub struct CountAndTime {
    pub count: u64,
    pub ns: u64,
}

/// Counters of a model
#[utoipa::path(
    get, path = "/v2/models/{model}/stats", tag = "KServe v2",
    params(("model" = String, Path, description = "The model")),
    responses((status = 200, description = "Counters since start", body = ModelStatistics)),
)]
pub async fn statistics(
    State(app): State<Arc<App>>,
    Path(path): Path<ModelPath>,
) -> Result<Json<ModelStatistics>, Problem> {
    Ok(Json(ModelStatistics { model_stats: vec![entry(&*path.find(&app)?)] }))
}

/// Counters of all models
#[utoipa::path(
    get, path = "/v2/models/stats", tag = "KServe v2",
    responses((status = 200, description = "Counters since start", body = ModelStatistics)),
)]
pub async fn all_statistics(State(app): State<Arc<App>>) -> Json<ModelStatistics> {
    Json(ModelStatistics { model_stats: app.engine.models().iter().map(|model| entry(model)).collect() })
}

/// The counters of one model.
pub fn entry(model: &ServedModel) -> StatisticsEntry {
    let Statistics { answered, failed, batches, decode, queue, compute, .. } = model.statistics();
    let sum = |count: u64, time: Duration| CountAndTime { count, ns: time.as_nanos() as u64 };
    StatisticsEntry {
        name: model.card().name.clone(),
        version: model.card().version.clone(),
        inference_count: answered,
        execution_count: batches,
        inference_stats: InferenceStatistics {
            success: sum(answered, decode + queue + compute),
            fail: sum(failed, Duration::ZERO),
            queue: sum(answered, queue),
            compute_input: sum(answered, decode),
            compute_infer: sum(batches, compute),
            compute_output: sum(answered, Duration::ZERO),
        },
    }
}
