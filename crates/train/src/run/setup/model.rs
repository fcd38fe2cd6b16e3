//! The model of a run: by name, or a default for the size of the images.

use std::borrow::Cow;
use std::path::Path;

use vit_data::{Preprocess, Samples};
use vit_graph::device::{Initial, Parameters};
use vit_models::vit::{Pretraining, Vit};
use vit_models::weights::{Tensor, Weights};
use vit_models::{Architecture, Config, ModelError, Variant};

use crate::error::TrainError;
use crate::recipe::{Initialisation, Recipe};
use crate::step::StepOptions;
use crate::step::objective::pretraining::Colours;

/// The model that a run trains.
pub enum ModelChoice<'a> {
    /// A small one that suits the size of the images.
    Usual,
    /// A named variant, from scratch.
    Named(&'a str),
    /// A checkpoint folder or weights file, to be fine-tuned; of an image-text model the image tower.
    Checkpoint(&'a Path),
    /// The checkpoint of an image-text model, both of whose towers are fine-tuned on pairs.
    ImageText(&'a Path),
}

/// The weights that training starts from.
pub enum FirstWeights {
    /// The model's initialisers.
    Random,
    /// A checkpoint's, under canonical names, adapted to the model.
    Given(Weights),
}

/// The weights of a model that starts from scratch.
pub(super) fn first_weights(architecture: &Architecture, recipe: &Recipe) -> Result<FirstWeights, TrainError> {
    let Some(vit) = architecture.downcast_ref::<Vit>() else { return Ok(FirstWeights::Random) };
    let mut weights = match recipe.model.start {
        Initialisation::Mimetic => vit.mimetic(recipe.seed)?,
        Initialisation::Random if vit.pretraining.is_none() => return Ok(FirstWeights::Random),
        Initialisation::Random => Weights::default(),
    };
    if let Some(pretraining) = &vit.pretraining {
        let mut initial = Initial { seed: recipe.seed };
        for parameter in architecture.parameters()? {
            let data = initial.take(&parameter).map(Cow::into_owned).unwrap_or_default();
            weights.tensors.entry(parameter.name).or_insert(Tensor { shape: parameter.shape.to_vec(), data });
        }
        if let Pretraining::MaskedAutoencoder(mae) = pretraining {
            mae.write_positions(vit, &mut weights);
        }
    }
    Ok(FirstWeights::Given(weights))
}

/// Makes a model one that is pre-trained without labels.
pub(crate) fn add_pretraining(config: &mut Config, recipe: &Recipe) -> Result<(), TrainError> {
    let kind = config.architecture.kind();
    let Some(vit) = config.architecture.downcast_mut::<Vit>() else {
        return Err(TrainError::Unsuitable(format!(
            "pre-training without labels is not for this model ({kind}); choose a Vision Transformer"
        )));
    };
    vit.classes = 0;
    vit.pretraining = recipe.pretraining.layers(vit);
    config.architecture.contradiction().map_or(Ok(()), |reason| Err(TrainError::Unsuitable(reason)))
}

impl Recipe {
    /// The step of this recipe in one process; a model that is pre-trained without labels gets the layers for it.
    pub fn step_of(&self, config: &mut Config) -> Result<StepOptions, TrainError> {
        self.configure(&mut config.architecture)?;
        if self.is_pretraining() {
            add_pretraining(config, self)?;
        }
        Ok(self.step_for(config))
    }

    /// The step for a model that is ready for it.
    pub(crate) fn step_for(&self, config: &Config) -> StepOptions {
        let Preprocess { mean, std, .. } = config.preprocessing.clone();
        StepOptions {
            colours: Colours { mean, std },
            crops: config.architecture.downcast_ref().and_then(|vit| self.crops(vit)),
            ..self.step_options()
        }
    }
}

/// A model by its name.
pub(crate) fn named_variant(name: &str) -> Result<Variant, TrainError> {
    let unknown = || ModelError::UnknownModel { name: name.into(), suggestions: vit_models::suggestions(name) };
    Ok(vit_models::variant(name).ok_or_else(unknown)?)
}

pub(super) fn named(name: &str, recipe: &Recipe) -> Result<Config, TrainError> {
    let mut variant = named_variant(name)?;
    recipe.configure(&mut variant.architecture)?;
    Ok(variant.into())
}

/// Images with a side below this are not centre-cropped.
pub(super) const SMALL: usize = 128;

/// The default model for images whose shorter side is below a limit. All have 64 patches, which a laptop trains in
/// minutes, and average pooling, which learns faster than a class token in short training.
const USUAL: [(usize, &str); 3] =
    [(48, "vit_pico_patch4_gap_32"), (96, "vit_pico_patch8_gap_64"), (usize::MAX, "vit_pico_patch16_gap_128")];

/// The default model for these images.
pub(super) fn usual_model(samples: &dyn Samples, recipe: &Recipe) -> Result<Config, TrainError> {
    // The median of a few samples from the whole dataset.
    let stride = samples.len().div_ceil(25).max(1);
    let mut sides: Vec<usize> = (0..samples.len())
        .step_by(stride)
        .filter_map(|index| samples.image(index).ok())
        .map(|image| image.width().min(image.height()))
        .collect();
    sides.sort_unstable();
    let middle = sides.get(sides.len() / 2).copied().unwrap_or(0);
    let name = USUAL.iter().find(|(limit, _)| middle < *limit).map_or(USUAL[2].1, |(_, name)| name);
    named(name, recipe)
}
