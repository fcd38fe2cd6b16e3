//! `POST /v2/models/{model}/infer`.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use axum::response::{IntoResponse, Response};
use utoipa::ToSchema;

use super::ModelPath;
use super::coding::ContentCoding;
use super::inference::{Inference, SelectedOutput};
use super::request::{parse, split};
use super::response::{HEADER_LENGTH, InferenceResponse};
use crate::http::App;
use crate::http::body::receive;
use crate::http::deadline::deadline;
use crate::http::problem::Problem;

/// An inference request. With `Inference-Header-Content-Length`, the JSON is followed by the bytes of the tensors.
#[derive(Debug, ToSchema)]
#[schema(as = InferenceRequest)]
#[allow(dead_code, reason = "the fields document the request")]
pub struct InferenceRequestSchema {
    /// Returned with the answer.
    id: Option<String>,
    /// `binary_data_output`: whether outputs are bytes.
    #[schema(value_type = Option<Object>)]
    parameters: Option<()>,
    /// One input: `image` (FP32 `[images, channels, height, width]`, preprocessed) or `image_bytes` (BYTES `[images]`,
    /// encoded images, in JSON as base64).
    #[schema(min_items = 1, max_items = 1)]
    inputs: Vec<InputTensorSchema>,
    /// `logits`, `probabilities`, `features`; all that the model has if not given.
    outputs: Option<Vec<RequestedOutputSchema>>,
}

/// An input.
#[derive(Debug, ToSchema)]
#[schema(as = InputTensor)]
#[allow(dead_code, reason = "the fields document the request")]
pub struct InputTensorSchema {
    /// `image` or `image_bytes`.
    name: String,
    /// The number of images first.
    #[schema(max_items = 8)]
    shape: Vec<u64>,
    /// `FP32` or `BYTES`.
    datatype: String,
    /// `binary_data_size`: the bytes of this tensor after the JSON.
    #[schema(value_type = Option<Object>)]
    parameters: Option<()>,
    /// The elements, flat or nested.
    #[schema(value_type = Option<Vec<Object>>)]
    data: Option<Vec<()>>,
}

/// A requested output.
#[derive(Debug, ToSchema)]
#[schema(as = RequestedOutput)]
#[allow(dead_code, reason = "the fields document the request")]
pub struct RequestedOutputSchema {
    /// `logits`, `probabilities` or `features`.
    name: String,
    /// `binary_data`: whether it is bytes; `classification`: how many classes to give instead of the tensor.
    #[schema(value_type = Option<Object>)]
    parameters: Option<()>,
}

/// An inference answer. With `Inference-Header-Content-Length`, the JSON is followed by the bytes of the tensors.
#[derive(Debug, ToSchema)]
#[schema(as = InferenceResponse)]
#[allow(dead_code, reason = "the fields document the answer")]
pub struct InferenceResponseSchema {
    model_name: String,
    model_version: String,
    id: Option<String>,
    outputs: Vec<OutputTensorSchema>,
}

/// An output.
#[derive(Debug, ToSchema)]
#[schema(as = OutputTensor)]
#[allow(dead_code, reason = "the fields document the answer")]
pub struct OutputTensorSchema {
    name: String,
    /// `FP32`, or `BYTES` for classes.
    datatype: String,
    shape: Vec<u64>,
    #[schema(value_type = Option<Object>)]
    parameters: Option<()>,
    /// Row by row.
    #[schema(value_type = Option<Vec<Object>>)]
    data: Option<Vec<()>>,
}

/// Run a model on tensors or encoded images
#[utoipa::path(
    post, path = "/v2/models/{model}/infer", tag = "KServe v2",
    params(("model" = String, Path, description = "The model")),
    request_body(content(
        (InferenceRequestSchema = "application/json"),
        (Vec<u8> = "application/octet-stream"),
    )),
    responses((status = 200, description = "The outputs", content(
        (InferenceResponseSchema = "application/json"),
        (Vec<u8> = "application/octet-stream"),
    ))),
)]
pub async fn infer(
    State(app): State<Arc<App>>,
    Path(path): Path<ModelPath>,
    request: Request,
) -> Result<Response, Problem> {
    let model = path.find(&app)?;
    let (parts, body) = request.into_parts();
    let deadline = deadline(&parts.headers, app.options.timeout)?;
    let header_length = header_length(&parts.headers)?;
    let coding = ContentCoding::of(&parts.headers, CONTENT_ENCODING)?;
    let (body, _held) = receive(&app.body_limits, &parts.headers, body, deadline).await?;
    let (most_images, most_bytes) = (app.options.max_images, app.options.max_body_bytes);
    let length = body.len();
    let read = {
        let model = model.clone();
        move || {
            let body = coding.decompress(body, most_bytes)?;
            let (header, tensors) = split(&body, header_length)?;
            let mut request = parse(&header)?;
            let images = request.images(&tensors, most_images)?;
            let outputs = SelectedOutput::all(&request.outputs(), request.binary_outputs(), &model)?;
            Ok((request.id, Inference { images, outputs, deadline }))
        }
    };
    let (id, inference) = app.parse(length, read).await?;
    let outputs = inference.run(&app, &model).await?;
    let card = model.card();
    Ok(InferenceResponse { model_name: &card.name, model_version: &card.version, id, outputs }.into_response())
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, Problem> {
    let wrong = || Problem::malformed("`Inference-Header-Content-Length` should be a number of bytes.");
    let parse = |value: &axum::http::HeaderValue| value.to_str().ok()?.trim().parse().ok();
    headers.get(HEADER_LENGTH).map(|value| parse(value).ok_or_else(wrong)).transpose()
}
