//! Explanations of a model's answers: maps over images.

use std::path::{Path, PathBuf};

use vit_data::{ApplyPreprocess, Preprocess};
use vit_graph::device::Device;
pub use vit_insight::{
    ExplainOptions, Explanation, InsightError, Map, Method, Subject, explanation_sheet, side_by_side_png,
    suitable_methods,
};
use vit_insight::{Explainer, attention_layers};
use vit_models::{Architecture, Checkpoint, Config, Mode};

use crate::finite::{blame_weights, is_finite};
use crate::model::open_checkpoint;
use crate::{Error, Image, ModelOptions, Precision};

/// A model that explains its answers by maps over the image.
///
/// ```
/// use vit::explain::ExplainOptions;
/// use vit::{Explain, Image, ModelOptions};
///
/// let mut model = Explain::open("cifar10", &ExplainOptions::default(), &ModelOptions::new())?;
/// let explanation = model.explain(&Image::from_rgb(32, 32, vec![127; 3 * 32 * 32]).unwrap())?;
/// let (subject, map) = &explanation.maps[0];
/// assert_eq!((subject.to_string().as_str(), map.grid()), ("attention rollout", [8, 8]));
/// # Ok::<(), vit::Error>(())
/// ```
pub struct Explain {
    config: Config,
    source: PathBuf,
    report: Vec<String>,
    preprocess: Preprocess,
    explainer: Explainer,
}

impl Explain {
    /// Opens a model as [`Model::open_with`](crate::Model::open_with) does.
    pub fn open(path: impl AsRef<Path>, options: &ExplainOptions, model: &ModelOptions) -> Result<Explain, Error> {
        Self::new(open_checkpoint(path.as_ref(), model)?.into_image_tower()?, options, model)
    }

    /// Prepares a checkpoint, on the device and with the batch of `model`; its other options have no effect.
    pub fn new(checkpoint: Checkpoint, options: &ExplainOptions, model: &ModelOptions) -> Result<Explain, Error> {
        Self::of(&checkpoint, model.device.open()?.as_ref(), options, model)
    }

    /// As [`Explain::new`], on a device that other models may share, for a checkpoint from which several models are compiled.
    pub fn of(
        checkpoint: &Checkpoint,
        device: &dyn Device,
        options: &ExplainOptions,
        model: &ModelOptions,
    ) -> Result<Explain, Error> {
        if model.device.precision == Precision::Int8 {
            let reason = "has no gradients, which explanations need".into();
            return Err(Error::Precision { precision: Precision::Int8, reason });
        }
        let Checkpoint { config, weights, source, report, .. } = checkpoint;
        let options = ExplainOptions { batch: model.batch, ..options.clone() };
        let explainer = Explainer::new(config, weights, device, &options)?;
        config.preprocessing.validate()?;
        let (config, source, report) = (config.clone(), source.clone(), report.clone());
        Ok(Explain { preprocess: config.preprocessing.clone(), explainer, config, source, report })
    }

    /// Chooses other classes: these, or the likeliest `top` if there are none.
    pub fn choose_classes(&mut self, top: usize, classes: &[usize]) -> Result<(), Error> {
        Ok(self.explainer.choose_classes(top, classes)?)
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was changed to adapt the weights, one line each.
    pub fn report(&self) -> &[String] {
        &self.report
    }

    /// The preprocessing from an image to the model's input.
    pub fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    /// Images in one run.
    pub fn batch(&self) -> usize {
        self.explainer.batch()
    }

    /// The titles of every explanation's maps, in order.
    pub fn maps(&self) -> Vec<String> {
        self.explainer.maps(|class| self.label(class))
    }

    /// The name of a class, or `class N` if the model does not name its classes.
    pub fn label(&self, class: usize) -> String {
        self.config.labels.get(class).cloned().unwrap_or_else(|| format!("class {class}"))
    }

    /// The name of every map of an explanation, and the probability of its class.
    pub fn captions(&self, explanation: &Explanation) -> Vec<(String, String)> {
        let probability = |class: usize| explanation.probabilities.get(class).unwrap_or(&0.0);
        let caption = |(subject, _): &(Subject, Map)| match subject {
            Subject::Class(class) => (self.label(*class), format!("{:.1} %", 100.0 * probability(*class))),
            other => (other.to_string(), String::new()),
        };
        explanation.maps.iter().map(caption).collect()
    }

    /// Explains one image.
    pub fn explain(&mut self, image: &Image) -> Result<Explanation, Error> {
        let prepared = self.preprocess.apply(image)?;
        self.explain_prepared(&[&prepared])?.remove(0)
    }

    /// Explains preprocessed images, at most a batch. An inner error concerns one image, whose logits or maps are NaN or
    /// infinite; the others are fine.
    pub fn explain_prepared(&mut self, images: &[&[f32]]) -> Result<Vec<Result<Explanation, Error>>, Error> {
        let found = self.explainer.explain(images)?;
        if let Some(output) = found.iter().find_map(non_finite) {
            let blank = vec![0.0; self.preprocess.output_len()];
            let explainer = &mut self.explainer;
            let blank_is_finite = || Ok(explainer.explain(&[&blank])?.iter().all(|found| non_finite(found).is_none()));
            blame_weights(&self.source, output, blank_is_finite)?;
        }
        let checked = |explanation: Explanation| match non_finite(&explanation) {
            None => Ok(explanation),
            Some(output) => Err(Error::NonFinite { output: output.into() }),
        };
        Ok(found.into_iter().map(checked).collect())
    }
}

/// The part of an explanation that is NaN or infinite.
fn non_finite(explanation: &Explanation) -> Option<&'static str> {
    match explanation {
        _ if !is_finite(&explanation.logits) => Some("logits"),
        _ if explanation.maps.iter().any(|(_, map)| !is_finite(map.values())) => Some("maps"),
        _ => None,
    }
}

/// The number of heads in every attention layer of a model, in order.
pub fn attention_heads(architecture: &Architecture) -> Result<Vec<usize>, Error> {
    let graph = architecture.build(1, Mode::Inference)?;
    Ok(attention_layers(architecture, &graph).iter().map(|layer| layer.heads).collect())
}
