//! What a model looks at, in one picture after another.

use std::path::PathBuf;

use vit_data::Preprocess;
use vit_insight::{ExplainOptions, Explainer, Explanation};
use vit_models::{Checkpoint, Config};

use crate::finite::{blame_weights, is_finite};
use crate::model::preprocess;
use crate::{Error, Image, ModelOptions, Precision, device_for};

/// A model that explains what it sees.
///
/// ```
/// use vit::insight::ExplainOptions;
/// use vit::models::{Checkpoint, OpenOptions};
/// use vit::{Explain, Image, ModelOptions};
///
/// let checkpoint = Checkpoint::open("cifar10".as_ref(), OpenOptions::default())?;
/// let mut model = Explain::new(checkpoint, &ExplainOptions::default(), &ModelOptions::default())?;
/// let explanation = model.explain(&Image::open("../../examples/images/dog.jpg")?)?;
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
    /// Prepares a checkpoint. Device, threads, precision and batch are the model's options; the outputs are not used.
    pub fn new(checkpoint: Checkpoint, options: &ExplainOptions, model: &ModelOptions) -> Result<Explain, Error> {
        if model.precision == Precision::Int8 {
            return Err(Error::Unsuitable(
                "explanations need gradients and attention in full precision; leave out --precision int8".into(),
            ));
        }
        let device = device_for(model.device, model.precision, model.threads)?;
        let Checkpoint { config, weights, source, report, .. } = checkpoint;
        let options = ExplainOptions { batch: model.batch, ..options.clone() };
        let explainer = Explainer::new(&config, &weights, device.as_ref(), &options)?;
        Ok(Explain { preprocess: preprocess(&config.preprocessing)?, explainer, config, source, report })
    }

    /// What the model is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What was changed about the weights to make them fit, one line each.
    pub fn report(&self) -> &[String] {
        &self.report
    }

    /// How pictures become the model's input.
    pub fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    /// How many pictures are run at once.
    pub fn batch(&self) -> usize {
        self.explainer.batch()
    }

    /// What the first, second, … map of every explanation is, in a few words.
    pub fn maps(&self) -> Vec<String> {
        self.explainer.maps(|class| self.label(class))
    }

    /// The name of a class, or its number where names are not known.
    pub fn label(&self, class: usize) -> String {
        self.config.labels.get(class).cloned().unwrap_or_else(|| format!("class {class}"))
    }

    /// Explains one picture.
    pub fn explain(&mut self, image: &Image) -> Result<Explanation, Error> {
        let prepared = self.preprocess.apply(image)?;
        self.explain_prepared(&[&prepared])?.remove(0)
    }

    /// Explains preprocessed pictures, at most a batch. An error inside is that of one image, whose logits or maps are NaN
    /// or infinite; the others are fine.
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

/// What of an explanation is NaN or infinite.
fn non_finite(explanation: &Explanation) -> Option<&'static str> {
    match explanation {
        _ if !is_finite(&explanation.logits) => Some("logits"),
        _ if explanation.maps.iter().any(|(_, map)| !is_finite(map.values())) => Some("maps"),
        _ => None,
    }
}
