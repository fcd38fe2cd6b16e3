//! Inference answers: outputs as JSON, or as bytes after a JSON header.

use axum::body::Bytes;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The length of the JSON header before bytes of tensors.
pub const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The JSON header.
#[derive(Debug, Serialize)]
pub struct InferenceResponse<'a> {
    pub model_name: &'a str,
    pub model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub outputs: Vec<OutputTensor>,
}

#[derive(Debug, Serialize)]
pub struct OutputTensor {
    pub name: &'static str,
    pub datatype: &'static str,
    pub shape: [usize; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinaryParameters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<OutputData>,
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

#[derive(Debug, Serialize)]
struct BinaryParameters {
    binary_data_size: usize,
}

/// The elements of an output.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum OutputData {
    Floats(Vec<f32>),
    Texts(Vec<String>),
}

impl OutputTensor {
    pub fn new(name: &'static str, shape: [usize; 2], data: OutputData, binary: bool) -> Self {
        let datatype = if matches!(data, OutputData::Floats(_)) { "FP32" } else { "BYTES" };
        let bytes = if binary { data.bytes() } else { Vec::new() };
        let parameters = binary.then_some(BinaryParameters { binary_data_size: bytes.len() });
        Self { name, datatype, shape, parameters, data: Some(data).filter(|_| !binary), bytes }
    }
}

impl OutputData {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Floats(elements) => elements.iter().flat_map(|element| element.to_le_bytes()).collect(),
            Self::Texts(texts) => {
                let prefixed = |text: &String| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
                texts.iter().flat_map(prefixed).collect()
            }
        }
    }
}

impl IntoResponse for InferenceResponse<'_> {
    fn into_response(self) -> Response {
        let mut body = serde_json::to_vec(&self).unwrap_or_default();
        if self.outputs.iter().all(|output| output.parameters.is_none()) {
            return ([(CONTENT_TYPE, "application/json")], body).into_response();
        }
        let length = body.len().to_string();
        self.outputs.iter().for_each(|output| body.extend_from_slice(&output.bytes));
        let about = [(CONTENT_TYPE, "application/octet-stream"), (HEADER_LENGTH, length.as_str())];
        (about, Bytes::from(body)).into_response()
    }
}
