//! The Open Inference Protocol, version 2, as KServe and Triton speak it.

mod coding;
pub mod grpc;
mod infer;
mod inference;
mod metadata;
mod request;
mod response;
mod statistics;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::health;
use super::problem::{Problem, ProblemKind};
use super::router::Routes;
use crate::engine::ServedModel;

pub use infer::__path_infer;
pub use metadata::{__path_config, __path_metadata, __path_model_metadata, __path_repository_index};
pub use statistics::{__path_all_statistics, __path_statistics};

/// The prefix of a model's paths.
pub const MODEL: &str = "/v2/models/{model}";
/// The same with a version; every path of a model exists with both.
pub const VERSION: &str = "/v2/models/{model}/versions/{version}";

/// The input that holds preprocessed images.
const IMAGE: &str = "image";
/// The input that holds encoded images.
const IMAGE_BYTES: &str = "image_bytes";

/// Adds all routes but those of health.
pub fn routes(routes: Routes) -> Routes {
    let routes = routes
        .get("/v2", metadata::metadata)
        .get("/v2/models/stats", statistics::all_statistics)
        .post("/v2/repository/index", metadata::repository_index);
    [MODEL, VERSION].into_iter().fold(routes, |routes, prefix| {
        routes
            .get(prefix, metadata::model_metadata)
            .get(&format!("{prefix}/ready"), model_ready)
            .get(&format!("{prefix}/config"), metadata::config)
            .get(&format!("{prefix}/stats"), statistics::statistics)
            .post(&format!("{prefix}/infer"), infer::infer)
    })
}

/// All steps from a body to images.
#[cfg(test)]
pub fn parse_inference(body: &bytes::Bytes, header_length: Option<usize>) -> Result<(), Problem> {
    let (header, tensors) = request::split(body, header_length)?;
    request::parse(&header)?.images(&tensors, 3).map(drop)
}

/// All steps from a gRPC message to images.
#[cfg(test)]
pub fn parse_rpc(message: &bytes::Bytes) -> Result<(), Problem> {
    grpc::parse(message.clone(), 3)
}

/// The model of a path.
#[derive(Debug, Deserialize)]
pub struct ModelPath {
    model: String,
    #[serde(default)]
    version: Option<String>,
}

impl ModelPath {
    fn find(&self, app: &App) -> Result<Arc<ServedModel>, Problem> {
        find(app, &self.model, self.version.as_deref())
    }
}

fn find(app: &App, name: &str, version: Option<&str>) -> Result<Arc<ServedModel>, Problem> {
    let model = app.engine.model(Some(name))?;
    let served = &model.card().version;
    match version {
        Some(version) if version != served => {
            let detail = format!("The model is served in version {served} only.");
            Err(Problem::new(ProblemKind::UnknownModel, detail))
        }
        _ => Ok(model),
    }
}

/// Whether the server lives
#[utoipa::path(
    get, path = "/v2/health/live", tag = "KServe v2", operation_id = "kserve_live",
    responses((status = 200, description = "It does", body = ServerLive)),
)]
pub async fn live() -> Json<ServerLive> {
    Json(ServerLive { live: true })
}

/// Whether all models are ready
#[utoipa::path(
    get, path = "/v2/health/ready", tag = "KServe v2", operation_id = "kserve_ready",
    responses((status = 200, description = "They are", body = ServerReady)),
)]
pub async fn ready(State(app): State<Arc<App>>) -> Result<Json<ServerReady>, Problem> {
    health::readiness(&app).map(|()| Json(ServerReady { ready: true }))
}

/// Whether a model is ready
#[utoipa::path(
    get, path = "/v2/models/{model}/ready", tag = "KServe v2",
    params(("model" = String, Path, description = "The model")),
    responses((status = 200, description = "It is", body = ModelReady)),
)]
pub async fn model_ready(
    State(app): State<Arc<App>>,
    axum::extract::Path(path): axum::extract::Path<ModelPath>,
) -> Result<Json<ModelReady>, Problem> {
    let model = path.find(&app)?;
    readiness(&app, &model).map(|()| Json(ModelReady { name: model.card().name.clone(), ready: true }))
}

/// Why a model is not ready; one with a full queue is.
fn readiness(app: &App, model: &ServedModel) -> Result<(), Problem> {
    use crate::engine::Refused::{Draining, Lost};

    match model.has_room(1) {
        Err(refused @ (Draining | Lost(_))) => Err(refused.into()),
        _ if app.is_draining() => Err(Problem::from(Draining)),
        _ => Ok(()),
    }
}

/// The server lives.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerLive {
    live: bool,
}

/// The server is ready.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerReady {
    ready: bool,
}

/// A model is ready.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelReady {
    /// The model.
    name: String,
    ready: bool,
}
