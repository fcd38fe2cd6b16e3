//! Models on devices: images in, answers out. Images are decoded by a pool of threads, wait in a bounded queue per model,
//! and leave it in batches, one thread per replica of the model.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use vit::data::{DecodeOptions, Preprocess};
use vit::explain::{Explanation, Method};
use vit::models::Config;
use vit::{DeviceOptions, Image, Pool, Prediction};

/// A model to serve.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// The name in requests.
    pub name: String,
    /// A checkpoint folder, a weights file, a run's folder or `cifar10`, as `Model::open` takes it.
    pub path: PathBuf,
}

/// What to serve and how.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The models; the first is the default.
    pub models: Vec<ModelSource>,
    /// The devices; every model runs on each.
    pub devices: Vec<DeviceOptions>,
    /// Replicas of every model on each device.
    pub replicas: usize,
    /// The most images in one run.
    pub max_batch: usize,
    /// How long an image waits for others to fill its batch; `None` chooses from measured batch times.
    pub max_delay: Option<Duration>,
    /// Images of one model that may wait, being decoded included.
    pub queue: usize,
    /// Threads that decode and preprocess images.
    pub decoders: usize,
    /// Limits and options of decoding.
    pub decode: DecodeOptions,
}

/// All models that are served.
pub struct Engine {}

impl Engine {
    /// Opens, compiles and measures all models.
    pub fn start(_options: EngineOptions) -> Result<Arc<Engine>, EngineError> {
        todo!()
    }

    /// The models, the default first.
    pub fn models(&self) -> Vec<Arc<ServedModel>> {
        todo!()
    }

    /// A model by name, or the default.
    pub fn model(&self, _name: Option<&str>) -> Result<Arc<ServedModel>, EngineError> {
        todo!()
    }

    /// Opens every model anew beside the one in use and swaps them; a model that cannot be opened leaves the old one in
    /// place. Blocks while models are opened.
    pub fn reload(&self) -> Vec<Reload> {
        todo!()
    }

    /// Whether requests can be answered now; does not block.
    pub fn readiness(&self) -> Readiness {
        todo!()
    }

    /// Refuses new work from now on; work that was admitted is finished.
    pub fn drain(&self) {
        todo!()
    }

    /// Images admitted and not yet answered, over all models.
    pub fn pending(&self) -> usize {
        todo!()
    }
}

/// How the reload of one model ended.
#[derive(Debug)]
pub struct Reload {
    /// The model.
    pub name: String,
    /// The new version, or why the old one stays.
    pub outcome: Result<String, EngineError>,
}

/// Whether the engine can answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    /// Every model has a working replica.
    Ready,
    /// No new work is admitted.
    Draining,
    /// A model has no working replica left.
    Lost {
        /// The model.
        model: String,
        /// The device's error.
        reason: String,
    },
}

/// What a client may know about a model.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// Its name in requests.
    pub name: String,
    /// The first 12 hexadecimal digits of the SHA-256 of its weights and configuration.
    pub version: String,
    /// Configuration: architecture, labels, problem type, preprocessing.
    pub config: Config,
    /// The number of parameters.
    pub parameters: u64,
    /// Elements of its features.
    pub embedding: usize,
    /// Layers with attention, and heads of each; empty for models without attention.
    pub heads: Vec<usize>,
    /// Methods of explanation that suit it.
    pub methods: Vec<Method>,
    /// Its devices, one per replica: `cpu (avx512)`.
    pub devices: Vec<String>,
    /// The precision's name.
    pub precision: String,
    /// Compiled batch sizes with the seconds of one run, measured at start.
    pub batches: Vec<(usize, f64)>,
    /// How long an image waits for others.
    pub max_delay: Duration,
    /// Bytes of all replicas.
    pub memory_bytes: usize,
}

/// A model that answers.
pub struct ServedModel {}

impl ServedModel {
    /// What a client may know.
    pub fn card(&self) -> &ModelCard {
        todo!()
    }

    /// From an image to the model's input.
    pub fn preprocess(&self) -> &Preprocess {
        todo!()
    }

    /// Whether so many more images would be admitted now; lets a server refuse before it reads a body.
    pub fn has_room(&self, _images: usize) -> Result<(), Refused> {
        todo!()
    }

    /// Admits the images of one request together, or none.
    pub fn submit(&self, _images: Vec<Work>) -> Result<Vec<Ticket<Answer>>, Refused> {
        todo!()
    }

    /// Admits an image for explanation.
    pub fn explain(&self, _image: Bytes, _what: ExplainWork, _deadline: Instant) -> Result<Ticket<Explained>, Refused> {
        todo!()
    }

    /// The classes by probability, the likeliest first, as `Model::classify` gives them.
    pub fn predictions(&self, _logits: &[f32]) -> Vec<Prediction> {
        todo!()
    }

    /// Counters since start, for KServe's statistics and for metrics.
    pub fn statistics(&self) -> Statistics {
        todo!()
    }
}

