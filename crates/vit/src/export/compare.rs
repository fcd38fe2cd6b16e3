//! An exported model in other runtimes, by way of their Python packages, against the model here.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use vit_data::Preprocess;
use vit_graph::device::{Device, Elements};
use vit_graph::rewrite::eliminate_dead_code;
use vit_models::clip::{PairExtents, TextPooling};
use vit_models::{Checkpoint, Mode};
use vit_system::npy;

use super::{ExportOptions, ExportTower as Tower, Exported};
use crate::verify::largest_difference;
use crate::{DeviceOptions, Error, Model, ModelOptions};

/// Runs the file in every runtime that Python can import.
const SCRIPT: &str = include_str!("run.py");

/// The batch sizes of a comparison.
const BATCHES: [usize; 2] = [1, 3];

/// The images of a comparison; the texts of a text tower are always random ids.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckInput {
    /// Noise, different in each image.
    Noise,
    /// One prepared image `[channels, height, width]`, as often as the batch is large.
    Prepared(Vec<f32>),
}

/// One runtime against the model here, for one batch size.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeResult {
    /// The runtime: `ONNX Runtime`.
    pub runtime: String,
    /// Its version.
    pub version: String,
    /// The batch size.
    pub batch: usize,
    /// The largest absolute difference relative to the largest absolute value, or why the runtime gave no output.
    pub difference: Result<f64, String>,
}

/// Runs an exported file in the runtimes that `python3` can import, with batches of different sizes, and compares its output
/// with that of the checkpoint that it is from.
pub fn compare_runtimes(
    checkpoint: &Checkpoint,
    file: &Path,
    exported: &Exported,
    options: ExportOptions,
    input: &CheckInput,
) -> Result<Vec<RuntimeResult>, Error> {
    let folder = tempfile::tempdir().map_err(|error| Error::file(std::env::temp_dir(), error))?;
    let device = DeviceOptions::new().open()?;
    let mut expected = Vec::new();
    for batch in BATCHES {
        let case = match options.tower {
            Tower::Image => images(checkpoint, device.as_ref(), exported.source, batch, options.preprocess, input)?,
            Tower::Text => texts(checkpoint, device.as_ref(), exported.source, batch)?,
        };
        let path = folder.path().join(format!("input_{batch}.npy"));
        let written = || {
            let mut file = Vec::new();
            npy::start(&mut file, case.element, &case.shape)?;
            file.extend_from_slice(&case.input);
            std::fs::write(&path, file)
        };
        written().map_err(|error| Error::file(&path, error))?;
        expected.push(case.output);
    }
    let lines = run(file, folder.path())?;
    if lines.is_empty() {
        return Err(Error::NoRuntime);
    }
    let result = |line: &Value| {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_string();
        let batch = line["batch"].as_u64().unwrap_or_default() as usize;
        let ours = BATCHES.iter().position(|&size| size == batch).map(|at| expected[at].as_slice());
        let difference = match line["output"].as_str() {
            Some(name) => relative_difference(&folder.path().join(name), ours.unwrap_or_default()),
            None => Err(text("error")),
        };
        RuntimeResult { runtime: text("runtime"), version: text("version"), batch, difference }
    };
    Ok(lines.iter().map(result).collect())
}

/// A batch of the file's input, as NumPy stores it, and the output of the model here.
struct Case {
    shape: Vec<usize>,
    /// NumPy's name of the element type.
    element: &'static str,
    input: Vec<u8>,
    output: Vec<f32>,
}

fn images(
    checkpoint: &Checkpoint,
    device: &dyn Device,
    output: &str,
    batch: usize,
    as_bytes: bool,
    input: &CheckInput,
) -> Result<Case, Error> {
    let model = &checkpoint.config.architecture;
    let ([height, width], channels) = (model.image_size(), model.channels());
    let noise = |image: usize| {
        let mut noise = vec![0.0; channels * height * width];
        vit_graph::Init::Normal { std: 1.0 }.fill(image as u64, "image", &mut noise);
        noise
    };
    let mut prepared: Vec<Vec<f32>> = match input {
        CheckInput::Noise => (0..batch).map(noise).collect(),
        CheckInput::Prepared(image) => vec![image.clone(); batch],
    };
    let (shape, element, mut bytes) = match as_bytes {
        false => (vec![batch, channels, height, width], "<f4", Vec::new()),
        true => (vec![batch, height, width, channels], "|u1", Vec::new()),
    };
    for image in &mut prepared {
        if as_bytes {
            bytes.extend(nearest_bytes(image, &checkpoint.config.preprocessing));
        } else {
            image.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        }
    }
    let options = ModelOptions::new().batch(batch).output(output);
    let mut model = Model::of(checkpoint, device, &options)?;
    model.run_prepared(&prepared)?;
    Ok(Case { shape, element, input: bytes, output: model.output(output, batch)? })
}

