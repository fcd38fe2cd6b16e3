//! A model on a device.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use vit_data::{ApplyPreprocess, Preprocess};
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Device, Executable, Parameters};
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{Graph, GraphError};
use vit_models::{Changes, Checkpoint, Config, Mode, OpenOptions, builtin, variant};

use crate::device::quantised;
use crate::finite::{blame_weights, is_finite};
use crate::{DeviceOptions, Error, Image, Precision};

/// How to open a model.
///
/// ```
/// use vit::{ModelOptions, Precision};
///
/// let options = ModelOptions::new().batch(8).precision(Precision::Int8).image_size([224, 320]);
/// assert_eq!(options.batch, 8);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ModelOptions {
    /// The most images in one run; 0 counts as 1. More images are run in several batches.
    pub batch: usize,
    /// Smaller batch sizes that are compiled as well: a run takes the smallest that holds its images.
    pub smaller_batches: Vec<usize>,
    /// Outputs and named intermediates to compute; empty for `logits`.
    pub outputs: Vec<String>,
    /// Another image size than the weights were trained for, height and width.
    pub image_size: Option<[usize; 2]>,
    /// The device and its precision.
    pub device: DeviceOptions,
    /// Initialise parameters that the weights lack, and drop tensors that the model lacks.
    pub allow_unmatched: bool,
}

impl ModelOptions {
    /// One image at a time, in f32, on the fastest device there is.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many images in one run.
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, smaller_batches: Vec::new(), ..self }
    }

    /// Several batch sizes, in any order: a run takes the smallest that holds its images, so that a single image does not
    /// cost as much as a full batch.
    pub fn batches(self, sizes: impl IntoIterator<Item = usize>) -> Self {
        let mut sizes: Vec<usize> = sizes.into_iter().map(|size| size.max(1)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        Self { batch: sizes.pop().unwrap_or(1), smaller_batches: sizes, ..self }
    }

    /// All batch sizes, ascending.
    fn batch_sizes(&self) -> Vec<usize> {
        let mut sizes = self.smaller_batches.clone();
        sizes.push(self.batch.max(1));
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Requests one more output or named intermediate, such as `blocks.5.attn` or `blocks.5.attn.weights`.
    pub fn output(mut self, name: impl Into<String>) -> Self {
        self.outputs.push(name.into());
        self
    }

    /// Another image size, height and width; position embeddings are resampled.
    pub fn image_size(self, size: [usize; 2]) -> Self {
        Self { image_size: Some(size), ..self }
    }

    /// On this device.
    pub fn device(self, device: DeviceOptions) -> Self {
        Self { device, ..self }
    }

    /// In this precision.
    pub fn precision(self, precision: Precision) -> Self {
        Self { device: self.device.precision(precision), ..self }
    }

    /// On this many threads of the CPU.
    pub fn threads(self, threads: usize) -> Self {
        Self { device: self.device.threads(threads), ..self }
    }

    /// Accepts weights that do not match the model.
    pub fn allow_unmatched(self, allow_unmatched: bool) -> Self {
        Self { allow_unmatched, ..self }
    }
}

/// A class and its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The index of the class.
    pub class: usize,
    /// Its name, or `class N` if the model does not name its classes.
    pub label: String,
    /// From a softmax over all classes, or from one sigmoid per class if images may have several labels.
    pub probability: f32,
    /// The logit that it is from.
    pub logit: f32,
}

impl Prediction {
    /// Every class of a model with its probability, the likeliest first.
    pub fn all(config: &Config, logits: &[f32]) -> Vec<Prediction> {
        Prediction::likeliest(config, logits, logits.len())
    }

