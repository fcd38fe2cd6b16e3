//! The messages of `inference.GRPCInferenceService`, with the field numbers of its public definition:
//! <https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto> and
//! Triton's extensions of it, <https://github.com/triton-inference-server/common/tree/main/protobuf>.

use bytes::Bytes;

use super::super::inference::{MAX_OUTPUTS, OutputRequest};
use super::super::metadata::{
    ModelConfig, ModelMetadata, RepositoryEntry, ServerMetadata, TensorConfig, TensorMetadata,
};
use super::super::request::{InputImages, MAX_AXES, TensorContent, input_images, one_input};
use super::super::response::OutputTensor;
use super::super::statistics::{CountAndTime, StatisticsEntry};
use super::wire::{Fields, Message, Value, malformed};
use crate::engine::ModelCard;
use crate::http::problem::Problem;

/// The request of every call about one model: `ModelReadyRequest` and others with the same fields.
#[derive(Debug, Default)]
pub struct ModelRequest {
    pub name: String,
    pub version: String,
}

impl ModelRequest {
    pub fn read(message: Bytes) -> Result<Self, Problem> {
        let mut request = Self::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => request.name = value.text()?,
                (2, value) => request.version = value.text()?,
                _ => {}
            }
        }
        Ok(request)
    }
}

/// `ModelInferRequest`. Parameters of the request and of its input have no meaning here.
#[derive(Debug, Default)]
pub struct InferRequest {
    pub model: ModelRequest,
    pub id: String,
    input: Option<InputTensor>,
    outputs: Vec<RequestedOutput>,
    raw: Option<Bytes>,
}

impl InferRequest {
    /// Reads a request with at most `most` images.
    pub fn read(message: Bytes, most: usize) -> Result<Self, Problem> {
        let mut request = Self::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => request.model.name = value.text()?,
                (2, value) => request.model.version = value.text()?,
                (3, value) => request.id = value.text()?,
                (5 | 7, _) if request.raw.is_some() => return Err(one_input(2)),
                (5, _) if request.input.is_some() => return Err(one_input(2)),
                (5, value) => request.input = Some(InputTensor::read(value.bytes()?, most)?),
                (6, value) if request.outputs.len() < MAX_OUTPUTS => {
                    request.outputs.push(RequestedOutput::read(value.bytes()?)?);
                }
                (6, _) => return Err(Problem::malformed("More outputs are requested than there are.")),
                (7, value) => request.raw = Some(value.bytes()?),
                _ => {}
            }
        }
        Ok(request)
    }

    pub fn images(&mut self, most: usize) -> Result<InputImages, Problem> {
        let InputTensor { name, datatype, shape, floats, texts } = self.input.take().ok_or_else(|| one_input(0))?;
        let negative = |_| Problem::malformed("The shape of the input has a negative side.");
        let shape = shape.into_iter().map(usize::try_from).collect::<Result<_, _>>().map_err(negative)?;
        let content = match self.raw.take() {
            Some(_) if !(floats.is_empty() && texts.is_empty()) => {
                return Err(Problem::malformed("An input has both `contents` and `raw_input_contents`."));
            }
            Some(raw) => TensorContent::Raw(raw),
            None if texts.is_empty() => TensorContent::Floats(floats),
            None => TensorContent::Elements(texts),
        };
        input_images(&name, &datatype, shape, content, most)
    }

    pub fn outputs(&self) -> Vec<OutputRequest<'_>> {
        (self.outputs.iter())
            .map(|RequestedOutput { name, classes }| OutputRequest { name, binary: None, classes: *classes })
            .collect()
    }
}

/// `ModelInferRequest.InferInputTensor` with the elements of its `InferTensorContents`.
#[derive(Debug, Default)]
struct InputTensor {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    floats: Vec<f32>,
    texts: Vec<Bytes>,
}

impl InputTensor {
    fn read(message: Bytes, most: usize) -> Result<Self, Problem> {
        let mut input = Self::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => input.name = value.text()?,
                (2, value) => input.datatype = value.text()?,
                (3, value) => {
                    input.shape.extend(value.integers(MAX_AXES)?);
                    if input.shape.len() > MAX_AXES {
                        return Err(Problem::malformed(format!("A shape has at most {MAX_AXES} axes.")));
                    }
                }
                (5, value) => input.read_contents(value.bytes()?, most)?,
                _ => {}
            }
        }
        Ok(input)
    }

    fn read_contents(&mut self, message: Bytes, most: usize) -> Result<(), Problem> {
        for field in Fields::new(message) {
            match field? {
                (6, value) => self.floats.extend(value.floats()?),
                (8, _) if self.texts.len() == most => return Err(Problem::too_many_images(most)),
                (8, value) => self.texts.push(value.bytes()?),
                _ => return Err(Problem::malformed("`contents` should have `fp32_contents` or `bytes_contents`.")),
            }
        }
        Ok(())
    }
}

/// `ModelInferRequest.InferRequestedOutputTensor`.
#[derive(Debug, Default)]
struct RequestedOutput {
    name: String,
    classes: Option<usize>,
}

