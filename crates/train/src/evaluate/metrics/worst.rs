//! The most confident mistakes of a model, among which are wrong labels and ambiguous images.

use serde::Serialize;

/// A wrong prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mistake {
    /// The sample's index in the dataset.
    pub index: usize,
    /// Its label.
    pub label: u32,
    /// The predicted class.
    pub predicted: u32,
    /// The probability of the predicted class.
    pub confidence: f64,
}

/// The most confident mistakes seen so far.
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

    /// Keeps a mistake if it is among the worst; the order of calls makes no difference.
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
