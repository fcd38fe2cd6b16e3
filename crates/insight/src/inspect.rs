//! What a model learned: the figures of the paper's section 4.5 and its appendix, from any checkpoint. Some figures need the
//! weights alone; the others accumulate statistics over batches of images.

mod attention_maps;
mod card;
mod distances;
mod figure;
mod filters;
mod pooling;
mod positions;
mod receptive;
mod reconstruction;
mod relative;
mod report;
mod rotary;

pub use card::card;
pub use figure::{Figure, FigureData};
pub use report::report;

use std::collections::BTreeMap;

use vit_data::Image;
use vit_graph::Graph;
use vit_graph::device::Device;
use vit_graph::random::Seed;
use vit_graph::reference::Array;
use vit_models::weights::Weights;
use vit_models::{Architecture, Config, Mode};

use crate::InsightError;
use crate::layers::{Layer, attention_layers};
use crate::runner::Runner;
use attention_maps::AttentionMaps;
use distances::HeadDistances;
use pooling::PoolingComparison;
use receptive::ReceptiveFields;
use reconstruction::Reconstructions;

/// Number of noise images for the receptive field when no images are given.
const NOISE: usize = 8;

/// A preprocessed image.
pub struct Sample<'a> {
    /// Its name.
    pub name: &'a str,
    /// What the model sees of it, before normalisation.
    pub seen: &'a Image,
    /// The model's input.
    pub input: &'a [f32],
    /// Whether figures show it as an example; three are enough.
    pub shown: bool,
    /// Its class, if known.
    pub label: Option<usize>,
}

/// Collects what an [`Inspection`] shows, batch by batch.
pub struct Inspector<'a> {
    config: &'a Config,
    weights: &'a Weights,
    layers: Vec<Layer>,
    /// Biases of attention by relative position.
    bias_tables: BTreeMap<String, Array>,
    attention: Option<Runner>,
    distances: HeadDistances,
    attention_maps: AttentionMaps,
    poolings: Option<PoolingComparison>,
    receptive: ReceptiveFields,
    reconstructions: Option<Reconstructions>,
    images: usize,
}

/// The figures, and the reasons for those that could not be drawn.
pub struct Inspection {
    /// The figures.
    pub figures: Vec<Figure>,
    /// Figures that could not be drawn.
    pub missing: Vec<Missing>,
}

/// A figure that could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Which one and why, in a sentence.
    pub reason: String,
    /// Whether giving images would help.
    pub needs_images: bool,
}

impl Missing {
    fn new(reason: impl Into<String>) -> Missing {
        Missing { reason: reason.into(), needs_images: false }
    }

    fn without_images(figure: &str) -> Missing {
        Missing { reason: format!("{figure}: it needs images, and none were given."), needs_images: true }
    }
}

