//! The confusion matrix and the metrics of every class. It is sparse, since a dense one of 21843 classes would take
//! gigabytes.

use std::collections::BTreeMap;

use serde::Serialize;

/// A confusion matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confusion {
    classes: usize,
    cells: BTreeMap<(usize, usize), u64>,
    unpredicted: BTreeMap<usize, u64>,
}

/// The metrics of one class. A metric whose denominator is zero is zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ClassMetrics {
    /// Share of the samples predicted as this class that have its label.
    pub precision: f64,
    /// Share of the samples with this label that are predicted as it.
    pub recall: f64,
    /// Harmonic mean of the two.
    pub f1: f64,
    /// Samples with this label.
    pub support: u64,
    /// Samples predicted as this class.
    pub predicted: u64,
}

impl Confusion {
    /// An empty matrix.
    pub fn new(classes: usize) -> Self {
        Self { classes, cells: BTreeMap::new(), unpredicted: BTreeMap::new() }
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The number of samples of class `label` that were predicted as class `predicted`.
    pub fn count(&self, label: usize, predicted: usize) -> u64 {
        self.cells.get(&(label, predicted)).copied().unwrap_or(0)
    }

    /// Every cell that is not zero: label, predicted class, count.
    pub fn cells(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        self.cells.iter().map(|(&(label, predicted), &count)| (label, predicted, count))
    }

    /// The pairs of classes most often confused: label, predicted class, count.
    pub fn most_confused(&self, count: usize) -> Vec<(usize, usize, u64)> {
        let mut pairs: Vec<_> = self.cells().filter(|(label, predicted, _)| label != predicted).collect();
        pairs.sort_by_key(|&(label, predicted, count)| (std::cmp::Reverse(count), label, predicted));
        pairs.truncate(count);
        pairs
    }

    /// Precision, recall and F1 of every class.
    pub fn per_class(&self) -> Vec<ClassMetrics> {
        let mut classes = vec![ClassMetrics::default(); self.classes];
        for (label, predicted, count) in self.cells() {
            classes[label].support += count;
            classes[predicted].predicted += count;
        }
        for (&label, &count) in &self.unpredicted {
            classes[label].support += count;
        }
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        for (class, measures) in classes.iter_mut().enumerate() {
            let right = self.count(class, class);
            measures.precision = share(right, measures.predicted);
            measures.recall = share(right, measures.support);
            measures.f1 = share(2 * right, measures.support + measures.predicted);
        }
        classes
    }

    pub(super) fn add(&mut self, label: usize, predicted: usize) {
        *self.cells.entry((label, predicted)).or_default() += 1;
    }

    /// Adds a sample whose logits give no prediction.
    pub(super) fn add_unpredicted(&mut self, label: usize) {
        *self.unpredicted.entry(label).or_default() += 1;
    }

    pub(super) fn merge(&mut self, other: &Confusion) {
        other.cells.iter().for_each(|(cell, count)| *self.cells.entry(*cell).or_default() += count);
        other.unpredicted.iter().for_each(|(label, count)| *self.unpredicted.entry(*label).or_default() += count);
    }
}
