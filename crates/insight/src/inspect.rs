//! What a model learned: the figures of the paper's section 4.5 and its appendix, from any checkpoint. What weights alone
//! tell is drawn at once; what pictures tell is gathered batch by batch.

mod card;
mod distances;
mod figure;
mod filters;
mod places;
mod pooling;
mod positions;
mod receptive;
mod relative;
mod report;

pub use card::card;
pub use figure::{Figure, Numbers};
pub use report::report;

use vit_data::Image;
use vit_graph::Graph;
use vit_graph::device::Device;
use vit_graph::random::Seed;
use vit_models::weights::Weights;
use vit_models::{Architecture, Config, Mode};

use crate::InsightError;
use crate::layers::{Layer, attention_layers};
use crate::runner::Runner;
use distances::Distances;
use places::Places;
use pooling::Poolings;
use receptive::Receptive;

/// Pictures of noise that stand in where none are given.
const NOISE: usize = 8;

/// A prepared picture on its way into an inspection.
pub struct Sample<'a> {
    /// Its name.
    pub name: &'a str,
    /// What the model sees of it, before normalisation.
    pub seen: &'a Image,
    /// The model's input.
    pub input: &'a [f32],
    /// Whether figures should show it as an example; three of all are enough.
    pub shown: bool,
    /// Its class, where that is known.
    pub label: Option<usize>,
}

/// An inspection under way.
pub struct Inspector<'a> {
    config: &'a Config,
    weights: &'a Weights,
    layers: Vec<Layer>,
    attention: Option<Runner>,
    distances: Distances,
    places: Places,
    poolings: Option<Poolings>,
    receptive: Receptive,
    pictures: usize,
}

/// The figures, and what could not be drawn and why.
pub struct Inspection {
    /// What was drawn.
    pub figures: Vec<Figure>,
    /// One sentence for everything that was not.
    pub missing: Vec<String>,
}

impl<'a> Inspector<'a> {
    /// Prepares a model on a device, `batch` pictures at a time.
    pub fn new(
        config: &'a Config,
        weights: &'a Weights,
        device: &dyn Device,
        batch: usize,
    ) -> Result<Inspector<'a>, InsightError> {
        let architecture = &config.architecture;
        let mut graph = architecture.build(batch.max(1), Mode::Inference)?;
        let layers = attention_layers(architecture, &graph);
        let attention = match layers.as_slice() {
            [] => None,
            layers => Some(Runner::new(&with_weights(&mut graph, layers)?, weights, device)?),
        };
        Ok(Inspector {
            config,
            weights,
            attention,
            distances: Distances::new(&layers),
            places: Places::new(&layers),
            poolings: Poolings::new(config, weights, device, batch.max(1))?,
            receptive: Receptive::new(architecture, weights, device, batch.max(1))?,
            layers,
            pictures: 0,
        })
    }

    /// Looks at pictures, at most a batch.
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
                    self.places.add(architecture, index, layer, weights, sample)?;
                }
            }
        }
        if let Some(poolings) = &mut self.poolings {
            poolings.add(samples)?;
        }
        self.receptive.add(&inputs)?;
        self.pictures += samples.len();
        Ok(())
    }

    /// Draws everything.
    pub fn finish(mut self) -> Result<Inspection, InsightError> {
        let (architecture, weights) = (&self.config.architecture, self.weights);
        let mut found = Inspection { figures: Vec::new(), missing: Vec::new() };
        found.take(filters::figure(architecture, weights))?;
        found.take(positions::figure(architecture, weights))?;
        if let Some(figure) = relative::figure(&self.layers, weights)? {
            found.figures.push(figure);
        }
        if self.attention.is_none() {
            found.missing.push("Attention distance and maps: this model has no attention.".into());
        } else if self.pictures == 0 {
            found.missing.push("Attention distance and maps: they need pictures; give some with --data.".into());
        } else {
            found.figures.push(self.distances.figure(&self.layers, self.pictures, architecture));
            found.figures.push(self.places.figure(&self.layers, self.pictures, architecture)?);
        }
        let noise = self.pictures == 0;
        if noise {
            self.add_noise()?;
        }
        found.figures.push(self.receptive.figure(noise)?);
        match self.poolings {
            None => found.missing.push(pooling::impossible(architecture)),
            Some(_) if noise => found
                .missing
                .push("Class token against mean pooling: the comparison needs pictures; give some with --data.".into()),
            Some(poolings) => found.figures.push(poolings.figure()),
        }
        Ok(found)
    }

    /// Pictures without content, each the same every time.
    fn add_noise(&mut self) -> Result<(), InsightError> {
        let [height, width] = self.config.architecture.image_size();
        let elements = self.config.architecture.channels() * height * width;
        let uniform = |picture: usize, i: usize| {
            f64::from(Seed::new(7, picture as u64).word(0, i as u64)) / f64::from(u32::MAX) * 4.0 - 2.0
        };
        for picture in 0..NOISE {
            let input: Vec<f32> = (0..elements).map(|i| uniform(picture, i) as f32).collect();
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
            Err(InsightError::Unsuitable(reason)) => self.missing.push(reason),
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

/// Rows and columns of the last places that a model has: patches, or pixels of the last feature map.
pub(crate) fn last_grid(architecture: &Architecture) -> Result<[usize; 2], InsightError> {
    if let Architecture::Vit(vit) = architecture {
        return Ok(vit.grid());
    }
    let graph = architecture.build(1, Mode::Inference)?;
    let shape = graph.taps().get("feature_map").map(|&value| graph.shape(value).clone());
    match shape.as_deref() {
        Some([_, rows, columns, _]) => Ok([*rows, *columns]),
        _ => Err(InsightError::Unsuitable("this model has no feature map".into())),
    }
}
