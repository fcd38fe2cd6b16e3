//! `POST /v2/models/{model}/infer`.

use std::io::Read;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use utoipa::ToSchema;

use super::ModelPath;
use super::request::{InferenceRequest, InputImages, RequestedOutput, parse, split};
use super::response::{HEADER_LENGTH, InferenceResponse, OutputData, OutputTensor};
use crate::engine::{Answer, ServedModel, WorkInput, WorkOutput};
use crate::http::answers::{answers_of, complete};
use crate::http::body::receive;
use crate::http::deadline::deadline;
use crate::http::fields::shortened;
use crate::http::problem::{Problem, ProblemKind};
use crate::http::{App, urls};

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
    let coding = ContentCoding::of(&parts.headers)?;
    let (body, share) = receive(&app.body_limits, &parts.headers, body, deadline).await?;
    let mut held = vec![share];
    let (most_images, most_bytes) = (app.options.max_images, app.options.max_body_bytes);
    let length = body.len();
    let read = {
        let model = model.clone();
        move || {
            let body = coding.decompress(body, most_bytes)?;
            let (header, tensors) = split(&body, header_length)?;
            let mut request = parse(&header)?;
            let images = request.images(&tensors, most_images)?;
            let outputs = SelectedOutput::all(&request, &model)?;
            Ok((request.id, images, outputs))
        }
    };
    let (id, images, selected) = app.parse(length, read).await?;
    let inputs = match images {
        InputImages::Preprocessed { shape, elements } => preprocessed(&model, &shape, elements)?,
        InputImages::Encoded(sources) => {
            let (images, shares) = urls::fetch_all(&app, sources, deadline).await;
            held.extend(shares);
            images.into_iter().map(|image| image.map(WorkInput::Encoded)).collect()
        }
    };
    let features = selected.iter().any(|output| output.tensor == ModelOutput::Features);
    let output = if features { WorkOutput::All } else { WorkOutput::Logits };
    let answers = complete(answers_of(&app, &model, inputs, output, deadline).await?)?;
    drop(held);
    let card = model.card();
    let outputs = selected.iter().map(|output| output.of(&model, &answers)).collect();
    Ok(InferenceResponse { model_name: &card.name, model_version: &card.version, id, outputs }.into_response())
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, Problem> {
    let wrong = || Problem::malformed("`Inference-Header-Content-Length` should be a number of bytes.");
    let parse = |value: &axum::http::HeaderValue| value.to_str().ok()?.trim().parse().ok();
    headers.get(HEADER_LENGTH).map(|value| parse(value).ok_or_else(wrong)).transpose()
}

/// How the body is compressed.
#[derive(Debug, Clone, Copy)]
enum ContentCoding {
    None,
    Gzip,
    Deflate,
}

impl ContentCoding {
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
            None | Some(b"identity") => Ok(Self::None),
            Some(b"gzip") => Ok(Self::Gzip),
            Some(b"deflate") => Ok(Self::Deflate),
            Some(_) => {
                let detail = "`Content-Encoding` should be gzip, deflate or identity.";
                Err(Problem::new(ProblemKind::UnsupportedMediaType, detail))
            }
        }
    }

    fn decompress(self, body: Bytes, most: usize) -> Result<Bytes, Problem> {
        let mut reader: Box<dyn Read + '_> = match self {
            Self::None => return Ok(body),
            Self::Gzip => Box::new(MultiGzDecoder::new(&body[..])),
            Self::Deflate => Box::new(ZlibDecoder::new(&body[..])),
        };
        let mut plain = Vec::new();
        let read = reader.by_ref().take(most as u64 + 1).read_to_end(&mut plain);
        read.map_err(|error| Problem::malformed(format!("The body cannot be decompressed: {error}.")))?;
        if plain.len() > most { Err(Problem::too_large(most)) } else { Ok(plain.into()) }
    }
}

