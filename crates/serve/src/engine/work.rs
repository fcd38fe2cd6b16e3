//! Work of one image: the request's part, the answer, and the future between them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use vit::explain::{Explanation, Method};
use vit::{Image, Pool};

use super::WorkError;

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
pub struct Ticket<T>(pub(super) oneshot::Receiver<Result<T, WorkError>>);

impl<T> Future for Ticket<T> {
    type Output = Result<T, WorkError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lost = || WorkError::Internal("the work was dropped without an answer".into());
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(lost())))
    }
}