/// One image and what to compute of it.
#[derive(Debug)]
pub struct Work {
    /// The image.
    pub input: WorkInput,
    /// What the answer holds.
    pub output: WorkOutput,
    /// The work is dropped if it has not begun by then.
    pub deadline: Instant,
}

/// An image in a request.
#[derive(Debug)]
pub enum WorkInput {
    /// An encoded image: JPEG, PNG, WebP, GIF, BMP, TIFF.
    Encoded(Bytes),
    /// A preprocessed image `[channels, height, width]`.
    Tensor(Vec<f32>),
}

/// What to compute of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkOutput {
    /// Logits; with `features` too.
    Logits,
    /// The vector that stands for the image, scaled to length 1 if `normalise`.
    Embedding {
        /// Which vector.
        pool: Pool,
        /// Whether it is scaled to length 1.
        normalise: bool,
    },
    /// Logits (empty without a head) and features.
    All,
}

/// The answer for one image. Vectors that were not requested are empty.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Every class's logit.
    pub logits: Vec<f32>,
    /// The embedding, `[dim]` or `[patches, dim]`.
    pub embedding: Vec<f32>,
    /// Its shape.
    pub embedding_shape: Vec<usize>,
    /// Where the time went.
    pub timing: Timing,
}

/// Where the time of one image went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// Waiting for a decoder and decoding.
    pub decode: Duration,
    /// From decoded to the start of its batch.
    pub queue: Duration,
    /// Its batch.
    pub compute: Duration,
    /// Images in its batch.
    pub batch: usize,
}

/// What to explain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExplainWork {
    /// `None` for what suits the model.
    pub method: Option<Method>,
    /// Classes that get a map each; empty for the likeliest `top`.
    pub classes: Vec<usize>,
    /// The number of likeliest classes that get a map each; 0 means 1.
    pub top: usize,
}

/// An explanation and the image it belongs to.
pub struct Explained {
    /// Logits, probabilities and maps.
    pub explanation: Explanation,
    /// The decoded image.
    pub image: Image,
    /// Where the time went.
    pub timing: Timing,
}

/// A future answer. Dropping it cancels work that has not begun.
pub struct Ticket<T>(tokio::sync::oneshot::Receiver<Result<T, WorkError>>);

impl<T> Future for Ticket<T> {
    type Output = Result<T, WorkError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lost = || WorkError::Internal("the work was dropped without an answer".into());
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(lost())))
    }
}

/// Why work was not admitted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The queue is full.
    #[error("the queue of this model is full; try again in {} s", retry_after.as_secs_f32().ceil())]
    Overloaded {
        /// When there should be room.
        retry_after: Duration,
    },
    /// More images than the queue holds when it is empty.
    #[error("{images} images in one request, where the queue holds {queue}")]
    TooMany {
        /// Images of the request.
        images: usize,
        /// Images that the queue holds.
        queue: usize,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
    /// All devices of the model are lost.
    #[error("no device of this model works: {0}")]
    Lost(String),
}

/// Why an image has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The image cannot be decoded.
    #[error("{0}")]
    Image(String),
    /// A tensor of another length than the model's input.
    #[error("a preprocessed image of {found} elements, where the model takes {expected}")]
    Length {
        /// Elements given.
        found: usize,
        /// Elements of the model's input.
        expected: usize,
    },
    /// The request cannot be fulfilled by this model: no head, no class token, an unsuitable method.
    #[error("{0}")]
    Unsuitable(String),
    /// The model's output for this image is NaN or infinite.
    #[error("{0}")]
    NonFinite(String),
    /// The deadline passed before the work began.
    #[error("the request's time was up before its turn came")]
    Deadline,
    /// The device failed.
    #[error("the device failed: {0}")]
    DeviceLost(String),
    /// A defect of the server.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Counters of a model since start.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    /// Images answered.
    pub answered: u64,
    /// Images that failed.
    pub failed: u64,
    /// Runs of the model.
    pub batches: u64,
    /// Sums over answered images.
    pub decode: Duration,
    /// Sums over answered images.
    pub queue: Duration,
    /// Sums over runs.
    pub compute: Duration,
    /// Images admitted and waiting now.
    pub waiting: usize,
}

/// Why models cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A model cannot be opened.
    #[error("{name}: {error}")]
    Model {
        /// Its name.
        name: String,
        /// Why.
        error: vit::Error,
    },
    /// A model that is not served.
    #[error("there is no model `{name}`; there are {}", known.join(", "))]
    UnknownModel {
        /// The name.
        name: String,
        /// The models.
        known: Vec<String>,
    },
    /// Two models of one name.
    #[error("two models are named `{0}`")]
    SameName(String),
    /// No model at all.
    #[error("there is no model to serve")]
    NoModels,
    /// The system gives no more threads.
    #[error("no thread can be started: {0}")]
    Thread(String),
}
