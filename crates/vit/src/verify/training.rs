//! Replays recorded training steps.
//!
//! A folder holds the weights before (`model.safetensors`) and after (`final.safetensors`), and in `io.safetensors`
//! `images [steps, batch, channels, height, width]`, `labels [steps, batch]` or `targets [steps, batch, classes]`,
//! each step's `loss` and `grad_norm`, and the first step's gradients, `grad.NAME`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use vit_graph::Precision;
use vit_graph::device::{Elements, Executable};
use vit_models::weights::{Tensor, Weights, names};
use vit_models::{Changes, Checkpoint, OpenOptions};
use vit_system::regular_file;
use vit_train::{OptimiserMethod, StepOptions, StepParameters, TrainingStep};

use super::{Comparison, ReplayError, VerifyOptions, mixing, settings};

/// The largest absolute errors that f32 sums in another order explain.
const LOSS: f64 = 1e-5;
const GRADIENT_NORM: f64 = 1e-4;
const GRADIENT: f64 = 1e-5;
/// Adam divides by the magnitude of the gradients, which amplifies rounding where they are small.
const FINAL_ADAM: f64 = 1e-4;
const FINAL_SGD: f64 = 1e-5;

/// Replays the recorded steps and compares every array that was recorded of them.
pub(super) fn replay(
    folder: &Path,
    checkpoint: &mut Checkpoint,
    mut io: Weights,
    options: &VerifyOptions,
) -> Result<Vec<Comparison>, ReplayError> {
    let config = config(folder)?;
    let images = take(&mut io, "images")?;
    let channels = images.shape.len().checked_sub(3).map(|at| &images.shape[at..]);
    let Some(&[channels, height, width]) = channels else {
        return Err(ReplayError::Recording(format!(
            "`images` should end in channels, height, width, not {:?}",
            images.shape
        )));
    };
    if channels != checkpoint.config.architecture.channels() {
        let expected = checkpoint.config.architecture.channels();
        return Err(ReplayError::Recording(format!("`images` have {channels} channels, the model takes {expected}")));
    }
    checkpoint.change(Changes { image_size: Some([height, width]), ..Changes::default() })?;
    if io.tensors.contains_key("mixup_images") || io.tensors.contains_key("cutmix_images") {
        return mixing::replay(&config, checkpoint, images, io, options);
    }
    steps(folder, &config, checkpoint, &images, io, options)
}

fn steps(
    folder: &Path,
    config: &Value,
    checkpoint: &mut Checkpoint,
    images: &Tensor,
    mut io: Weights,
    options: &VerifyOptions,
) -> Result<Vec<Comparison>, ReplayError> {
    let settings = settings::parse(config).map_err(ReplayError::Recording)?;
    let [steps, batch, ..] = images.shape[..] else {
        return Err(ReplayError::Recording("`images` should be [steps, batch, channels, height, width]".into()));
    };
    let classes = checkpoint.config.architecture.classes();
    let targets = match io.tensors.remove("targets") {
        Some(targets) => targets.data,
        None => one_hot(&take(&mut io, "labels")?.data, classes, settings.label_smoothing)?,
    };
    let (images_each, targets_each) = (images.data.len() / steps.max(1), batch * classes);
    if targets.len() != steps * targets_each {
        return Err(ReplayError::Recording(format!("there should be labels for {steps} steps of {batch} images")));
    }
    let mut replay = Replay::new(checkpoint, batch, &settings.optimiser.into(), options)?;
    let gradients = gradients(&mut io)?;
    let mut series: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for step in 0..steps {
        replay.run(
            &images.data[step * images_each..][..images_each],
            &targets[step * targets_each..][..targets_each],
            settings.rate(step),
            step + 1,
        )?;
        for name in ["loss", "grad_norm"] {
            series.entry(name).or_default().extend(replay.read(name)?);
        }
        if step == 0 {
            found = replay.gradients()?;
        }
    }
    let tolerance = |usual: f64| options.tolerance.unwrap_or(usual);
    let mut arrays = Vec::new();
    for (name, usual) in [("loss", LOSS), ("grad_norm", GRADIENT_NORM)] {
        if let Some(expected) = io.tensors.remove(name) {
            let found = series.get(name).map(Vec::as_slice);
            arrays.push(Comparison::new(name.into(), &expected, found, tolerance(usual)));
        }
    }
    arrays.extend(compare_gradients(&gradients, &found, tolerance(GRADIENT)));
    for (name, expected) in &io.tensors {
        arrays.push(Comparison::new(name.clone(), expected, None, tolerance(LOSS)));
    }
    let last = folder.join("final.safetensors");
    if last.is_file() {
        let open = OpenOptions { weights: Some(&last), ..OpenOptions::default() };
        let adam = !matches!(settings.optimiser.method, OptimiserMethod::Sgd { .. });
        let weights = Checkpoint::open(folder, open)?.weights;
        // With a norm on the keys, their bias has a gradient.
        let free = |name: &str| !weights.tensors.contains_key(&name.replace("qkv.bias", "k_norm.weight"));
        for (name, expected) in &weights.tensors {
            let (found, mut expected) = (replay.parameter(name, expected.data.len())?, expected.clone());
            if adam && free(name) {
                leave_out_key_bias(name, &mut expected, &found);
            }
            let usual = if adam { FINAL_ADAM } else { FINAL_SGD };
            arrays.push(Comparison::new(format!("final.{name}"), &expected, Some(&found), tolerance(usual)));
        }
    }
    if arrays.is_empty() {
        return Err(ReplayError::Recording("there is nothing to compare with, only `images`".into()));
    }
    Ok(arrays)
}

