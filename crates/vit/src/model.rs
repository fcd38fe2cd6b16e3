//! A model that is ready to look at pictures.

use std::path::{Path, PathBuf};

use vit_data::Preprocess;
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Device, Elements, Executable, Parameters};
use vit_graph::rewrite::dead_code;
use vit_graph::{Graph, GraphError};
use vit_models::{Changes, Checkpoint, Config, Mode, OpenOptions, Preprocessing};

use crate::device::quantised;
use crate::finite::{blame_weights, is_finite};
use crate::{DeviceChoice, Error, Image, Precision, device_for};

/// How to open a model.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    /// Pictures that are run at once; 0 means 1.
    pub batch: usize,
    /// The outputs wanted; empty means `logits`. See the architecture's `build` for what there is.
    pub outputs: Vec<String>,
    /// Another image size than the weights were trained for, height and width.
    pub image_size: Option<[usize; 2]>,
    /// The processor.
    pub device: DeviceChoice,
    /// Threads of the CPU; `None` for all cores.
    pub threads: Option<usize>,
    /// How precisely to compute.
    pub precision: Precision,
    /// Start anew what the weights lack, and drop what they have too much.
    pub allow_unmatched: bool,
}

impl ModelOptions {
    /// Asks for one more output or named intermediate, such as `blocks.5.attn` or `blocks.5.attn.weights`.
    pub fn tap(mut self, name: &str) -> Self {
        self.outputs.push(name.into());
        self
    }
}

/// One class and how sure the model is of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The class's number.
    pub class: usize,
    /// Its name, or its number where names are not known.
    pub label: String,
    /// From 0 to 1. All classes together 1 where an image has one label, each by itself where it may have several.
    pub probability: f32,
}

/// A model with its weights on a device.
pub struct Model {
    config: Config,
    source: PathBuf,
    report: Vec<String>,
    preprocess: Preprocess,
    batch: usize,
    outputs: Vec<(String, Vec<usize>)>,
    executable: Box<dyn Executable>,
    input: Vec<f32>,
}

