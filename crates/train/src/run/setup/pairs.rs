//! Runs that train an image-text model, on pairs of image and text.

use std::path::Path;
use std::sync::Arc;

use vit_data::Samples;
use vit_models::clip::Clip;
use vit_models::{Checkpoint, Config, OpenOptions, TokenizerFiles};

use super::data::{Classes, open_data};
use super::{FirstWeights, Origin, RunSettings, Setup};
use crate::error::TrainError;
use crate::evaluate::pairs::EvaluatedPairs;
use crate::pairs::RunCaptions;
use crate::recipe::{Recipe, Teaching};

/// Whether a model is trained on pairs.
pub(super) fn trains_on_pairs(config: &Config) -> bool {
    config.architecture.downcast_ref::<Clip>().is_some()
}

impl Setup {
    /// Fine-tuning of both towers, or of the text tower alone if the recipe freezes the other (LiT, Zhai et al., 2022).
    pub(super) fn finetune_pairs(
        samples: Option<Arc<dyn Samples>>,
        path: &Path,
        image_size: Option<[usize; 2]>,
        settings: RunSettings,
        recipe: Recipe,
    ) -> Result<Setup, TrainError> {
        let mut checkpoint = Checkpoint::open(path, OpenOptions { image_size, ..OpenOptions::default() })?;
        if !checkpoint.has_text_tower() {
            return Err(TrainError::Unsuitable(format!(
                "{}: this model has no text tower, which --pairs trains; give a CLIP, OpenCLIP or SigLIP",
                path.display()
            )));
        }
        let splits = open_data(&settings, samples, recipe.seed, Classes::Captions)?;
        let report = std::mem::take(&mut checkpoint.report);
        let Checkpoint { config, weights, tokenizer, .. } = checkpoint;
        let first = FirstWeights::Given(weights);
        Self::finish(settings, recipe, config, first, splits, report, Origin::Checkpoint)?.with_captions(tokenizer)
    }

    /// The setup with its captions as tokens, if the model has a text tower.
    pub(super) fn with_captions(mut self, tokenizer: Option<TokenizerFiles>) -> Result<Setup, TrainError> {
        let template = self.settings.template.as_deref();
        let Some(clip) = self.config.architecture.downcast_ref::<Clip>() else {
            return match template {
                Some(template) => Err(TrainError::Unsuitable(format!(
                    "the template `{template}` is for an image-text model; this one has no text tower"
                ))),
                None => Ok(self),
            };
        };
        ensure_pairs_stay_pairs(&self.recipe)?;
        let validation = self.validation.as_ref().map(|validation| validation.as_ref() as &dyn Samples);
        let captions = RunCaptions::new(clip, tokenizer.as_ref(), template, self.train.as_ref(), validation)?;
        self.captions = Some(captions);
        self.tokenizer = tokenizer;
        Ok(self)
    }

    /// What an image-text model is evaluated on besides images.
    pub(crate) fn evaluated_pairs(&self) -> Option<EvaluatedPairs> {
        let clip = self.config.architecture.downcast_ref::<Clip>()?;
        let captions = self.captions.as_ref()?.validation.clone()?;
        Some(EvaluatedPairs { captions, pairing: clip.pairing, batch: self.recipe.batch })
    }
}

/// Refuses settings that mix images, or need labels.
fn ensure_pairs_stay_pairs(recipe: &Recipe) -> Result<(), TrainError> {
    let data = &recipe.data;
    let refused = [
        ("data.mixup", data.mixup > 0.0, "0"),
        ("data.cutmix", data.cutmix > 0.0, "0"),
        ("data.label_smoothing", data.label_smoothing > 0.0, "0"),
        ("objective.distillation", recipe.objective.distillation != Teaching::None, "none"),
    ];
    match refused.into_iter().find(|(_, set, _)| *set) {
        Some((key, _, neutral)) => Err(TrainError::Unsuitable(format!(
            "{key} of the recipe is for images with labels, not for pairs of image and text; set it to {neutral}, or take the \
             recipe clip-pretrain or clip as it is"
        ))),
        None => Ok(()),
    }
}