    /// The likeliest classes of a model, at most `count`, the likeliest first.
    pub fn likeliest(config: &Config, logits: &[f32], count: usize) -> Vec<Prediction> {
        let probabilities = config.problem_type.probabilities(logits);
        let order = |a: &usize, b: &usize| probabilities[*b].total_cmp(&probabilities[*a]).then(a.cmp(b));
        let mut classes: Vec<usize> = (0..probabilities.len()).collect();
        if count < classes.len() {
            classes.select_nth_unstable_by(count, order);
            classes.truncate(count);
        }
        classes.sort_unstable_by(order);
        let prediction = |class: usize| Prediction {
            class,
            label: config.labels.get(class).cloned().unwrap_or_else(|| format!("class {class}")),
            probability: probabilities[class],
            logit: logits[class],
        };
        classes.into_iter().map(prediction).collect()
    }
}

/// A model with its weights on a device.
pub struct Model {
    config: Config,
    source: PathBuf,
    report: Vec<String>,
    preprocess: Preprocess,
    outputs: Vec<(String, Vec<usize>)>,
    /// By batch size, ascending; at least one.
    executables: Vec<BatchExecutable>,
    /// The index of the executable that has the input of the next run.
    staged: usize,
    /// The index of the executable that ran last.
    last: usize,
}

/// The model compiled for one batch size.
struct BatchExecutable {
    batch: usize,
    executable: Box<dyn Executable>,
}

