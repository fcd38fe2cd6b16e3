//! Compares a checkpoint with recordings of another library: the outputs for a recorded input, or the losses, gradients
//! and final weights of recorded training steps.

mod loss;
#[cfg(feature = "train")]
mod mixing;
#[cfg(feature = "text")]
mod pairs;
#[cfg(feature = "train")]
mod pretraining;
#[cfg(feature = "train")]
mod settings;
#[cfg(feature = "text")]
mod tokens;
#[cfg(feature = "train")]
mod training;

use std::path::{Path, PathBuf};

use serde_json::Value;
use vit_graph::device::Elements;
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{Graph, GraphError};
use vit_models::weights::{Tensor, Weights, safetensors};
use vit_models::{Checkpoint, Mode, OpenOptions};
use vit_system::regular_file;

use crate::device::quantised;
use crate::{DeviceOptions, Error, Precision};

/// How to verify.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// The device and its precision.
    pub device: DeviceOptions,
    /// One tolerance for everything, instead of the default for each array.
    pub tolerance: Option<f64>,
    /// The weights file, if the folder has several.
    pub weights: Option<PathBuf>,
}

/// One recorded array against the model's.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The array's name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The largest absolute difference; `None` if the model has no such array, or one of another shape.
    pub difference: Option<f64>,
    /// The largest difference allowed.
    pub tolerance: f64,
    /// Why there is no difference to state.
    pub note: Option<String>,
}

impl Comparison {
    /// Whether the difference is within the tolerance.
    pub fn passes(&self) -> bool {
        self.difference.is_some_and(|d| d <= self.tolerance)
    }
}

/// All recorded arrays against the model's.
#[derive(Debug, Clone, PartialEq)]
pub struct Verification {
    /// The weights file.
    pub weights: PathBuf,
    /// One entry per array.
    pub arrays: Vec<Comparison>,
}

impl Verification {
    /// Whether every array is within its tolerance.
    pub fn passes(&self) -> bool {
        self.arrays.iter().all(Comparison::passes)
    }
}

/// The largest absolute error: the one that the recording states, or what f32 sums in another order explain in models of
/// ordinary size; in other precisions, times the ratio of their rounding error to that of f32.
fn usual_tolerance(name: &str, recording: &Value, precision: Precision) -> f64 {
    let stated = &recording["tolerance"];
    let stated = stated.get(name).or_else(|| stated.get("grad.*").filter(|_| name.starts_with("grad.")));
    let exact = stated.and_then(Value::as_f64).unwrap_or(match name {
        _ if name.starts_with("attention_") => 5e-6,
        _ if name.starts_with("grad.") => 5e-5,
        "tokens" | "feature_map" | "image_tokens" | "text_tokens" => 5e-5,
        _ if name.starts_with("tokens_") => 5e-5,
        "loss" => 1e-5,
        _ => 2e-5,
    });
    match precision {
        Precision::F32 => exact,
        Precision::Tf32 => 500.0 * exact,
        Precision::F16 => 1000.0 * exact,
        Precision::Bf16 | Precision::Int8 => 4000.0 * exact,
        Precision::Fp8 => 20000.0 * exact,
    }
}

/// The model's name for a recorded array: `attention_3` is the attention weights of block 3.
fn tap(name: &str) -> String {
    match (name, name.strip_prefix("attention_")) {
        (_, Some(block)) => format!("blocks.{block}.attn.weights"),
        // transformers' word.
        ("pooled", _) => "features".to_string(),
        _ => name.to_string(),
    }
}