impl Model {
    /// Opens a checkpoint folder or a weights file for one picture at a time.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, Error> {
        Model::open_with(path, &ModelOptions::default())
    }

    /// Opens a checkpoint with options.
    pub fn open_with(path: impl AsRef<Path>, options: &ModelOptions) -> Result<Model, Error> {
        let open = OpenOptions { weights: None, allow_unmatched: options.allow_unmatched };
        let mut checkpoint = Checkpoint::open(path.as_ref(), open)?;
        checkpoint.change(Changes { image_size: options.image_size, ..Changes::default() })?;
        let device = device_for(options.device, options.precision, options.threads)?;
        Model::new(checkpoint, device.as_ref(), options)
    }

    /// Brings a checkpoint onto a device.
    pub fn new(checkpoint: Checkpoint, device: &dyn Device, options: &ModelOptions) -> Result<Model, Error> {
        if options.precision == Precision::Int8 {
            // Rounding to integers would turn NaN into a plausible value.
            checkpoint.check_finite()?;
        }
        let Checkpoint { config, mut weights, source, report, .. } = checkpoint;
        let wanted = if options.outputs.is_empty() { vec!["logits".to_string()] } else { options.outputs.clone() };
        let batch = options.batch.max(1);
        let build = |batch: usize| {
            let mut graph = config.architecture.build(batch, Mode::Inference)?;
            for name in wanted.iter().filter(|name| graph.taps().contains_key(*name)).cloned().collect::<Vec<_>>() {
                graph.request(&name)?;
            }
            Ok::<Graph, GraphError>(graph)
        };
        let mut graph = build(batch)?;
        let mut outputs = Vec::new();
        for name in wanted.clone() {
            if name == "logits" && graph.output(&name).is_err() {
                return Err(Error::Unsuitable(
                    "this model has no classification head; `vit embed` gives its features".into(),
                ));
            }
            let value = graph.output(&name).map_err(|_| unknown_output(&graph, &name))?;
            outputs.push((name, graph.shape(value).to_vec()));
        }
        graph.retain_outputs(|name| outputs.iter().any(|(n, _)| n == name));
        let graph = quantised(dead_code(&graph)?, options.precision)?;
        let held = weights.held_bytes();
        let executable = device.compile(&graph, &mut weights).map_err(|error| {
            suggest_batch(error, device, batch, held, |batch| {
                let mut graph = build(batch)?;
                graph.retain_outputs(|name| wanted.iter().any(|wanted| wanted == name));
                dead_code(&graph)
            })
        })?;
        let preprocess = preprocess(&config.preprocessing)?;
        let input = vec![0.0; batch * preprocess.output_len()];
        Ok(Model { config, source, report, preprocess, batch, outputs, executable, input })
    }

    /// What the model is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was changed about the weights to make them fit, one line each.
    pub fn report(&self) -> &[String] {
        &self.report
    }

    /// How many pictures are run at once.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The outputs and their shapes for a full batch.
    pub fn outputs(&self) -> &[(String, Vec<usize>)] {
        &self.outputs
    }

    /// How pictures become the model's input.
    pub fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    /// Bytes that the model holds while it runs.
    pub fn memory_bytes(&self) -> usize {
        self.executable.memory_bytes() + 4 * self.input.len()
    }

    /// The classes of a picture, the likeliest first.
    pub fn classify(&mut self, image: &Image) -> Result<Vec<Prediction>, Error> {
        Ok(self.classify_batch(std::slice::from_ref(image))?.remove(0))
    }

    /// The classes of several pictures, at most a batch.
    pub fn classify_batch(&mut self, images: &[Image]) -> Result<Vec<Vec<Prediction>>, Error> {
        let prepared = images.iter().map(|i| Ok(self.preprocess.apply(i)?)).collect::<Result<Vec<_>, Error>>()?;
        self.classify_prepared(&prepared)?.into_iter().collect()
    }

    /// The classes of several preprocessed pictures, at most a batch. An error inside is that of one image, whose logits
    /// are NaN or infinite; the others are fine.
    #[allow(clippy::type_complexity)]
    pub fn classify_prepared(&mut self, images: &[Vec<f32>]) -> Result<Vec<Result<Vec<Prediction>, Error>>, Error> {
        let rows = self.finite_outputs("logits", images)?;
        Ok(rows.into_iter().map(|row| Ok(self.predictions(&row?))).collect())
    }

    /// Runs the model on preprocessed images and gives one output for each, where all its elements are finite.
    pub(crate) fn finite_outputs(
        &mut self,
        name: &str,
        images: &[Vec<f32>],
    ) -> Result<Vec<Result<Vec<f32>, Error>>, Error> {
        self.run_prepared(images)?;
        let values = self.output(name, images.len())?;
        let each = (values.len() / images.len().max(1)).max(1);
        if !is_finite(&values) {
            let blank = vec![0.0; self.input.len() / self.batch];
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

    /// Runs the model on one picture; [`Model::output`] then gives what was asked for.
    pub fn run(&mut self, image: &Image) -> Result<(), Error> {
        let prepared = self.preprocess.apply(image)?;
        self.run_prepared(&[prepared])
    }

    /// Runs the model on preprocessed pictures, `[channels, height, width]` each, at most a batch.
    pub fn run_prepared(&mut self, images: &[Vec<f32>]) -> Result<(), Error> {
        if images.len() > self.batch {
            return Err(Error::Unsuitable(format!(
                "{} pictures do not fit into a batch of {}",
                images.len(),
                self.batch
            )));
        }
        let each = self.input.len() / self.batch;
        for (place, image) in self.input.chunks_mut(each).zip(images) {
            if image.len() != each {
                let size = self.config.architecture.image_size();
                return Err(Error::Unsuitable(format!(
                    "a picture of {} values is not one of {size:?} pixels",
                    image.len()
                )));
            }
            place.copy_from_slice(image);
        }
        // What an earlier, fuller batch left behind would only cost accuracy in nothing, but zeros cost nothing either.
        self.input[images.len() * each..].fill(0.0);
        self.executable.write("image", Elements::F32(&self.input))?;
        self.executable.run()?;
        Ok(())
    }

    /// An output of the last run, for the first `count` pictures.
    pub fn output(&self, name: &str, count: usize) -> Result<Vec<f32>, Error> {
        let Some((_, shape)) = self.outputs.iter().find(|(n, _)| n == name) else {
            let known: Vec<&str> = self.outputs.iter().map(|(n, _)| n.as_str()).collect();
            return Err(Error::Unsuitable(format!(
                "the output `{name}` was not asked for; there are {}",
                known.join(", ")
            )));
        };
        let mut values = vec![0.0; shape.iter().product()];
        self.executable.read(name, &mut values)?;
        values.truncate(values.len() / self.batch * count);
        Ok(values)
    }

    fn predictions(&self, logits: &[f32]) -> Vec<Prediction> {
        let probabilities = self.config.problem_type.probabilities(logits).into_iter().enumerate();
        let mut all: Vec<Prediction> = probabilities
            .map(|(class, probability)| Prediction {
                class,
                label: self.config.labels.get(class).cloned().unwrap_or_else(|| format!("class {class}")),
                probability,
            })
            .collect();
        all.sort_by(|a, b| b.probability.total_cmp(&a.probability).then(a.class.cmp(&b.class)));
        all
    }
}

/// Says what could have been asked for.
fn unknown_output(graph: &Graph, name: &str) -> Error {
    let outputs: Vec<&str> = graph.outputs().iter().map(|(n, _)| n.as_str()).collect();
    let taps: Vec<&str> = graph.taps().keys().map(String::as_str).filter(|n| !outputs.contains(n)).collect();
    Error::Unsuitable(format!(
        "the model has no output `{name}`; it has {}, and on the way there {}",
        outputs.join(", "),
        taps.join(", ")
    ))
}

/// The transform that a model's preprocessing describes.
pub fn preprocess(p: &Preprocessing) -> Result<Preprocess, Error> {
    vit_train::preprocess(p).map_err(|error| Error::Unsuitable(error.to_string()))
}