impl Model {
    /// Opens a checkpoint folder, a weights file, or the best model of a training run; `cifar10` is the built-in model.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::open_with(path, &ModelOptions::default())
    }

    /// Opens a model with options.
    pub fn open_with(path: impl AsRef<Path>, options: &ModelOptions) -> Result<Model, Error> {
        Model::new(open_checkpoint(path.as_ref(), options)?, options.device.open()?.as_ref(), options)
    }

    /// Compiles a checkpoint for a device, which `options.device` has opened and other models may share.
    pub fn new(checkpoint: Checkpoint, device: &dyn Device, options: &ModelOptions) -> Result<Model, Error> {
        Model::compile(Cow::Owned(checkpoint), device, options)
    }

    /// As [`Model::new`], where several models are compiled from one checkpoint.
    pub fn of(checkpoint: &Checkpoint, device: &dyn Device, options: &ModelOptions) -> Result<Model, Error> {
        Model::compile(Cow::Borrowed(checkpoint), device, options)
    }

    fn compile(
        mut checkpoint: Cow<'_, Checkpoint>,
        device: &dyn Device,
        options: &ModelOptions,
    ) -> Result<Model, Error> {
        let precision = options.device.precision;
        if precision == Precision::Int8 {
            // Rounding to integers would turn NaN into a plausible value.
            checkpoint.check_finite()?;
        }
        let config = checkpoint.config.clone();
        let requested = if options.outputs.is_empty() { vec!["logits".to_string()] } else { options.outputs.clone() };
        let build = |batch: usize| {
            let mut graph = config.architecture.build(batch, Mode::Inference)?;
            for name in requested.iter().filter(|name| graph.taps().contains_key(*name)).cloned().collect::<Vec<_>>() {
                graph.request(&name)?;
            }
            Ok::<Graph, GraphError>(graph)
        };
        let sizes = options.batch_sizes();
        let (mut executables, mut outputs) = (Vec::with_capacity(sizes.len()), Vec::new());
        for (index, &batch) in sizes.iter().enumerate() {
            let mut graph = build(batch)?;
            outputs.clear();
            for name in requested.clone() {
                if name == "logits" && graph.output(&name).is_err() {
                    return Err(Error::NoHead);
                }
                let value = graph.output(&name).map_err(|_| unknown_output(&graph, &name))?;
                outputs.push((name, graph.shape(value).to_vec()));
            }
            graph.retain_outputs(|name| outputs.iter().any(|(n, _)| n == name));
            let graph = quantised(eliminate_dead_code(&graph)?, precision)?;
            let last = index + 1 == sizes.len();
            // Only the last executable may move the weights out of the checkpoint.
            let (held, compiled) = match &mut checkpoint {
                Cow::Owned(checkpoint) if sizes.len() == 1 => {
                    (checkpoint.weights.held_bytes(), device.compile(&graph, &mut checkpoint.weights))
                }
                Cow::Owned(checkpoint) if last => {
                    (checkpoint.weights.held_bytes(), device.compile_shared(&graph, &mut checkpoint.weights))
                }
                borrowed => (0, device.compile_shared(&graph, &mut &borrowed.weights)),
            };
            let executable = compiled.map_err(|error| {
                suggest_batch(error, device, batch, held, |batch| {
                    let mut graph = build(batch)?;
                    graph.retain_outputs(|name| requested.iter().any(|requested| requested == name));
                    eliminate_dead_code(&graph)
                })
            })?;
            executables.push(BatchExecutable { batch, executable });
        }
        let preprocess = config.preprocessing.clone();
        preprocess.validate()?;
        let (source, report) = (checkpoint.source.clone(), checkpoint.report.clone());
        Ok(Model { config, source, report, preprocess, outputs, executables, staged: 0, last: 0 })
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was changed to adapt the weights, one line each.
    pub fn report(&self) -> &[String] {
        &self.report
    }

    /// The most images in one run.
    pub fn batch(&self) -> usize {
        self.executables.last().map_or(1, |largest| largest.batch)
    }

    /// The outputs and their shapes for a full batch.
    pub fn outputs(&self) -> &[(String, Vec<usize>)] {
        &self.outputs
    }

    /// The preprocessing from an image to the model's input.
    pub fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    /// Bytes that the model holds while it runs.
    pub fn memory_bytes(&self) -> usize {
        self.executables.iter().map(|e| e.executable.memory_bytes()).sum()
    }

    /// The classes of an image, the likeliest first.
    pub fn classify(&mut self, image: &Image) -> Result<Vec<Prediction>, Error> {
        Ok(self.classify_batch(std::slice::from_ref(image))?.remove(0))
    }

    /// The classes of any number of images, run in batches of [`Model::batch`].
    pub fn classify_batch(&mut self, images: &[Image]) -> Result<Vec<Vec<Prediction>>, Error> {
        let mut all = Vec::with_capacity(images.len());
        for images in images.chunks(self.batch()) {
            let prepared = images.iter().map(|image| Ok(self.preprocess.apply(image)?));
            let prepared = prepared.collect::<Result<Vec<_>, Error>>()?;
            for predictions in self.classify_prepared(&prepared)? {
                all.push(predictions?);
            }
        }
        Ok(all)
    }

    /// The classes of preprocessed images, at most a batch. An inner error concerns one image, whose logits are NaN or
    /// infinite; the others are fine.
    #[allow(clippy::type_complexity)]
    pub fn classify_prepared(&mut self, images: &[Vec<f32>]) -> Result<Vec<Result<Vec<Prediction>, Error>>, Error> {
        let rows = self.finite_outputs("logits", images)?;
        Ok(rows.into_iter().map(|row| Ok(Prediction::all(&self.config, &row?))).collect())
    }

    /// Runs the model on preprocessed images, at most a batch, and gives an output for each. An inner error concerns one image,
    /// whose output is NaN or infinite; the others are fine.
    pub fn finite_outputs(
        &mut self,
        name: &str,
        images: &[impl AsRef<[f32]>],
    ) -> Result<Vec<Result<Vec<f32>, Error>>, Error> {
        self.run_prepared(images)?;
        let values = self.output(name, images.len())?;
        let each = (values.len() / images.len().max(1)).max(1);
        if !is_finite(&values) {
            let blank = vec![0.0; self.preprocess.output_len()];
            blame_weights(&self.source.clone(), name, || {
                self.run_prepared(&[blank])?;
                Ok(is_finite(&self.output(name, 1)?))
            })?;
        }
        let checked = |row: &[f32]| match is_finite(row) {
            true => Ok(row.to_vec()),
            false => Err(Error::NonFinite { output: name.into() }),
        };
        Ok(values.chunks(each).map(checked).collect())
    }

    /// Refuses a model whose outputs for a blank image are NaN or infinite, with the cause.
    pub fn check_finite(&mut self) -> Result<(), Error> {
        self.run_prepared(&[vec![0.0; self.preprocess.output_len()]])?;
        for (name, _) in &self.outputs {
            if !is_finite(&self.output(name, 1)?) {
                blame_weights(&self.source, name, || Ok(false))?;
            }
        }
        Ok(())
    }

    /// Runs the model on one image; [`Model::output`] then gives the requested outputs.
    pub fn run(&mut self, image: &Image) -> Result<(), Error> {
        let prepared = self.preprocess.apply(image)?;
        self.run_prepared(&[prepared])
    }

    /// Runs the model on preprocessed images, `[channels, height, width]` each, at most a batch.
    pub fn run_prepared(&mut self, images: &[impl AsRef<[f32]>]) -> Result<(), Error> {
        let images: Vec<&[f32]> = images.iter().map(AsRef::as_ref).collect();
        self.stage(&images)?;
        self.start()
    }

    /// Copies preprocessed images, at most a batch, to the device for the next [`Model::start`]. Where
    /// [`Model::is_async`], the run before may still be under way, and its outputs can be read afterwards.
    pub fn stage(&mut self, images: &[&[f32]]) -> Result<(), Error> {
        let Some(staged) = self.executables.iter().position(|e| e.batch >= images.len()) else {
            return Err(Error::Batch { images: images.len(), batch: self.batch() });
        };
        let expected = self.preprocess.output_len();
        if let Some(image) = images.iter().find(|image| image.len() != expected) {
            return Err(Error::Length { found: image.len(), expected });
        }
        self.executables[staged].executable.write_rows("image", images)?;
        self.staged = staged;
        Ok(())
    }

    /// Runs the model on the staged images; [`Model::output`] waits for the run where it [`is_async`](Model::is_async).
    pub fn start(&mut self) -> Result<(), Error> {
        self.last = self.staged;
        Ok(self.executables[self.last].executable.run()?)
    }

    /// Whether [`Model::start`] returns before the run is complete, so that the next images can be staged meanwhile.
    pub fn is_async(&self) -> bool {
        self.executables[self.last].executable.is_async()
    }

    /// An output of the last run, for the first `count` images.
    pub fn output(&self, name: &str, count: usize) -> Result<Vec<f32>, Error> {
        let Some((_, shape)) = self.outputs.iter().find(|(n, _)| n == name) else {
            let requested = self.outputs.iter().map(|(name, _)| name.clone()).collect();
            return Err(Error::NotRequested { name: name.into(), requested });
        };
        let BatchExecutable { batch, executable } = &self.executables[self.last];
        let each = shape.iter().product::<usize>() / self.batch();
        let mut values = vec![0.0; each * batch];
        executable.read(name, &mut values)?;
        values.truncate(each * count);
        Ok(values)
    }
}