/// Builds the model of a folder, runs it on the `input` of its `io.safetensors`, and compares all other arrays in it. If
/// `labels` are among them, `loss` and `grad.NAME` are the mean cross-entropy and its gradients. Of an image-text model,
/// `input_ids` are its texts. With `images` in place of `input` it is a recorded training run, whose steps are replayed as
/// config.json describes.
pub fn verify(folder: &Path, options: &VerifyOptions) -> Result<Verification, Error> {
    let recording = description(folder);
    #[cfg(feature = "text")]
    if tokens::is_recorded(&recording) {
        return tokens::compare(folder, &recording);
    }
    let open = OpenOptions { weights: options.weights.as_deref(), ..OpenOptions::default() };
    let checkpoint = Checkpoint::open(folder, open)?;
    let recorded = folder.join("io.safetensors");
    if !recorded.is_file() {
        let what = "there is nothing to compare with; record `input` and outputs such as `logits` there".into();
        return Err(Error::Recording { path: recorded, what });
    }
    let mut io = safetensors::read(&recorded)?;
    if let Some(map) = io.tensors.get_mut("feature_map").filter(|_| recording["feature_map_layout"] == "NCHW") {
        *map = channels_last(map);
    }
    let unsuitable = |what: String| Error::Recording { path: recorded.clone(), what };
    if io.tensors.contains_key("images") {
        #[cfg(feature = "train")]
        {
            let mut checkpoint = checkpoint;
            return match training::replay(folder, &mut checkpoint, io, options) {
                Ok(arrays) => Ok(Verification { weights: checkpoint.source, arrays }),
                Err(ReplayError::Recording(what)) => Err(unsuitable(what)),
                Err(ReplayError::Other(error)) => Err(error),
            };
        }
        #[cfg(not(feature = "train"))]
        return Err(unsuitable("recorded training steps need the feature `train` of this library".into()));
    }
    #[cfg(not(feature = "text"))]
    if io.tensors.contains_key("input_ids") {
        return Err(unsuitable("recorded texts need the feature `text` of this library".into()));
    }
    #[cfg(feature = "text")]
    if let Some(clip) = checkpoint.image_text().filter(|_| pairs::is_recorded(&io)) {
        let arrays = pairs::compare(&checkpoint, clip, io, &recording, options, &unsuitable)?;
        return Ok(Verification { weights: checkpoint.source, arrays });
    }
    #[cfg(feature = "train")]
    if pretraining::is_recorded(&io) && checkpoint.config.architecture.pretraining().is_some() {
        let mut checkpoint = checkpoint;
        return match pretraining::compare(&mut checkpoint, io, &recording, options) {
            Ok(arrays) => Ok(Verification { weights: checkpoint.source, arrays }),
            Err(ReplayError::Recording(what)) => Err(unsuitable(what)),
            Err(ReplayError::Other(error)) => Err(error),
        };
    }
    let source = checkpoint.source;
    let recorded = Recorded { folder, recording: &recording, options, unsuitable: &unsuitable };
    let mut arrays = Vec::new();
    let others: Vec<String> =
        io.tensors.keys().filter_map(|name| Some(format!("_{}", name.strip_prefix("input_")?))).collect();
    for suffix in others {
        let mut part = Weights::default();
        let names: Vec<String> = io.tensors.keys().filter(|name| name.ends_with(&suffix)).cloned().collect();
        for name in names {
            let tensor = io.take(&name)?;
            part.insert(name.strip_suffix(&suffix).unwrap_or(&name), tensor)?;
        }
        arrays.extend(recorded.compare(part, &suffix)?);
    }
    arrays.extend(recorded.compare(io, "")?);
    Ok(Verification { weights: source, arrays })
}

/// A recording, and how to compare with it.
struct Recorded<'a> {
    folder: &'a Path,
    /// Its description.
    recording: &'a Value,
    options: &'a VerifyOptions,
    unsuitable: &'a dyn Fn(String) -> Error,
}

