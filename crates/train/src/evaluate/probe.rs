//! What the features of a model are worth on a dataset, without training the model: few-shot linear classification by ridge
//! regression, nearest neighbours, and a linear probe on all training images. Settings are chosen on held-out training
//! images; the test images are looked at once.

mod few_shot;
mod images;
mod k_nearest;
mod logistic;
mod ridge;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use nalgebra::DMatrix;
use vit_data::Samples;
use vit_data::augment::SampleRandom;
use vit_data::dataset::Dataset;
use vit_data::loader::Unreadable;
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Device, Parameters};
use vit_graph::rewrite::eliminate_dead_code;
use vit_models::{Config, Mode};

use super::features::FeatureRun;
use crate::error::TrainError;
use few_shot::Shots;

pub use few_shot::FewShot;
pub use images::{ProbeImages, open_for_probe};
pub use k_nearest::NearestNeighbours;
pub use logistic::{Convergence, LabelledRows, LogisticRegression};
pub use ridge::{LinearModel, Ridge};

/// The share of the training images of each class on which settings are chosen.
const HELD_OUT: f64 = 0.1;

/// The strengths of the linear probe's regularisation, per sample, the strongest first: each solution starts the next.
const LINEAR_L2: [f64; 6] = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6];

/// How to probe.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeOptions {
    /// Images in a batch.
    pub batch: usize,
    /// Threads that prepare images.
    pub threads: usize,
    /// Training images of each class in few-shot classification.
    pub shots: Vec<usize>,
    /// Draws of these images.
    pub draws: usize,
    /// The seed of the draws and of the held-out training images.
    pub seed: u64,
    /// Nearest neighbours.
    pub nearest: NearestNeighbours,
}

/// The accuracies of a probe on the test images.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeOutcome {
    /// Of few-shot linear classification, in the order of the options.
    pub few_shot: Vec<FewShot>,
    /// Of nearest neighbours among all training images.
    pub nearest: f64,
    /// Of the linear probe.
    pub linear: LinearProbe,
    /// Images for training that could be read.
    pub train: usize,
    /// Test images that could be read.
    pub test: usize,
    /// Images that could not be read: name and reason.
    pub unreadable: Vec<Unreadable>,
}

/// A linear classifier of the features of all training images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearProbe {
    /// The chosen strength of regularisation.
    pub l2: f64,
    /// The accuracy on the test images.
    pub top1: f64,
    /// Whether the optimisation converged.
    pub converged: bool,
}

/// Computes the features of all images and probes them. `progress` is called with the number of images done and their total;
/// `false` ends the probe early, without an outcome.
pub fn probe(
    device: &dyn Device,
    config: &Config,
    parameters: &mut dyn Parameters,
    images: &ProbeImages,
    options: &ProbeOptions,
    mut progress: impl FnMut(usize, usize) -> bool,
) -> Result<Option<ProbeOutcome>, TrainError> {
    let all = images.train.len() + images.test.len();
    let batch = options.batch.clamp(1, all.max(1));
    let build = |batch: usize| {
        let mut graph = config.architecture.build(batch, Mode::Inference)?;
        graph.retain_outputs(|name| name == "features");
        eliminate_dead_code(&graph)
    };
    let graph = build(batch)?;
    let width = graph.shape(graph.output("features")?).last();
    let held = parameters.held_bytes();
    let mut executable =
        device.compile(&graph, parameters).map_err(|error| suggest_batch(error, device, batch, held, build))?;
    config.preprocessing.validate()?;
    let mut run = FeatureRun {
        executable: &mut *executable,
        output: "features",
        width,
        preprocess: &config.preprocessing,
        batch,
        threads: options.threads,
    };
    let mut unreadable = Vec::new();
    let mut features = Vec::new();
    let mut before = 0;
    for samples in [&images.train, &images.test] {
        let labelled: Vec<usize> = (0..samples.len()).filter(|&index| samples.labels(index).len() == 1).collect();
        let Some((values, failed)) = run.of(samples.as_ref(), &labelled, |done| progress(before + done, all))? else {
            return Ok(None);
        };
        before += labelled.len();
        features.push(Features::of(values, width, samples, &labelled, &failed)?);
        unreadable.extend(failed);
    }
    let [train, test] = [features.swap_remove(0), features.swap_remove(0)];
    let mut outcome = measure(&train, &test, options)?;
    outcome.unreadable = unreadable;
    Ok(Some(outcome))
}