/// Refuses what can be no model: a path where there is nothing, or the name of an architecture, which has no weights.
pub fn ensure_exists(path: &Path) -> Result<(), Error> {
    // A model in remote storage is looked for when it is opened.
    if path.exists() || builtin::is_meant(path) || vit_storage::is_url(path) {
        return Ok(());
    }
    let name = path.to_string_lossy();
    match variant(&name) {
        Some(_) => Err(Error::NoWeights { name: name.into_owned() }),
        None => Err(Error::NoModel { path: path.into() }),
    }
}

/// Opens a checkpoint and adapts it to the options.
pub fn open_checkpoint(path: &Path, options: &ModelOptions) -> Result<Checkpoint, Error> {
    ensure_exists(path)?;
    let open = OpenOptions { allow_unmatched: options.allow_unmatched, ..OpenOptions::default() };
    let mut checkpoint = Checkpoint::open(path, open)?;
    checkpoint.change(Changes { image_size: options.image_size, ..Changes::default() })?;
    Ok(checkpoint)
}

fn unknown_output(graph: &Graph, name: &str) -> Error {
    let outputs: Vec<String> = graph.outputs().iter().map(|(name, _)| name.clone()).collect();
    let intermediates = graph.taps().keys().filter(|name| !outputs.contains(name)).cloned().collect();
    Error::UnknownOutput { name: name.into(), outputs, intermediates }
}
