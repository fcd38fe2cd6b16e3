//! Evaluation of a multi-label classifier: every class is a binary decision.

use serde::Serialize;

use super::classification::check_logits;
use super::{ClassMetrics, MetricsError};

/// The accumulated logits and labels. Average precision sorts all scores, so all are kept: four bytes for each sample and
/// class.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiLabelEvaluation {
    classes: usize,
    samples: usize,
    loss: f64,
    not_finite: u64,
    scores: Vec<f32>,
    positives: Vec<Vec<usize>>,
}

/// The metrics of a multi-label evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MultiLabelMetrics {
    /// The number of samples.
    pub samples: usize,
    /// Mean binary cross-entropy over samples and classes, natural logarithm.
    pub loss: f64,
    /// Mean of the classes' average precisions, over classes that have samples.
    pub mean_average_precision: f64,
    /// F1 of all decisions together, positive where the probability is above one half.
    pub micro_f1: f64,
    /// Mean F1 of the classes.
    pub macro_f1: f64,
    /// Samples with logits that are not finite.
    pub not_finite: u64,
}

impl MultiLabelEvaluation {
    /// An empty evaluation of a model with this number of classes.
    pub fn new(classes: usize) -> Self {
        Self { classes, samples: 0, loss: 0.0, not_finite: 0, scores: vec![], positives: vec![vec![]; classes] }
    }

    /// Adds a batch: logits `[samples][classes]`, and the labels of each sample.
    pub fn add<L: AsRef<[u32]>>(&mut self, logits: &[f32], labels: &[L]) -> Result<(), MetricsError> {
        let classes = self.classes;
        check_logits(logits, labels.len(), classes)?;
        if let Some(&label) = labels.iter().flat_map(AsRef::as_ref).find(|&&label| label as usize >= classes) {
            return Err(MetricsError::Label { label, classes });
        }
        for (logits, labels) in logits.chunks_exact(classes.max(1)).zip(labels) {
            // Binary cross-entropy ln(1 + e^x) - x * target, without overflow for large x.
            self.loss +=
                logits.iter().map(|&x| f64::from(x)).map(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()).sum::<f64>();
            for (class, positives) in self.positives.iter_mut().enumerate() {
                // Duplicate labels count once.
                if labels.as_ref().contains(&(class as u32)) {
                    positives.push(self.samples);
                    self.loss -= f64::from(logits[class]);
                }
            }
            self.not_finite += u64::from(logits.iter().any(|x| !x.is_finite()));
            self.scores.extend(logits.iter().map(|&x| if x.is_nan() { f32::NEG_INFINITY } else { x }));
            self.samples += 1;
        }
        Ok(())
    }

    /// The metrics so far; NaN without samples.
    pub fn metrics(&self) -> MultiLabelMetrics {
        let precisions: Vec<f64> = self.average_precisions().into_iter().flatten().collect();
        let classes = self.per_class();
        let answers: u64 = classes.iter().map(|c| c.support + c.predicted).sum();
        let right: u64 = (0..self.classes).map(|class| self.right(class)).sum();
        MultiLabelMetrics {
            samples: self.samples,
            loss: self.loss / (self.samples * self.classes) as f64,
            mean_average_precision: precisions.iter().sum::<f64>() / precisions.len() as f64,
            micro_f1: if answers == 0 { 0.0 } else { 2.0 * right as f64 / answers as f64 },
            macro_f1: classes.iter().map(|c| c.f1).sum::<f64>() / self.classes as f64,
            not_finite: self.not_finite,
        }
    }

    /// The average precision of every class that has samples. Equal scores are one threshold.
    pub fn average_precisions(&self) -> Vec<Option<f64>> {
        let mut order: Vec<usize> = Vec::with_capacity(self.samples);
        let mut is_positive = vec![false; self.samples];
        let precision = |(class, positives): (usize, &Vec<usize>)| {
            if positives.is_empty() {
                return None;
            }
            let score = |sample: usize| self.scores[sample * self.classes + class];
            order.clear();
            order.extend(0..self.samples);
            order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
            positives.iter().for_each(|&sample| is_positive[sample] = true);
            let (mut sum, mut found, mut seen) = (0.0, 0, 0);
            for equal in order.chunk_by(|&a, &b| score(a) == score(b)) {
                let new = equal.iter().filter(|&&sample| is_positive[sample]).count();
                found += new;
                seen += equal.len();
                sum += new as f64 * found as f64 / seen as f64;
            }
            positives.iter().for_each(|&sample| is_positive[sample] = false);
            Some(sum / positives.len() as f64)
        };
        self.positives.iter().enumerate().map(precision).collect()
    }

    /// Precision, recall and F1 of every class, positive where the probability is above one half.
    pub fn per_class(&self) -> Vec<ClassMetrics> {
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let measures = |class: usize| {
            let support = self.positives[class].len() as u64;
            let predicted = (0..self.samples).filter(|&sample| self.is_predicted(sample, class)).count() as u64;
            let right = self.right(class);
            ClassMetrics {
                precision: share(right, predicted),
                recall: share(right, support),
                f1: share(2 * right, support + predicted),
                support,
                predicted,
            }
        };
        (0..self.classes).map(measures).collect()
    }

    fn is_predicted(&self, sample: usize, class: usize) -> bool {
        self.scores[sample * self.classes + class] > 0.0
    }

    fn right(&self, class: usize) -> u64 {
        self.positives[class].iter().filter(|&&sample| self.is_predicted(sample, class)).count() as u64
    }
}
