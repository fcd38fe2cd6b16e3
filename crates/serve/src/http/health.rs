//! `GET /health/live` and `GET /health/ready`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::problem::{Problem, ProblemKind};
use crate::engine::Readiness;

/// The server's health.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `live` or `ready`.
    pub status: &'static str,
}

/// Whether the process answers
#[utoipa::path(
    get, path = "/health/live", tag = "Health",
    responses((status = 200, description = "The process answers", body = Health)),
)]
pub async fn live() -> Json<Health> {
    Json(Health { status: "live" })
}

/// Whether every model can answer
///
/// 503 while the server shuts down or if a model has no working device left.
#[utoipa::path(
    get, path = "/health/ready", tag = "Health",
    responses((status = 200, description = "Every model can answer", body = Health)),
)]
pub async fn ready(State(app): State<Arc<App>>) -> Result<Json<Health>, Problem> {
    readiness(&app).map(|()| Json(Health { status: "ready" }))
}

/// Why the server is not ready.
pub fn readiness(app: &App) -> Result<(), Problem> {
    match app.engine.readiness() {
        _ if app.is_draining() => Err(Problem::new(ProblemKind::Draining, "The server is shutting down.")),
        Readiness::Ready => Ok(()),
        Readiness::Draining => Err(Problem::new(ProblemKind::Draining, "The server is shutting down.")),
        Readiness::Lost { model, reason } => {
            Err(Problem::new(ProblemKind::DeviceLost, format!("No device of the model `{model}` works: {reason}.")))
        }
    }
}
