//! Evaluation of a classifier with one label per sample.

use serde::Serialize;

use super::{Calibration, ClassMetrics, Confusion, MetricsError, Mistake, WorstMistakes};

/// The accumulated evaluation of a classifier.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    classes: usize,
    samples: u64,
    loss: f64,
    top1: u64,
    top5: u64,
    not_finite: u64,
    confusion: Confusion,
    calibration: Calibration,
    worst: WorstMistakes,
}

/// The metrics of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    /// The number of samples.
    pub samples: u64,
    /// Mean cross-entropy, natural logarithm.
    pub loss: f64,
    /// Share of samples whose label has the largest logit.
    pub top1: f64,
    /// Share of samples whose label is among the five largest logits.
    pub top5: f64,
    /// Mean recall of the classes that have samples.
    pub balanced_accuracy: f64,
    /// Mean F1 of the classes that have samples or were predicted.
    pub macro_f1: f64,
    /// Expected calibration error over 15 bins.
    pub ece: f64,
    /// Samples whose logits have no finite maximum. They count as wrong.
    pub not_finite: u64,
}

/// The prediction that one sample's logits make.
struct ScoredPrediction {
    class: usize,
    confidence: f64,
    /// Natural logarithm of the label's probability, negated.
    loss: f64,
    /// The number of classes that are ranked above the label.
    rank: usize,
}

impl Evaluation {
    /// An empty evaluation, which keeps the `worst` most confident mistakes.
    pub fn new(classes: usize, worst: usize) -> Self {
        Self {
            classes,
            samples: 0,
            loss: 0.0,
            top1: 0,
            top5: 0,
            not_finite: 0,
            confusion: Confusion::new(classes),
            calibration: Calibration::default(),
            worst: WorstMistakes::new(worst),
        }
    }

    /// Adds a batch: logits `[samples][classes]`, and a label and an index into the dataset for each sample. An invalid batch
    /// changes nothing.
    pub fn add(&mut self, logits: &[f32], labels: &[u32], indices: &[usize]) -> Result<(), MetricsError> {
        let classes = self.classes;
        check_logits(logits, labels.len(), classes)?;
        if indices.len() != labels.len() {
            return Err(MetricsError::Indices { labels: labels.len(), indices: indices.len() });
        }
        if let Some(&label) = labels.iter().find(|&&label| label as usize >= classes) {
            return Err(MetricsError::Label { label, classes });
        }
        for ((logits, &label), &index) in logits.chunks_exact(classes.max(1)).zip(labels).zip(indices) {
            self.samples += 1;
            let Some(prediction) = predict(logits, label as usize) else {
                self.not_finite += 1;
                self.loss = f64::NAN;
                self.confusion.add_unpredicted(label as usize);
                continue;
            };
            let ScoredPrediction { class, confidence, loss, rank } = prediction;
            self.loss += loss;
            self.top1 += u64::from(rank == 0);
            self.top5 += u64::from(rank < 5);
            self.confusion.add(label as usize, class);
            self.calibration.add(confidence, rank == 0);
            if rank > 0 {
                self.worst.add(Mistake { index, label, predicted: class as u32, confidence });
            }
        }
        Ok(())
    }

    /// Adds the evaluation of other samples.
    pub fn merge(&mut self, other: &Evaluation) -> Result<(), MetricsError> {
        if self.classes != other.classes {
            return Err(MetricsError::Classes { classes: self.classes, other: other.classes });
        }
        self.samples += other.samples;
        self.loss += other.loss;
        self.top1 += other.top1;
        self.top5 += other.top5;
        self.not_finite += other.not_finite;
        self.confusion.merge(&other.confusion);
        self.calibration.merge(&other.calibration);
        other.worst.mistakes().iter().for_each(|mistake| self.worst.add(mistake.clone()));
        Ok(())
    }

    /// The metrics so far; NaN without samples.
    pub fn metrics(&self) -> Metrics {
        let share = |count: u64| count as f64 / self.samples as f64;
        let classes = self.per_class();
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        Metrics {
            samples: self.samples,
            loss: self.loss / self.samples as f64,
            top1: share(self.top1),
            top5: share(self.top5),
            balanced_accuracy: mean(classes.iter().filter(|c| c.support > 0).map(|c| c.recall).collect()),
            macro_f1: mean(classes.iter().filter(|c| c.support + c.predicted > 0).map(|c| c.f1).collect()),
            ece: self.calibration.ece(),
            not_finite: self.not_finite,
        }
    }

    /// Precision, recall and F1 of every class.
    pub fn per_class(&self) -> Vec<ClassMetrics> {
        self.confusion.per_class()
    }

    /// The confusion matrix.
    pub fn confusion(&self) -> &Confusion {
        &self.confusion
    }

    /// The calibration of confidences.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// The most confident mistakes, worst first.
    pub fn worst(&self) -> &[Mistake] {
        self.worst.mistakes()
    }
}

pub(super) fn check_logits(logits: &[f32], samples: usize, classes: usize) -> Result<(), MetricsError> {
    if samples.checked_mul(classes) == Some(logits.len()) {
        Ok(())
    } else {
        Err(MetricsError::Logits { samples, classes, found: logits.len() })
    }
}

/// The prediction of one row of logits; of equal logits the lower class ranks first. `None` if a logit is NaN or the
/// largest one is infinite.
fn predict(logits: &[f32], label: usize) -> Option<ScoredPrediction> {
    let mut class = 0;
    for (candidate, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        if logit > logits[class] {
            class = candidate;
        }
    }
    let largest = f64::from(logits[class]);
    if !largest.is_finite() {
        return None;
    }
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let of_label = logits[label];
    let before = |(class, &logit): (usize, &f32)| logit > of_label || (logit == of_label && class < label);
    Some(ScoredPrediction {
        class,
        confidence: 1.0 / sum,
        loss: sum.ln() - (f64::from(of_label) - largest),
        rank: logits.iter().enumerate().filter(|&pair| before(pair)).count(),
    })
}
