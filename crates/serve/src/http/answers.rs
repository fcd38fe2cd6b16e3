//! From the images of a request to the engine's answers.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::timeout_at;
use utoipa::ToSchema;

use super::App;
use super::problem::{Dialect, Problem, ProblemDocument};
use crate::engine::{Answer, ServedModel, Ticket, Timing, Work, WorkError, WorkInput, WorkOutput};

/// Where the time of a request went, in milliseconds. With several images, each is that of the slowest.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub struct RequestTiming {
    /// Waiting for a decoder, decoding and preprocessing.
    pub decode_ms: f32,
    /// Waiting for the device.
    pub queue_ms: f32,
    /// The run of the model.
    pub compute_ms: f32,
    /// Images in that run, those of other requests included.
    pub batch: usize,
}

impl RequestTiming {
    pub fn of(timings: impl IntoIterator<Item = Timing>) -> Self {
        let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() as f32 / 1e3;
        timings.into_iter().fold(Self::default(), |slowest, timing| Self {
            decode_ms: slowest.decode_ms.max(milliseconds(timing.decode)),
            queue_ms: slowest.queue_ms.max(milliseconds(timing.queue)),
            compute_ms: slowest.compute_ms.max(milliseconds(timing.compute)),
            batch: slowest.batch.max(timing.batch),
        })
    }
}

/// Runs the model on all images that could be read. An inner error concerns one image.
pub async fn answers(
    app: &App,
    model: &ServedModel,
    images: Vec<Result<Bytes, Problem>>,
    output: WorkOutput,
    deadline: Instant,
) -> Result<Vec<Result<Answer, Problem>>, Problem> {
    let images = images.into_iter().map(|image| image.map(WorkInput::Encoded)).collect();
    answers_of(app, model, images, output, deadline).await
}

/// As [`answers`], for inputs of any kind.
pub async fn answers_of(
    app: &App,
    model: &ServedModel,
    inputs: Vec<Result<WorkInput, Problem>>,
    output: WorkOutput,
    deadline: Instant,
) -> Result<Vec<Result<Answer, Problem>>, Problem> {
    let mut work = Vec::new();
    let admitted: Vec<Result<(), Problem>> =
        inputs.into_iter().map(|input| input.map(|input| work.push(Work { input, output, deadline }))).collect();
    let tickets = if work.is_empty() { Vec::new() } else { refused(app, model, model.submit(work))? };
    let mut answers = all(tickets, deadline).await?.into_iter();
    let answer = |admitted: Result<(), Problem>| {
        admitted.and_then(|()| answers.next().unwrap_or(Err(WorkError::Deadline)).map_err(Problem::from))
    };
    let answers: Vec<_> = admitted.into_iter().map(answer).collect();
    for answer in &answers {
        app.metrics.image(&model.card().name, answer.as_ref().map(|answer| answer.timing).map_err(|p| p.kind));
    }
    Ok(answers)
}

/// Counts refusals.
pub fn refused<T>(app: &App, model: &ServedModel, outcome: Result<T, crate::engine::Refused>) -> Result<T, Problem> {
    outcome.map_err(|refused| {
        let problem = Problem::from(refused);
        app.metrics.refused(&model.card().name, problem.kind);
        problem
    })
}

/// Waits for all answers until the deadline; the tickets are dropped then, which cancels their work.
pub async fn all<T>(tickets: Vec<Ticket<T>>, deadline: Instant) -> Result<Vec<Result<T, WorkError>>, Problem> {
    timeout_at(deadline.into(), join_all(tickets)).await.map_err(|_| Problem::deadline())
}

/// The result of one image: an answer, or the problem with it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ImageResult<T> {
    Answer(T),
    Error {
        /// Why this image has no answer.
        #[schema(value_type = ProblemDocument)]
        error: serde_json::Value,
    },
}

/// Results in the order of the images; a problem if there is no answer at all.
pub fn results<T>(answers: Vec<Result<T, Problem>>) -> Result<Vec<ImageResult<T>>, Problem> {
    if answers.iter().all(Result::is_err) {
        let problems = answers.into_iter().enumerate().filter_map(|(index, answer)| Some((index, answer.err()?)));
        return Err(Problem::of_images(problems.collect()));
    }
    let result = |answer: Result<T, Problem>| match answer {
        Ok(answer) => ImageResult::Answer(answer),
        Err(problem) => {
            let document: ProblemDocument = problem.document(None, Dialect::Plain);
            ImageResult::Error { error: serde_json::to_value(document).unwrap_or_default() }
        }
    };
    Ok(answers.into_iter().map(result).collect())
}

/// All answers, or one problem that lists the images without one.
pub fn complete<T>(answers: Vec<Result<T, Problem>>) -> Result<Vec<T>, Problem> {
    let (mut complete, mut problems) = (Vec::new(), Vec::new());
    for (index, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(answer) => complete.push(answer),
            Err(problem) => problems.push((index, problem)),
        }
    }
    if problems.is_empty() { Ok(complete) } else { Err(Problem::of_images(problems)) }
}
