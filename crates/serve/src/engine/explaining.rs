//! Explanations: one thread per model, which compiles what a method needs when it is first requested.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use vit::explain::{ExplainOptions, Explanation, InsightError, Method};
use vit::{Error, Explain, ModelOptions, Precision};

use super::queue::{Due, Lane, ReadyImage};
use super::reopen::Reopen;
use super::replica::ReplicaContext;
use super::{ExplainWork, Explained, Timing, WorkError};

/// Compiled methods that are kept; every layer and head counts as one.
const MAX_COMPILED: usize = 8;

/// The thread that explains.
pub(super) struct ExplainWorker {
    pub context: ReplicaContext,
    pub reopen: Reopen,
    /// The last used at the end.
    pub compiled: Vec<(Option<Method>, Explain)>,
}

impl ExplainWorker {
    /// Explains images until the queue is closed and empty.
    pub fn run(mut self) {
        while self.context.queue.wait_until_due(Lane::Explain, Duration::ZERO, None) == Due::Batch {
            for image in self.context.queue.take_ready(Lane::Explain, |_| 1) {
                self.explain(image);
            }
        }
    }

    fn explain(&mut self, ReadyImage { input, image, decoded, task }: ReadyImage) {
        let Some((what, image)) = task.explanation().cloned().zip(image) else {
            return task.fail(WorkError::Internal("an answer among explanations".into()));
        };
        if let Err(error) = self.prepare(&what) {
            return task.fail(error);
        }
        let turns = self.context.turns.clone();
        let turn = turns.as_ref().map(|turns| turns.begin());
        let started = Instant::now();
        let admitted = task.admitted;
        // A backward pass costs about two forward passes.
        let maps = what.classes.len().max(what.top).max(1) as u32;
        let flight = self.context.health.begin(vec![(task, decoded)], self.context.time_of(1) * (1 + 4 * maps));
        let explained = catch_unwind(AssertUnwindSafe(|| self.run_on(&input)));
        drop(turn);
        let compute = started.elapsed();
        self.context.counters.batch(compute);
        self.context.health.end(&flight);
        let Some((task, _)) = flight.take().and_then(|mut tasks| tasks.pop()) else { return };
        match explained {
            Ok(Ok(explanation)) => {
                let (decode, queue) = (decoded - admitted, started.saturating_duration_since(decoded));
                let timing = Timing { decode, queue, compute, batch: 1 };
                task.explained(Explained { explanation, image, timing });
            }
            Ok(Err(error)) => task.fail(error),
            Err(_) => {
                self.compiled.pop();
                task.fail(WorkError::Internal("the explanation panicked".into()));
            }
        }
        self.context.queue.recycle([input]);
    }

    /// Puts the model for this request at the end of `compiled`.
    fn prepare(&mut self, what: &ExplainWork) -> Result<(), WorkError> {
        if self.context.options.precision == Precision::Int8 {
            return Err(WorkError::Unsuitable("explanations need gradients, which int8 has not".into()));
        }
        let model = match self.compiled.iter().position(|(method, _)| *method == what.method) {
            Some(index) => self.compiled.remove(index),
            None => (what.method, self.compile(what.method)?),
        };
        if self.compiled.len() == MAX_COMPILED {
            self.compiled.remove(0);
        }
        self.compiled.push(model);
        match self.compiled.last_mut() {
            Some((_, model)) => model.choose_classes(what.top, &what.classes).map_err(work_error),
            None => Ok(()),
        }
    }

    fn compile(&self, method: Option<Method>) -> Result<Explain, WorkError> {
        let checkpoint = self.reopen.checkpoint()?;
        let options = ExplainOptions { method, ..ExplainOptions::default() };
        let model = ModelOptions::new().device(self.context.options);
        let compile = || Explain::of(&checkpoint, self.context.device.as_ref(), &options, &model);
        catch_unwind(AssertUnwindSafe(compile))
            .map_err(|_| WorkError::Internal("preparing an explanation panicked".into()))?
            .map_err(work_error)
    }

    fn run_on(&mut self, input: &[f32]) -> Result<Explanation, WorkError> {
        let Some((_, model)) = self.compiled.last_mut() else {
            return Err(WorkError::Internal("an explanation was not prepared".into()));
        };
        let mut explained = model.explain_prepared(&[input]).map_err(work_error)?;
        explained.pop().unwrap_or(Err(Error::NoImages)).map_err(work_error)
    }
}

fn work_error(error: Error) -> WorkError {
    let text = error.to_string();
    match error {
        Error::NonFinite { .. } | Error::Overflow { .. } => WorkError::NonFinite(text),
        Error::Insight(InsightError::Graph(_)) | Error::Graph(_) => WorkError::DeviceLost(text),
        _ => WorkError::Unsuitable(text),
    }
}
