//! Who watches a run: a terminal, a log, a test.

use crate::Progress;
use crate::evaluate::EvaluationOutcome;

/// Hears what happens in a run. Nothing it does changes the run.
pub trait Observer {
    /// After every step.
    fn step(&mut self, _progress: &Progress) {}

    /// After every step that is logged.
    fn logged(&mut self, _progress: &Progress) {}

    /// While a model is measured: how many samples of how many.
    fn evaluating(&mut self, _done: usize, _of: usize) {}

    /// After a measurement, and whether it is the best so far.
    fn evaluated(&mut self, _step: u64, _outcome: &EvaluationOutcome, _best: bool) {}

    /// Something a person should know.
    fn note(&mut self, _message: &str) {}
}

/// Nobody.
impl Observer for () {}