/// Probes features.
fn measure(train: &Features, test: &Features, options: &ProbeOptions) -> Result<ProbeOutcome, TrainError> {
    for (features, what) in [(train, "training"), (test, "test")] {
        if features.labels.is_empty() {
            return Err(TrainError::Unsuitable(format!(
                "no labelled {what} image could be read, so there is no probe"
            )));
        }
    }
    let (pool, held_out) = train.hold_out(options.seed);
    let shots = Shots { pool: &pool, held_out: &held_out, test, draws: options.draws, seed: options.seed };
    let shares = options.nearest.shares(&train.values, &train.labels, &test.values, train.width, train.classes);
    Ok(ProbeOutcome {
        few_shot: options.shots.iter().map(|&each| shots.classify(each)).collect(),
        nearest: test.accuracy(&shares),
        linear: linear(train, &pool, &held_out, test),
        train: train.labels.len(),
        test: test.labels.len(),
        unreadable: Vec::new(),
    })
}

fn linear(train: &Features, pool: &Features, held_out: &Features, test: &Features) -> LinearProbe {
    let mut model = LogisticRegression::zeros(pool.classes, pool.width);
    let standardisation = Standardisation::of(&pool.values, pool.width);
    let data = pool.labelled(&standardisation);
    let (mut best, mut l2) = (-1.0, LINEAR_L2[0]);
    for strength in LINEAR_L2 {
        model.fit(&data, strength, Convergence::default());
        let accuracy = held_out.accuracy(&model.logits(&held_out.values, &standardisation));
        if accuracy > best {
            (best, l2) = (accuracy, strength);
        }
    }
    let standardisation = Standardisation::of(&train.values, train.width);
    let mut model = LogisticRegression::zeros(train.classes, train.width);
    let converged = model.fit(&train.labelled(&standardisation), l2, Convergence::default());
    LinearProbe { l2, top1: test.accuracy(&model.logits(&test.values, &standardisation)), converged }
}

/// The features of labelled images.
#[derive(Debug, Clone)]
struct Features {
    /// `[images, width]`.
    values: Vec<f32>,
    width: usize,
    labels: Vec<u32>,
    classes: usize,
}

impl Features {
    /// The rows of the images that could be read.
    fn of(
        values: Vec<f32>,
        width: usize,
        samples: &Dataset,
        chosen: &[usize],
        failed: &[Unreadable],
    ) -> Result<Self, TrainError> {
        let mut missing = failed.iter().map(|one| one.sample).peekable();
        // Both are in the same order.
        let read: Vec<usize> =
            (0..chosen.len()).filter(|&at| missing.next_if(|&sample| sample == chosen[at]).is_none()).collect();
        let labels = chosen.iter().map(|&index| samples.labels(index)[0]).collect();
        let all = Self { values, width, labels, classes: samples.classes().len() };
        let features = if read.len() < chosen.len() { all.rows(&read) } else { all };
        match features.values.chunks(width.max(1)).position(|row| row.iter().any(|value| !value.is_finite())) {
            Some(row) => Err(TrainError::Unsuitable(format!(
                "the features of {} are NaN or infinite; use --precision f32, or another checkpoint",
                samples.name(chosen[read[row]])
            ))),
            None => Ok(features),
        }
    }

