//! The Open Inference Protocol over gRPC: the service `inference.GRPCInferenceService` at the address of the HTTP API,
//! with its queues, limits, keys and errors.

mod call;
mod messages;
mod wire;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::inference::{Inference, SelectedOutput};
use super::metadata::{ModelConfig, ModelMetadata, RepositoryEntry, ServerMetadata};
use super::statistics::entry;
use super::{find, readiness};
use crate::engine::ServedModel;
use crate::http::problem::{Problem, ProblemKind};
use crate::http::router::Routes;
use crate::http::{App, health};

pub use call::refusal;
use call::{Call, reply};
use messages::{InferRequest, ModelRequest};
use wire::Message;

/// The prefix of the paths of all calls.
pub const SERVICE: &str = "/inference.GRPCInferenceService/";

/// Adds the calls; as over HTTP, those about the server's health need no key.
pub fn routes(routes: Routes) -> Routes {
    let path = |call: &str| format!("{SERVICE}{call}");
    routes
        .open_call(&path("ServerLive"), server_live)
        .open_call(&path("ServerReady"), server_ready)
        .call(&path("ServerMetadata"), server_metadata)
        .call(&path("ModelReady"), model_ready)
        .call(&path("ModelMetadata"), model_metadata)
        .call(&path("ModelConfig"), model_config)
        .call(&path("ModelStatistics"), model_statistics)
        .call(&path("RepositoryIndex"), repository_index)
        .call(&path("ModelInfer"), model_infer)
}

/// All steps from a message to images.
#[cfg(test)]
pub fn parse(message: bytes::Bytes, most: usize) -> Result<(), Problem> {
    InferRequest::read(message, most)?.images(most).map(drop)
}

impl ModelRequest {
    fn find(&self, app: &App) -> Result<Arc<ServedModel>, Problem> {
        find(app, &self.name, Some(self.version.as_str()).filter(|version| !version.is_empty()))
    }

    /// The model of a call about one.
    async fn find_in(app: &App, request: Request) -> Result<Arc<ServedModel>, Problem> {
        Self::read(Call::read(app, request).await?.message)?.find(app)
    }
}

async fn server_live(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    Call::read(&app, request).await?;
    Ok(reply(Message::default().flag(1, true)))
}

async fn server_ready(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    Call::read(&app, request).await?;
    Ok(reply(Message::default().flag(1, health::readiness(&app).is_ok())))
}

async fn server_metadata(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    Call::read(&app, request).await?;
    Ok(reply(messages::server_metadata(&ServerMetadata::new())))
}

async fn model_ready(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let ready = match ModelRequest::find_in(&app, request).await {
        Ok(model) => readiness(&app, &model).is_ok(),
        Err(problem) if problem.kind == ProblemKind::UnknownModel => false,
        Err(problem) => return Err(problem),
    };
    Ok(reply(Message::default().flag(1, ready)))
}

async fn model_metadata(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let model = ModelRequest::find_in(&app, request).await?;
    Ok(reply(messages::model_metadata(&ModelMetadata::of(model.card()))))
}

async fn model_config(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let model = ModelRequest::find_in(&app, request).await?;
    Ok(reply(messages::model_config(&ModelConfig::of(model.card()))))
}

/// Of all models if none is named.
async fn model_statistics(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let request = ModelRequest::read(Call::read(&app, request).await?.message)?;
    let models = if request.name.is_empty() { app.engine.models() } else { vec![request.find(&app)?] };
    let entries: Vec<_> = models.iter().map(|model| entry(model)).collect();
    Ok(reply(messages::statistics(&entries)))
}

async fn repository_index(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    Call::read(&app, request).await?;
    let models = app.engine.models();
    Ok(reply(messages::repository_index(models.iter().map(|model| RepositoryEntry::of(model.card())))))
}

async fn model_infer(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let Call { message, deadline, held } = Call::read(&app, request).await?;
    let most = app.options.max_images;
    let length = message.len();
    let read = move || {
        let mut request = InferRequest::read(message, most)?;
        Ok((request.images(most)?, request))
    };
    let (images, request) = app.parse(length, read).await?;
    let model = request.model.find(&app)?;
    let outputs = SelectedOutput::all(&request.outputs(), true, &model)?;
    let outputs = Inference { images, outputs, deadline }.run(&app, &model).await?;
    drop(held);
    Ok(reply(messages::infer_response(model.card(), &request.id, &outputs)))
}
