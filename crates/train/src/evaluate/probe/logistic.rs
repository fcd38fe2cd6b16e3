//! Multinomial logistic regression by L-BFGS: the linear probe. It minimises the mean cross-entropy plus `l2 / 2` times the
//! squared weights, without the intercept. Sums have a fixed order, whatever the number of threads.

use std::collections::VecDeque;

use nalgebra::{DMatrix, DMatrixView};

use super::parallel;

/// Samples whose logits are computed at once.
const BLOCK: usize = 1024;

/// Ranges of samples that are added up separately.
const RANGES: usize = 16;

/// Earlier steps that approximate the inverse Hessian.
const HISTORY: usize = 10;

/// When the optimisation ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Convergence {
    /// Below this largest derivative.
    pub tolerance: f64,
    /// After this many steps.
    pub steps: usize,
}

impl Default for Convergence {
    fn default() -> Self {
        Self { tolerance: 1e-5, steps: 300 }
    }
}

/// Weights and intercepts of all classes: `[classes, width + 1]`, column by column, the intercepts last.
#[derive(Debug, Clone, PartialEq)]
pub struct LogisticRegression {
    parameters: Vec<f64>,
    classes: usize,
}

/// Labelled rows of features, and how they are standardised.
pub struct LabelledRows<'a> {
    /// `[samples, width]`.
    pub rows: &'a [f32],
    /// The class of each.
    pub labels: &'a [u32],
    /// Shift and scale of every feature.
    pub standardisation: &'a super::Standardisation,
}

impl LogisticRegression {
    /// All zeros: every class is equally likely.
    pub fn zeros(classes: usize, width: usize) -> Self {
        Self { parameters: vec![0.0; classes * (width + 1)], classes }
    }

    /// Improves the parameters until the optimisation has converged; returns whether it has.
    pub fn fit(&mut self, data: &LabelledRows<'_>, l2: f64, until: Convergence) -> bool {
        let (mut loss, mut gradient) = self.loss_and_gradient(data, l2);
        let mut history: VecDeque<[Vec<f64>; 2]> = VecDeque::new();
        for _ in 0..until.steps {
            if gradient.iter().all(|g| g.abs() <= until.tolerance) {
                return true;
            }
            let direction = descent_direction(&gradient, &history);
            let derivative = dot(&direction, &gradient);
            // The first direction is the gradient, of any length.
            let mut rate = if history.is_empty() { 1.0 / dot(&gradient, &gradient).sqrt().max(1.0) } else { 1.0 };
            let next = loop {
                let parameters = self.parameters.iter().zip(&direction).map(|(p, d)| p + rate * d).collect();
                let next = Self { parameters, classes: self.classes };
                let (next_loss, next_gradient) = next.loss_and_gradient(data, l2);
                if next_loss <= loss + 1e-4 * rate * derivative {
                    break Some((next, next_loss, next_gradient));
                }
                rate *= 0.5;
                if rate < 1e-10 {
                    break None;
                }
            };
            // No step decreases the loss any more, within its rounding errors.
            let Some((next, next_loss, next_gradient)) = next else { return false };
            let step = difference(&next.parameters, &self.parameters);
            let change = difference(&next_gradient, &gradient);
            if dot(&step, &change) > 0.0 {
                history.push_back([step, change]);
            }
            if history.len() > HISTORY {
                history.pop_front();
            }
            (*self, loss, gradient) = (next, next_loss, next_gradient);
        }
        false
    }

    /// The logits of rows of features, `[samples, classes]`.
    pub fn logits(&self, rows: &[f32], standardisation: &super::Standardisation) -> Vec<f64> {
        let blocks: Vec<&[f32]> = rows.chunks(BLOCK * standardisation.width()).collect();
        parallel(blocks.len(), |block| self.block_logits(&standardisation.apply(blocks[block])).as_slice().to_vec())
            .concat()
    }

    /// `[classes, samples]` of standardised samples.
    fn block_logits(&self, samples: &DMatrix<f64>) -> DMatrix<f64> {
        let (weights, intercept) = self.parameters.split_at(self.classes * samples.nrows());
        let mut logits = DMatrixView::from_slice(weights, self.classes, samples.nrows()) * samples;
        for column in logits.as_mut_slice().chunks_exact_mut(self.classes) {
            column.iter_mut().zip(intercept).for_each(|(logit, intercept)| *logit += intercept);
        }
        logits
    }

    fn loss_and_gradient(&self, data: &LabelledRows<'_>, l2: f64) -> (f64, Vec<f64>) {
        let (count, width) = (data.labels.len(), data.standardisation.width());
        let each = count.div_ceil(RANGES).max(1);
        let ranges: Vec<(&[f32], &[u32])> = data.rows.chunks(each * width).zip(data.labels.chunks(each)).collect();
        let sums = parallel(ranges.len(), |range| {
            let (rows, labels) = ranges[range];
            let (mut loss, mut gradient) = (0.0, vec![0.0; self.parameters.len()]);
            for (rows, labels) in rows.chunks(BLOCK * width).zip(labels.chunks(BLOCK)) {
                let samples = data.standardisation.apply(rows);
                let mut errors = self.block_logits(&samples);
                for (column, label) in errors.as_mut_slice().chunks_exact_mut(self.classes).zip(labels) {
                    loss += to_error(column, *label as usize);
                }
                let (of_weights, of_intercepts) = gradient.split_at_mut(self.classes * width);
                let product = &errors * samples.transpose();
                of_weights.iter_mut().zip(product.as_slice()).for_each(|(sum, value)| *sum += value);
                for column in errors.as_slice().chunks_exact(self.classes) {
                    of_intercepts.iter_mut().zip(column).for_each(|(sum, value)| *sum += value);
                }
            }
            (loss, gradient)
        });
        let (mut loss, mut gradient) = (0.0, vec![0.0; self.parameters.len()]);
        for (part, of_part) in sums {
            loss += part;
            gradient.iter_mut().zip(of_part).for_each(|(sum, value)| *sum += value);
        }
        loss /= count as f64;
        gradient.iter_mut().for_each(|g| *g /= count as f64);
        let weights = &self.parameters[..self.classes * width];
        loss += 0.5 * l2 * dot(weights, weights);
        gradient.iter_mut().zip(weights).for_each(|(g, weight)| *g += l2 * weight);
        (loss, gradient)
    }
}

/// Replaces logits by the derivative of the cross-entropy, which it returns.
fn to_error(logits: &mut [f64], label: usize) -> f64 {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let of_label = logits[label];
    logits.iter_mut().for_each(|logit| *logit = (*logit - largest).exp());
    let sum: f64 = logits.iter().sum();
    logits.iter_mut().for_each(|value| *value /= sum);
    logits[label] -= 1.0;
    sum.ln() + largest - of_label
}

/// The two loops of L-BFGS (Nocedal and Wright, algorithm 7.4).
fn descent_direction(gradient: &[f64], history: &VecDeque<[Vec<f64>; 2]>) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut factors = Vec::with_capacity(history.len());
    for [step, change] in history.iter().rev() {
        let factor = dot(step, &direction) / dot(step, change);
        add(&mut direction, -factor, change);
        factors.push(factor);
    }
    if let Some([step, change]) = history.back() {
        let scale = dot(step, change) / dot(change, change);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for ([step, change], factor) in history.iter().zip(factors.into_iter().rev()) {
        let correction = dot(change, &direction) / dot(step, change);
        add(&mut direction, factor - correction, step);
    }
    direction
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn add(to: &mut [f64], factor: f64, values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += factor * value);
}