impl Recorded<'_> {
    /// Runs the model on `input` and compares all other arrays; in the file their names end in `suffix`.
    fn compare(&self, mut io: Weights, suffix: &str) -> Result<Vec<Comparison>, Error> {
        let Recorded { folder, recording, options, unsuitable } = *self;
        let input = io.tensors.remove("input");
        let input = input.ok_or_else(|| unsuitable(format!("there is no array named `input{suffix}`")))?;
        let [batch, channels, height, width] = input.shape[..] else {
            let found = &input.shape;
            return Err(unsuitable(format!(
                "`input{suffix}` should be [batch, channels, height, width], not {found:?}"
            )));
        };
        let labels = io.tensors.remove("labels");
        loss::canonical_gradients(&mut io)?;
        if io.tensors.is_empty() {
            return Err(unsuitable(format!("there is no array to compare with, only `input{suffix}`")));
        }
        // Opened with the size of the input, so that positions are resampled once.
        let image_size = Some([height, width]);
        let open = OpenOptions { weights: options.weights.as_deref(), image_size, ..OpenOptions::default() };
        let mut checkpoint = Checkpoint::open(folder, open)?;
        if channels != checkpoint.config.architecture.channels() {
            let expected = checkpoint.config.architecture.channels();
            return Err(unsuitable(format!("`input{suffix}` has {channels} channels, the model takes {expected}")));
        }
        let mut graph = checkpoint.config.architecture.build(batch, Mode::Inference)?;
        let targets = match &labels {
            Some(labels) => {
                let classes = checkpoint.config.architecture.classes();
                let none = |label| unsuitable(format!("the label {label} is none of {classes} classes"));
                loss::append(&mut graph, &io)?;
                Some(loss::one_hot(&labels.data, classes).map_err(none)?)
            }
            None => None,
        };
        let available: Vec<String> =
            io.tensors.keys().filter(|name| request(&mut graph, &tap(name)).is_ok()).cloned().collect();
        graph.retain_outputs(|output| available.iter().any(|name| tap(name) == output));
        let graph = eliminate_dead_code(&graph)?;
        let graph = quantised(graph, options.device.precision)?;
        let device = options.device.open()?;
        let mut executable = device.compile(&graph, &mut checkpoint.weights)?;
        executable.write("image", Elements::F32(&input.data))?;
        if let Some(targets) = targets.filter(|_| graph.inputs().any(|(_, input)| input.name == "targets")) {
            executable.write("targets", Elements::F32(&targets))?;
        }
        executable.run()?;

        let mut arrays = Vec::new();
        for (name, expected) in io.tensors {
            let tolerance = options
                .tolerance
                .unwrap_or_else(|| usual_tolerance(&format!("{name}{suffix}"), recording, options.device.precision));
            let (difference, note) = if available.contains(&name) {
                let value = graph.output(&tap(&name))?;
                let shape = graph.shape(value);
                if shape[..] == expected.shape[..] {
                    let mut found = vec![0.0; expected.data.len()];
                    executable.read(&tap(&name), &mut found)?;
                    (Some(largest_difference(&expected.data, &found)), None)
                } else {
                    (None, Some(format!("the model gives {shape}")))
                }
            } else {
                (None, Some("the model gives no such array".into()))
            };
            arrays.push(Comparison {
                name: format!("{name}{suffix}"),
                shape: expected.shape,
                difference,
                tolerance,
                note,
            });
        }
        Ok(arrays)
    }
}

/// Why recorded steps cannot be replayed.
#[cfg(feature = "train")]
enum ReplayError {
    /// The recording lacks something, or contradicts itself.
    Recording(String),
    Other(Error),
}

#[cfg(feature = "train")]
impl<E: Into<Error>> From<E> for ReplayError {
    fn from(error: E) -> Self {
        ReplayError::Other(error.into())
    }
}

#[cfg(feature = "text")]
impl Comparison {
    /// A recorded array against the model's, if it has one.
    fn new(name: String, expected: &Tensor, found: Option<&[f32]>, tolerance: f64) -> Self {
        let (difference, note) = match found {
            Some(found) if found.len() == expected.data.len() => {
                (Some(largest_difference(&expected.data, found)), None)
            }
            Some(found) => (None, Some(format!("the model gives {} elements", found.len()))),
            None => (None, Some("the model gives no such array".into())),
        };
        Comparison { name, shape: expected.shape.clone(), difference, tolerance, note }
    }
}

/// The description of a recording, meta.json or config.json; null where there is none.
fn description(folder: &Path) -> Value {
    let read = |name: &str| regular_file::read_to_string(&folder.join(name)).ok();
    let text = ["meta.json", "config.json"].into_iter().find_map(read).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// A feature map `[batch, channels, rows, columns]` in the order of this project's models, channels last.
fn channels_last(map: &Tensor) -> Tensor {
    let [batch, channels, rows, columns] = map.shape[..] else { return map.clone() };
    let pixels = rows * columns;
    let at = |i: usize| {
        let (b, pixel, c) = (i / (pixels * channels), i / channels % pixels, i % channels);
        map.data[(b * channels + c) * pixels + pixel]
    };
    Tensor { shape: vec![batch, rows, columns, channels], data: (0..map.data.len()).map(at).collect() }
}

fn request(graph: &mut Graph, name: &str) -> Result<(), GraphError> {
    graph.output(name).map(|_| ()).or_else(|_| graph.request(name))
}

/// A NaN on one side only is an infinite difference.
pub(crate) fn largest_difference(expected: &[f32], found: &[f32]) -> f64 {
    let difference = |(a, b): (&f32, &f32)| match (a.is_nan(), b.is_nan()) {
        (true, true) => 0.0,
        (false, false) if a == b => 0.0,
        (false, false) => (f64::from(*a) - f64::from(*b)).abs(),
        _ => f64::INFINITY,
    };
    expected.iter().zip(found).map(difference).fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}
