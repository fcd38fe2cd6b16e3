//! Observers of a run: a terminal, a log, a test.

use crate::evaluate::EvaluationOutcome;
use crate::{MetricsRow, Progress};

/// Callbacks of a run, none of which can change it.
pub trait Observer {
    /// After every step.
    fn step(&mut self, _progress: &Progress) {}

    /// After every step that is logged.
    fn logged(&mut self, _progress: &Progress) {}

    /// After every row of the metrics.
    fn recorded(&mut self, _row: &MetricsRow) {}

    /// During an evaluation: the samples done, and all samples.
    fn evaluating(&mut self, _done: usize, _of: usize) {}

    /// After an evaluation; `best` if the model is the best so far.
    fn evaluated(&mut self, _step: u64, _outcome: &EvaluationOutcome, _best: bool) {}

    /// A message for the user.
    fn note(&mut self, _message: &str) {}
}

/// No observer.
impl Observer for () {}