/// Divides a tensor into images.
fn preprocessed(
    model: &ServedModel,
    shape: &[usize],
    elements: Vec<f32>,
) -> Result<Vec<Result<WorkInput, Problem>>, Problem> {
    let architecture = &model.card().config.architecture;
    let [height, width] = architecture.image_size();
    let expected = [architecture.channels(), height, width];
    if shape.len() != 4 || shape[1..] != expected {
        let detail =
            format!("The shape is {shape:?}, and this model's input is [images, {}, {height}, {width}].", expected[0]);
        return Err(Problem::malformed(detail));
    }
    if let Some(position) = elements.iter().position(|element| !element.is_finite()) {
        return Err(Problem::malformed(format!("Element {position} of the tensor is NaN or infinite.")));
    }
    let length = expected.iter().product::<usize>().max(1);
    Ok(elements.chunks_exact(length).map(|image| Ok(WorkInput::Tensor(image.to_vec()))).collect())
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ModelOutput {
    Logits,
    Probabilities,
    Features,
}

impl ModelOutput {
    const ALL: [(&'static str, ModelOutput); 3] = [
        ("logits", ModelOutput::Logits),
        ("probabilities", ModelOutput::Probabilities),
        ("features", ModelOutput::Features),
    ];
}

/// An output of the answer.
#[derive(Debug)]
struct SelectedOutput {
    name: &'static str,
    tensor: ModelOutput,
    binary: bool,
    classes: Option<usize>,
}

impl SelectedOutput {
    fn all(request: &InferenceRequest, model: &ServedModel) -> Result<Vec<Self>, Problem> {
        let binary = request.binary_outputs();
        let has_head = model.card().config.architecture.classes() > 0;
        let available =
            || ModelOutput::ALL.into_iter().filter(move |(_, tensor)| has_head || *tensor == ModelOutput::Features);
        let Some(requested) = request.outputs.as_ref().filter(|outputs| !outputs.is_empty()) else {
            let output = |(name, tensor)| Self { name, tensor, binary, classes: None };
            return Ok(available().map(output).collect());
        };
        if requested.len() > ModelOutput::ALL.len() {
            return Err(Problem::malformed("More outputs are requested than there are."));
        }
        let output = |requested: &RequestedOutput| {
            let (name, parameters) = (&requested.name, requested.parameters());
            let Some((name, tensor)) = available().find(|(known, _)| known == name) else {
                let names: Vec<&str> = available().map(|(name, _)| name).collect();
                let detail = format!("There is no output `{}`; there are {}.", shortened(name), names.join(", "));
                return Err(Problem::malformed(detail));
            };
            let classes = parameters.classification.filter(|classes| *classes > 0);
            if classes.is_some() && tensor == ModelOutput::Features {
                return Err(Problem::malformed("`classification` has no meaning for features."));
            }
            Ok(Self { name, tensor, binary: parameters.binary_data.unwrap_or(binary), classes })
        };
        requested.iter().map(output).collect()
    }

    fn of(&self, model: &ServedModel, answers: &[Answer]) -> OutputTensor {
        let problem_type = model.card().config.problem_type;
        let row = |answer: &Answer| match self.tensor {
            ModelOutput::Logits => answer.logits.clone(),
            ModelOutput::Probabilities => problem_type.probabilities(&answer.logits),
            ModelOutput::Features => answer.embedding.clone(),
        };
        let rows: Vec<Vec<f32>> = answers.iter().map(row).collect();
        let width = rows.first().map_or(0, Vec::len);
        match self.classes {
            None => OutputTensor::new(self.name, [rows.len(), width], OutputData::Floats(rows.concat()), self.binary),
            Some(classes) => {
                let classes = classes.min(width);
                let texts = rows.iter().flat_map(|row| likeliest(row, classes, &model.card().config.labels)).collect();
                OutputTensor::new(self.name, [rows.len(), classes], OutputData::Texts(texts), self.binary)
            }
        }
    }
}

/// `value:index:label` of the largest elements, as Triton's classification extension has them.
fn likeliest(row: &[f32], classes: usize, labels: &[String]) -> Vec<String> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    let text = |class: usize| match labels.get(class) {
        Some(label) => format!("{:.6}:{class}:{label}", row[class]),
        None => format!("{:.6}:{class}", row[class]),
    };
    order.into_iter().take(classes).map(text).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn compressed_bodies_end_at_the_limit() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&[b'x'; 100_000]).unwrap();
        let body = Bytes::from(gzip.finish().unwrap());
        assert_eq!(ContentCoding::Gzip.decompress(body.clone(), 100_000).unwrap().len(), 100_000);
        let error = ContentCoding::Gzip.decompress(body.clone(), 99_999).unwrap_err();
        assert_eq!(error.kind, ProblemKind::BodyTooLarge);
        assert_eq!(ContentCoding::Deflate.decompress(body, 9).unwrap_err().kind, ProblemKind::Malformed);
    }

    #[test]
    fn classes_are_texts() {
        let labels = ["cat".to_string()];
        assert_eq!(likeliest(&[0.25, 0.5, 0.5], 2, &labels), ["0.500000:1", "0.500000:2"]);
        assert_eq!(likeliest(&[1.0], 5, &labels), ["1.000000:0:cat"]);
    }
}