    fn rows(&self, chosen: &[usize]) -> Self {
        let row = |&at: &usize| &self.values[at * self.width..][..self.width];
        Self {
            values: chosen.iter().flat_map(row).copied().collect(),
            labels: chosen.iter().map(|&at| self.labels[at]).collect(),
            ..*self
        }
    }

    /// Divides the rows: a share of each class is held out, at least one of three.
    fn hold_out(&self, seed: u64) -> (Self, Self) {
        let (mut pool, mut held_out) = (Vec::new(), Vec::new());
        for (class, mut members) in self.by_class().into_iter().enumerate() {
            SampleRandom::new(seed, u64::MAX, class as u64, 0).shuffle(&mut members);
            let share = (members.len() as f64 * HELD_OUT).round() as usize;
            let count = share.max(usize::from(members.len() >= 3));
            let (held, rest) = members.split_at(count);
            held_out.extend(held);
            pool.extend(rest);
        }
        pool.sort_unstable();
        held_out.sort_unstable();
        (self.rows(&pool), self.rows(&held_out))
    }

    /// The rows of each class.
    fn by_class(&self) -> Vec<Vec<usize>> {
        let mut members = vec![Vec::new(); self.classes];
        for (at, label) in self.labels.iter().enumerate() {
            members[*label as usize].push(at);
        }
        members
    }

    fn labelled<'a>(&'a self, standardisation: &'a Standardisation) -> LabelledRows<'a> {
        LabelledRows { rows: &self.values, labels: &self.labels, standardisation }
    }

    /// The share of images whose label has the largest of their scores `[images, classes]`; 0 without images.
    fn accuracy(&self, scores: &[f64]) -> f64 {
        let right = scores.chunks(self.classes).zip(&self.labels);
        let right = right.filter(|(scores, label)| largest(scores) == **label as usize).count();
        right as f64 / self.labels.len().max(1) as f64
    }
}

/// The first of the largest values.
fn largest(values: &[f64]) -> usize {
    let greater = |best: usize, at: usize| if values[at] > values[best] { at } else { best };
    (0..values.len()).fold(0, greater)
}

/// Shift and scale that give training features a mean of 0 and a standard deviation of 1. Features that are almost constant
/// stay small.
#[derive(Debug, Clone, PartialEq)]
pub struct Standardisation {
    mean: Vec<f64>,
    scale: Vec<f64>,
}

impl Standardisation {
    /// That of rows of features of this width.
    pub fn of(rows: &[f32], width: usize) -> Self {
        let count = (rows.len() / width).max(1) as f64;
        let column_means = |value: &dyn Fn(usize, f32) -> f64| {
            let mut sums = vec![0.0; width];
            for row in rows.chunks_exact(width) {
                for (column, (sum, of)) in sums.iter_mut().zip(row).enumerate() {
                    *sum += value(column, *of);
                }
            }
            sums.iter().map(|sum| sum / count).collect::<Vec<f64>>()
        };
        let mean = column_means(&|_, value| value.into());
        let variance = column_means(&|column, value| (f64::from(value) - mean[column]).powi(2));
        let scale = variance.iter().map(|variance| 1.0 / (variance.sqrt() + 1e-5)).collect();
        Self { mean, scale }
    }

    /// The number of features.
    pub fn width(&self) -> usize {
        self.mean.len()
    }

    /// Rows of features, standardised: `[width, samples]`.
    pub fn apply(&self, rows: &[f32]) -> DMatrix<f64> {
        let width = self.width();
        let mut samples = DMatrix::zeros(width, rows.len() / width);
        for (sample, row) in samples.as_mut_slice().chunks_exact_mut(width).zip(rows.chunks_exact(width)) {
            for (column, (to, from)) in sample.iter_mut().zip(row).enumerate() {
                *to = (f64::from(*from) - self.mean[column]) * self.scale[column];
            }
        }
        samples
    }
}

/// Calls `work` for `0..count` on all cores; the results are in order.
fn parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&at| at < count) {
                    let result = work(at);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}
