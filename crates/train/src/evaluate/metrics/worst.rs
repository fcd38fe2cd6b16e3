//! The mistakes of which a model is surest: wrong labels and confusing pictures show up here first.

use serde::Serialize;

/// A wrong prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mistake {
    /// The sample's place in the data set.
    pub index: usize,
    /// What it is labelled as.
    pub label: u32,
    /// What the model takes it for.
    pub predicted: u32,
    /// The probability that the model gives to that.
    pub confidence: f64,
}

/// The few most confident mistakes seen so far.
#[derive(Debug, Clone, PartialEq)]
pub struct WorstMistakes {
    limit: usize,
    mistakes: Vec<Mistake>,
}

impl WorstMistakes {
    /// Keeps at most `limit`.
    pub fn new(limit: usize) -> Self {
        Self { limit, mistakes: Vec::new() }
    }

    /// The mistakes, worst first; of equal ones, the lower index first.
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }

    /// Keeps a mistake if it is among the worst, whatever the order in which they come.
    pub fn add(&mut self, mistake: Mistake) {
        let before = |kept: &Mistake| {
            kept.confidence.total_cmp(&mistake.confidence).reverse().then(kept.index.cmp(&mistake.index)).is_lt()
        };
        let place = self.mistakes.partition_point(before);
        if place < self.limit {
            self.mistakes.truncate(self.limit - 1);
            self.mistakes.insert(place, mistake);
        }
    }
}