impl<'a> Inspector<'a> {
    /// Prepares a model on a device, `batch` images at a time.
    pub fn new(
        config: &'a Config,
        weights: &'a Weights,
        device: &dyn Device,
        batch: usize,
    ) -> Result<Inspector<'a>, InsightError> {
        let architecture = &config.architecture;
        let mut graph = architecture.build(batch.max(1), Mode::Inference)?;
        let layers = attention_layers(architecture, &graph);
        let bias_tables = relative::bias_tables(&graph, weights)?;
        let attention = match layers.as_slice() {
            [] => None,
            layers => Some(Runner::new(&with_weights(&mut graph, layers)?, weights, device)?),
        };
        Ok(Inspector {
            config,
            weights,
            attention,
            distances: HeadDistances::new(&layers),
            attention_maps: AttentionMaps::new(&layers),
            poolings: PoolingComparison::new(config, weights, device, batch.max(1))?,
            receptive: ReceptiveFields::new(architecture, weights, device, batch.max(1))?,
            reconstructions: Reconstructions::new(config, weights, device)?,
            layers,
            bias_tables,
            images: 0,
        })
    }

    /// Adds at most one batch of images.
    pub fn add(&mut self, samples: &[Sample]) -> Result<(), InsightError> {
        let architecture = &self.config.architecture;
        let inputs: Vec<&[f32]> = samples.iter().map(|sample| sample.input).collect();
        if let Some(runner) = &mut self.attention {
            runner.run(inputs.iter().copied(), &[])?;
            for (index, layer) in self.layers.iter().enumerate() {
                let weights = runner.read(&format!("{}.weights", layer.name))?;
                let each = weights.len() / runner.batch();
                for (sample, weights) in samples.iter().zip(weights.chunks(each)) {
                    self.distances.add(architecture, index, layer, weights)?;
                    self.attention_maps.add(architecture, index, layer, weights, sample)?;
                }
            }
        }
        if let Some(poolings) = &mut self.poolings {
            poolings.add(samples)?;
        }
        if let Some(reconstructions) = &mut self.reconstructions {
            samples.iter().try_for_each(|sample| reconstructions.add(sample))?;
        }
        self.receptive.add(&inputs)?;
        self.images += samples.len();
        Ok(())
    }

    /// Draws everything.
    pub fn finish(mut self) -> Result<Inspection, InsightError> {
        let (architecture, weights) = (&self.config.architecture, self.weights);
        let mut found = Inspection { figures: Vec::new(), missing: Vec::new() };
        found.take(filters::figure(architecture, weights))?;
        found.take(positions::figure(architecture, weights))?;
        match rotary::figure(architecture, weights) {
            Ok(figure) => found.figures.extend(figure),
            Err(InsightError::Unsuitable(reason)) => found.missing.push(Missing::new(reason)),
            Err(other) => return Err(other),
        }
        found.figures.extend(relative::figure(&self.layers, &self.bias_tables));
        if self.attention.is_none() {
            found.missing.push(Missing::new("Attention distance and maps: this model has no attention."));
        } else if self.images == 0 {
            found.missing.push(Missing::without_images("Attention distance and maps"));
        } else {
            found.figures.push(self.distances.figure(&self.layers, self.images, architecture));
            found.figures.push(self.attention_maps.figure(&self.layers, self.images, architecture)?);
        }
        let noise = self.images == 0;
        if noise {
            self.add_noise()?;
        }
        found.figures.push(self.receptive.figure(noise)?);
        if let Some(reconstructions) = &self.reconstructions {
            match reconstructions.figure() {
                Some(figure) => found.figures.push(figure),
                None => found.missing.push(Missing::without_images("Reconstruction of masked patches")),
            }
        }
        match self.poolings {
            None => found.missing.push(Missing::new(pooling::impossible(architecture))),
            Some(_) if noise => found.missing.push(Missing::without_images("Class token against mean pooling")),
            Some(poolings) => found.figures.push(poolings.figure()),
        }
        Ok(found)
    }

    /// Noise images from a fixed seed.
    fn add_noise(&mut self) -> Result<(), InsightError> {
        let [height, width] = self.config.architecture.image_size();
        let elements = self.config.architecture.channels() * height * width;
        let uniform = |image: usize, i: usize| {
            f64::from(Seed::new(7, image as u64).word(0, i as u64)) / f64::from(u32::MAX) * 4.0 - 2.0
        };
        for image in 0..NOISE {
            let input: Vec<f32> = (0..elements).map(|i| uniform(image, i) as f32).collect();
            self.receptive.add(&[&input])?;
        }
        Ok(())
    }
}

impl Inspection {
    /// Keeps a figure, or the reason why there is none.
    fn take(&mut self, figure: Result<Figure, InsightError>) -> Result<(), InsightError> {
        match figure {
            Ok(figure) => self.figures.push(figure),
            Err(InsightError::Unsuitable(reason)) => self.missing.push(Missing::new(reason)),
            Err(other) => return Err(other),
        }
        Ok(())
    }
}

/// The graph with every layer's attention weights as its only outputs.
fn with_weights(graph: &mut Graph, layers: &[Layer]) -> Result<Graph, InsightError> {
    graph.retain_outputs(|_| false);
    for layer in layers {
        graph.request(&format!("{}.weights", layer.name))?;
    }
    Ok(graph.clone())
}

/// Rows and columns of the last feature map; of a Vision Transformer, of its patches.
pub(crate) fn last_grid(architecture: &Architecture) -> Result<[usize; 2], InsightError> {
    if let Some(tokens) = architecture.tokens() {
        return Ok(tokens.grid);
    }
    let graph = architecture.build(1, Mode::Inference)?;
    let shape = graph.taps().get("feature_map").map(|&value| graph.shape(value).clone());
    match shape.as_deref() {
        Some([_, rows, columns, _]) => Ok([*rows, *columns]),
        _ => Err(InsightError::Unsuitable("this model has no feature map".into())),
    }
}