impl RequestedOutput {
    fn read(message: Bytes) -> Result<Self, Problem> {
        let mut output = Self::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => output.name = value.text()?,
                (2, value) => output.read_parameter(value.bytes()?)?,
                _ => {}
            }
        }
        Ok(output)
    }

    /// An entry of the map `parameters`: a key and an `InferParameter`.
    fn read_parameter(&mut self, message: Bytes) -> Result<(), Problem> {
        let (mut key, mut parameter) = (String::new(), Bytes::new());
        for field in Fields::new(message) {
            match field? {
                (1, value) => key = value.text()?,
                (2, value) => parameter = value.bytes()?,
                _ => {}
            }
        }
        if key != "classification" {
            return Ok(());
        }
        for field in Fields::new(parameter) {
            // `int64_param` or `uint64_param`.
            self.classes = match field? {
                (2 | 5, Value::Varint(classes)) => Some(usize::try_from(classes).map_err(|_| malformed())?),
                _ => return Err(Problem::malformed("`classification` should be a number.")),
            };
        }
        Ok(())
    }
}

/// `ModelInferResponse`, with all outputs in `raw_output_contents`.
pub fn infer_response(card: &ModelCard, id: &str, outputs: &[OutputTensor]) -> Message {
    let tensor = |output: &OutputTensor| {
        let shape = output.shape.map(|side| side as i64);
        Message::default().text(1, output.name).text(2, output.datatype).integers(3, shape)
    };
    let response = Message::default().text(1, &card.name).text(2, &card.version).text(3, id);
    let response = response.messages(5, outputs.iter().map(tensor));
    outputs.iter().fold(response, |response, output| response.element(6, &output.bytes))
}

/// `ServerMetadataResponse`.
pub fn server_metadata(ServerMetadata { name, version, extensions }: &ServerMetadata) -> Message {
    // Tensors are always bytes here, without an extension.
    let extensions = extensions.iter().filter(|name| **name != "binary_tensor_data");
    Message::default().text(1, name).text(2, version).texts(3, extensions)
}

/// `ModelMetadataResponse`.
pub fn model_metadata(metadata: &ModelMetadata) -> Message {
    let tensor = |TensorMetadata { name, datatype, shape }: &TensorMetadata| {
        Message::default().text(1, name).text(2, datatype).integers(3, shape.iter().copied())
    };
    let ModelMetadata { name, versions, platform, inputs, outputs } = metadata;
    let response = Message::default().text(1, name).texts(2, versions).text(3, platform);
    response.messages(4, inputs.iter().map(tensor)).messages(5, outputs.iter().map(tensor))
}

/// `ModelConfigResponse`.
pub fn model_config(config: &ModelConfig) -> Message {
    let data_type = |name: &str| if name == "TYPE_STRING" { 13 } else { 11 };
    let input = |TensorConfig { name, data_type: kind, dims, optional }: &TensorConfig| {
        let dims = dims.iter().copied();
        Message::default().text(1, name).integer(2, data_type(kind)).integers(4, dims).flag(8, *optional)
    };
    let output = |TensorConfig { name, data_type: kind, dims, .. }: &TensorConfig| {
        Message::default().text(1, name).integer(2, data_type(kind)).integers(3, dims.iter().copied())
    };
    let groups = config.instance_group.iter().map(|group| {
        let kind = if group.kind == "KIND_CPU" { 2 } else { 1 };
        Message::default().text(1, &group.name).integer(2, group.count as u64).integer(4, kind)
    });
    let batching = Message::default()
        .integers(1, config.dynamic_batching.preferred_batch_size.iter().map(|size| *size as i64))
        .integer(2, config.dynamic_batching.max_queue_delay_microseconds);
    let message = Message::default()
        .text(1, &config.name)
        .text(2, config.platform)
        .integer(4, config.max_batch_size as u64)
        .messages(5, config.input.iter().map(input))
        .messages(6, config.output.iter().map(output))
        .messages(7, groups)
        .message(11, batching)
        .text(17, config.backend);
    Message::default().message(1, message)
}

/// `ModelStatisticsResponse`.
pub fn statistics(entries: &[StatisticsEntry]) -> Message {
    let sum = |CountAndTime { count, ns }: &CountAndTime| Message::default().integer(1, *count).integer(2, *ns);
    let entry = |entry: &StatisticsEntry| {
        let stats = &entry.inference_stats;
        let parts = [
            &stats.success,
            &stats.fail,
            &stats.queue,
            &stats.compute_input,
            &stats.compute_infer,
            &stats.compute_output,
        ];
        let parts =
            (1..).zip(parts).fold(Message::default(), |message, (field, part)| message.message(field, sum(part)));
        let message = Message::default().text(1, &entry.name).text(2, &entry.version);
        message.integer(4, entry.inference_count).integer(5, entry.execution_count).message(6, parts)
    };
    Message::default().messages(1, entries.iter().map(entry))
}

/// `RepositoryIndexResponse`.
pub fn repository_index(entries: impl Iterator<Item = RepositoryEntry>) -> Message {
    let entry = |RepositoryEntry { name, version, state, reason }: RepositoryEntry| {
        Message::default().text(1, &name).text(2, &version).text(3, state).text(4, reason)
    };
    Message::default().messages(1, entries.map(entry))
}