/// The bytes `[height, width, channels]` that are nearest to a prepared image, which becomes what they are prepared.
fn nearest_bytes(image: &mut [f32], preprocess: &Preprocess) -> Vec<u8> {
    let channels = preprocess.channels();
    let pixels = image.len() / channels;
    let mut bytes = vec![0; image.len()];
    for (i, value) in image.iter_mut().enumerate() {
        let (channel, pixel) = (i / pixels, i % pixels);
        let (mean, std) = (preprocess.mean[channel], preprocess.std[channel]);
        let byte = (255.0 * (*value * std + mean)).round().clamp(0.0, 255.0);
        *value = (byte / 255.0 - mean) / std;
        bytes[pixel * channels + channel] = byte as u8;
    }
    bytes
}

fn texts(checkpoint: &Checkpoint, device: &dyn Device, output: &str, batch: usize) -> Result<Case, Error> {
    let clip = checkpoint.image_text().ok_or(Error::NoTextTower)?;
    let (context, vocabulary) = (clip.text.context, clip.text.vocabulary);
    let mut graph = clip.build_pairs(PairExtents { images: 1, texts: batch, masked: false }, Mode::Inference)?;
    graph.retain_outputs(|name| name == output);
    let graph = eliminate_dead_code(&graph)?;
    let mut executable = device.compile(&graph, &mut &checkpoint.weights)?;
    let mut noise = vec![0.0; batch * context];
    vit_graph::Init::Uniform { bound: 1.0 }.fill(0, "ids", &mut noise);
    let id = |value: &f32| ((0.5 * value.abs() * vocabulary as f32) as usize).min(vocabulary - 1) as i32;
    let mut ids: Vec<i32> = noise.iter().map(id).collect();
    // The end of each text, after which it is padded.
    for (text, ids) in ids.chunks_mut(context).enumerate() {
        let end = context.saturating_sub(2 + text);
        ids[end..].fill(match clip.text.pooling {
            TextPooling::Id(id) => id,
            _ => (vocabulary - 1) as i32,
        });
    }
    executable.write("ids", Elements::I32(&ids))?;
    if clip.text.pooling.reads_ids() {
        executable.write("ends", Elements::I32(&clip.text.ends(&ids)))?;
    }
    executable.run()?;
    let mut values = vec![0.0; batch * clip.text.embed_dim];
    executable.read(output, &mut values)?;
    let input = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
    Ok(Case { shape: vec![batch, context], element: "<i8", input, output: values })
}

/// Runs the script; one JSON object for each runtime and batch.
fn run(file: &Path, folder: &Path) -> Result<Vec<Value>, Error> {
    let python = if cfg!(windows) { "python" } else { "python3" };
    let batches = BATCHES.map(|batch| batch.to_string());
    let output = Command::new(python).args(["-c", SCRIPT]).arg(file).arg(folder).args(batches).output();
    // Without Python there is no runtime either.
    let Ok(output) = output else { return Ok(Vec::new()) };
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or("it stopped without a message");
        return Err(Error::file(file, format!("the runtimes could not be compared, {python} says: {last}")));
    }
    Ok(lines)
}

fn relative_difference(path: &Path, expected: &[f32]) -> Result<f64, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let (_, data) = npy::parse(&bytes)?;
    let found: Vec<f32> = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    if found.len() != expected.len() {
        return Err(format!("it gives {} elements instead of {}", found.len(), expected.len()));
    }
    let largest = expected.iter().fold(0f64, |largest, &v| largest.max(f64::from(v).abs()));
    Ok(largest_difference(expected, &found) / largest.max(f64::from(f32::MIN_POSITIVE)))
}