/// The key's part of a qkv bias shifts all scores of a query alike, so its gradient is zero but for rounding, which Adam
/// amplifies to steps of full size: it is not comparable.
fn leave_out_key_bias(name: &str, expected: &mut Tensor, found: &[f32]) {
    let keys = expected.data.len() / 3..expected.data.len() / 3 * 2;
    if name.ends_with("attn.qkv.bias") && found.len() == expected.data.len() {
        expected.data[keys.clone()].copy_from_slice(&found[keys]);
    }
}

/// The recorded gradients under canonical names.
pub(super) fn gradients(io: &mut Weights) -> Result<BTreeMap<String, Tensor>, ReplayError> {
    let mut gradients = Weights::default();
    for name in io.tensors.keys().filter(|name| name.starts_with("grad.")).cloned().collect::<Vec<_>>() {
        gradients.insert(&name["grad.".len()..], io.take(&name)?)?;
    }
    Ok(names::canonical(gradients)?.0.tensors.into_iter().collect())
}

pub(super) fn compare_gradients(
    recorded: &BTreeMap<String, Tensor>,
    found: &BTreeMap<String, Vec<f32>>,
    tolerance: f64,
) -> Vec<Comparison> {
    let compare = |(name, expected): (&String, &Tensor)| {
        Comparison::new(format!("grad.{name}"), expected, found.get(name).map(Vec::as_slice), tolerance)
    };
    recorded.iter().map(compare).collect()
}

/// Rows of `1 - smoothing` for the label and `smoothing / classes` for every class.
pub(super) fn one_hot(labels: &[f32], classes: usize, smoothing: f32) -> Result<Vec<f32>, ReplayError> {
    let off = smoothing / classes.max(1) as f32;
    let mut targets = vec![off; labels.len() * classes];
    for (row, &label) in targets.chunks_exact_mut(classes.max(1)).zip(labels) {
        let Some(target) = row.get_mut(label as usize).filter(|_| label >= 0.0) else {
            return Err(ReplayError::Recording(format!("the label {label} is none of {classes} classes")));
        };
        *target = 1.0 - smoothing + off;
    }
    Ok(targets)
}

pub(super) fn take(io: &mut Weights, name: &str) -> Result<Tensor, ReplayError> {
    io.tensors.remove(name).ok_or_else(|| ReplayError::Recording(format!("there is no array named `{name}`")))
}

/// The description of the recording: meta.json, or config.json where that is not another library's.
fn config(folder: &Path) -> Result<Value, ReplayError> {
    for name in ["meta.json", "config.json"] {
        let path = folder.join(name);
        if let Ok(text) = regular_file::read_to_string(&path) {
            return serde_json::from_str(&text).map_err(|e| ReplayError::Recording(format!("{}: {e}", path.display())));
        }
    }
    Err(ReplayError::Recording("there is no config.json that says how the steps were made".into()))
}

/// A training step on a device, with its gradients as outputs.
pub(super) struct Replay {
    step: TrainingStep,
    executable: Box<dyn Executable>,
}

impl Replay {
    pub fn new(
        checkpoint: &mut Checkpoint,
        batch: usize,
        step: &StepOptions,
        options: &VerifyOptions,
    ) -> Result<Self, ReplayError> {
        let device = options.device.precision(Precision::F32).open()?;
        let mut step = TrainingStep::new(&checkpoint.config.architecture, batch, step.clone())?;
        for (name, gradient) in &step.gradients {
            step.graph.set_output(&format!("grad.{name}"), *gradient)?;
        }
        let mut start = StepParameters { model: &mut checkpoint.weights, state: &step.state };
        let executable = device.compile(&step.graph, &mut start)?;
        Ok(Replay { step, executable })
    }

    pub fn run(&mut self, images: &[f32], targets: &[f32], rate: f32, number: usize) -> Result<(), ReplayError> {
        self.executable.write("image", Elements::F32(images))?;
        self.executable.write("targets", Elements::F32(targets))?;
        self.executable.write("rate", Elements::F32(&[rate]))?;
        self.executable.write("step", Elements::F32(&[number as f32]))?;
        Ok(self.executable.run()?)
    }

    pub fn read(&self, output: &str) -> Result<Vec<f32>, ReplayError> {
        let value = self.step.graph.output(output)?;
        let mut elements = vec![0.0; self.step.graph.shape(value).elements()];
        self.executable.read(output, &mut elements)?;
        Ok(elements)
    }

    pub fn gradients(&self) -> Result<BTreeMap<String, Vec<f32>>, ReplayError> {
        let names = self.step.gradients.iter().map(|(name, _)| name);
        names.map(|name| Ok((name.clone(), self.read(&format!("grad.{name}"))?))).collect()
    }

    fn parameter(&self, name: &str, elements: usize) -> Result<Vec<f32>, ReplayError> {
        let mut found = vec![0.0; elements];
        self.executable.read_parameter(name, &mut found)?;
        Ok(found)
    }
}
