//! Why work is refused, fails, or a model cannot be served.

use std::time::Duration;

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
    /// A device cannot be opened.
    #[error(transparent)]
    Device(vit::Error),
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
    /// No device at all.
    #[error("there is no device to run models on")]
    NoDevices,
    /// The system gives no more threads.
    #[error("no thread can be started: {0}")]
    Thread(String),
}
