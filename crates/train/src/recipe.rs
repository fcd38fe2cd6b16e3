//! Recipes: every setting of a training run as plain data, complete and printable as TOML; some have names.
//!
//! From it which the training step, the schedule and the settings of the loader are made.

mod keys;
pub(crate) mod preprocess;
mod span;
mod unfollowed;

pub use keys::RecipeError;
pub use span::Span;
pub use unfollowed::Unfollowed;

pub use crate::step::optimiser::{MethodName, OptimiserSettings};

use serde::{Deserialize, Serialize};
use vit_data::loader::BatchParts;
use vit_models::Architecture;
use vit_models::vit::{MaskedAutoencoder, MaskedPatches, PatchTarget, Pretraining, SelfDistillation, Vit};

use crate::step::StepOptions;
use crate::step::average::Average;
use crate::step::groups::Freeze;
use crate::step::objective::pretraining::{Colours, DistillationSchedule, MultiCrop};
use crate::step::objective::{Distillation, Loss, Objective};
use crate::step::schedule::{CosineRamp, Decay, Schedule};

/// Every setting of a training run. Each key's meaning is the comment that [`Recipe::to_toml`] prints beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Recipe {
    pub base: String,
    pub about: String,
    pub length: Span,
    pub batch: usize,
    pub accumulate: usize,
    #[serde(default)]
    pub parts: usize,
    #[serde(default)]
    pub batch_norm: BatchNormSetting,
    pub seed: u64,
    pub evaluate_every: Span,
    #[serde(default)]
    pub patience: u64,
    pub model: ModelSettings,
    pub data: DataSettings,
    pub objective: ObjectiveSettings,
    pub optimiser: OptimiserSettings,
    pub schedule: ScheduleSettings,
    pub average: AverageSettings,
    #[serde(default)]
    pub pretraining: PretrainingSettings,
}

/// The images that a batch norm takes its statistics of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchNormSetting {
    /// Those of one part of the batch.
    #[default]
    Part,
    /// Those of all parts, in all processes.
    Sync,
}

/// The model's section of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ModelSettings {
    pub start: Initialisation,
    #[serde(default)]
    pub options: Vec<String>,
    pub drop_path: f64,
    pub dropout: f64,
    pub attention_dropout: f64,
    #[serde(default)]
    pub patch_drop: f64,
    pub freeze: Freeze,
}

/// Initialisation of a Vision Transformer's attention and position embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Initialisation {
    /// Random, as in the paper's code.
    Random,
    /// Mimetic: similar to trained models.
    Mimetic,
}

/// How training images are cropped to the model's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CropSetting {
    /// A rectangle of random size and aspect ratio, resized.
    RandomResized,
    /// A crop of the model's size at a random position of the padded image.
    Padded,
    /// As in evaluation.
    Centre,
}

/// The mean and standard deviation of colours, for a model that starts from scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normalise {
    /// Those of the training images; `pictures` in runs of older versions.
    #[serde(alias = "pictures")]
    Images,
    /// Those of the model's published weights.
    Model,
}

/// The strength of colour jitter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, or four for brightness, contrast, saturation and hue")]
pub enum ColourJitterSetting {
    /// Of brightness, contrast and saturation; the hue is kept.
    Uniform(f64),
    /// Of brightness, contrast, saturation and hue.
    Each([f64; 4]),
}

/// The data's section of a recipe: augmentation of images and labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct DataSettings {
    pub normalise: Normalise,
    pub crop: CropSetting,
    pub crop_scale: [f64; 2],
    pub crop_ratio: [f64; 2],
    pub crop_padding: usize,
    pub flip: f64,
    pub colour_jitter: ColourJitterSetting,
    pub colour_jitter_probability: f64,
    pub grey: f64,
    pub auto_augment: String,
    pub three_augment: bool,
    pub erasing: f64,
    pub mixup: f64,
    pub cutmix: f64,
    pub mix_probability: f64,
    pub mix_switch: f64,
    pub mix_until: Span,
    pub label_smoothing: f64,
    pub repeated: usize,
}

/// Distillation from a teacher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Teaching {
    None,
    Soft,
    Hard,
}

/// The objective's section of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ObjectiveSettings {
    pub loss: Loss,
    pub distillation: Teaching,
    pub teacher: String,
    pub alpha: f64,
    pub temperature: f64,
}

/// Pre-training without labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum PretrainingTask {
    #[default]
    None,
    MaskedPatches,
    Mae,
    Dino,
}

/// What is predicted of a masked patch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum MaskTarget {
    MeanColour,
    Downsized,
    #[default]
    Pixels,
    NormalisedPixels,
}

/// The section of a recipe on pre-training without labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct PretrainingSettings {
    pub task: PretrainingTask,
    pub mask: f64,
    pub target: MaskTarget,
    pub decoder_width: usize,
    pub decoder_depth: usize,
    pub prototypes: usize,
    pub local_crops: usize,
    pub local_size: usize,
    pub local_scale: [f64; 2],
    pub blur: [f64; 3],
    pub solarize: [f64; 3],
    pub teacher_temperature: f64,
    pub first_teacher_temperature: f64,
    pub teacher_warmup: Span,
    pub student_temperature: f64,
    pub freeze_last_layer: Span,
}

impl Default for PretrainingSettings {
    fn default() -> Self {
        PretrainingSettings {
            task: PretrainingTask::None,
            mask: 0.75,
            target: MaskTarget::NormalisedPixels,
            decoder_width: 0,
            decoder_depth: 0,
            prototypes: 65536,
            local_crops: 8,
            local_size: 0,
            local_scale: [0.05, 0.25],
            blur: [1.0, 0.1, 0.5],
            solarize: [0.0, 0.2, 0.0],
            teacher_temperature: 0.07,
            first_teacher_temperature: 0.04,
            teacher_warmup: Span::Share(0.15),
            student_temperature: 0.1,
            freeze_last_layer: Span::Epochs(1.0),
        }
    }
}

impl PretrainingSettings {
    /// The layers of pre-training for a model, or `None` if it is trained with labels.
    pub(crate) fn layers(&self, vit: &Vit) -> Option<Pretraining> {
        let mask = self.mask as f32;
        match self.task {
            PretrainingTask::None => None,
            PretrainingTask::MaskedPatches => {
                let target = match self.target {
                    MaskTarget::MeanColour => PatchTarget::MeanColour,
                    MaskTarget::Downsized => PatchTarget::Downsized,
                    MaskTarget::Pixels | MaskTarget::NormalisedPixels => PatchTarget::Pixels,
                };
                Some(Pretraining::MaskedPatches(MaskedPatches { mask, target }))
            }
            PretrainingTask::Mae => {
                let usual = MaskedAutoencoder::of(vit);
                let dim = if self.decoder_width == 0 { usual.dim } else { self.decoder_width };
                let depth = if self.decoder_depth == 0 { usual.depth } else { self.decoder_depth };
                let normalised = self.target == MaskTarget::NormalisedPixels;
                let heads = (dim / 32).max(1);
                let mae = MaskedAutoencoder { dim, depth, heads, mlp_dim: 4 * dim, mask, normalised };
                Some(Pretraining::MaskedAutoencoder(mae))
            }
            PretrainingTask::Dino => {
                let prototypes = self.prototypes;
                Some(Pretraining::SelfDistillation(SelfDistillation { prototypes, ..SelfDistillation::default() }))
            }
        }
    }
}

/// The decays of the learning rate by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum DecayName {
    Constant,
    Cosine,
    Linear,
    ReciprocalSqrt,
}

/// The schedule's section of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ScheduleSettings {
    pub rate: f64,
    pub rate_batch: usize,
    pub warmup: Span,
    pub decay: DecayName,
    pub end: f64,
    pub timescale: Span,
    pub cooldown: Span,
}

/// The moving average's section of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct AverageSettings {
    pub decay: f64,
    #[serde(default)]
    pub end: f64,
    pub warmup: bool,
}

/// The named recipes and their files.
const NAMED: [(&str, &str); 17] = [
    ("small", include_str!("../recipes/small.toml")),
    ("strong", include_str!("../recipes/strong.toml")),
    ("finetune", include_str!("../recipes/finetune.toml")),
    ("vit-pretrain", include_str!("../recipes/vit-pretrain.toml")),
    ("vit-pretrain-21k", include_str!("../recipes/vit-pretrain-21k.toml")),
    ("vit-pretrain-1k", include_str!("../recipes/vit-pretrain-1k.toml")),
    ("vit-finetune", include_str!("../recipes/vit-finetune.toml")),
    ("deit", include_str!("../recipes/deit.toml")),
    ("augreg", include_str!("../recipes/augreg.toml")),
    ("noisy-student", include_str!("../recipes/noisy-student.toml")),
    ("study", include_str!("../recipes/study.toml")),
    ("masked-patches", include_str!("../recipes/masked-patches.toml")),
    ("mae", include_str!("../recipes/mae.toml")),
    ("dino", include_str!("../recipes/dino.toml")),
    ("mae-finetune", include_str!("../recipes/mae-finetune.toml")),
    ("clip", include_str!("../recipes/clip.toml")),
    ("clip-pretrain", include_str!("../recipes/clip-pretrain.toml")),
];

impl Recipe {
    /// The names of recipes, the default first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// A recipe by its name.
    pub fn named(name: &str) -> Result<Recipe, RecipeError> {
        match NAMED.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Recipe::complete(text),
            None => Err(RecipeError::unknown_recipe(name)),
        }
    }

    /// The options of this recipe's training step.
    pub fn step_options(&self) -> StepOptions {
        let d = &self.objective;
        let distillation = match d.distillation {
            Teaching::None => None,
            Teaching::Soft => Some(Distillation::Soft { temperature: d.temperature as f32 }),
            Teaching::Hard => Some(Distillation::Hard),
        };
        StepOptions {
            objective: Objective { loss: d.loss, distillation: distillation.map(|kind| (kind, d.alpha as f32)) },
            colours: Colours::default(),
            crops: None,
            optimiser: self.optimiser.optimiser(),
            parts: BatchParts::all(self.parts.max(1)),
            exchange: false,
            accumulate: self.accumulate,
            sync_batch_norm: self.batch_norm == BatchNormSetting::Sync,
            average: self.average.decay > 0.0,
            scheduled_decay: self.optimiser.weight_decay_end > 0.0,
            sharding: None,
            freeze: self.model.freeze.clone(),
            recompute: false,
        }
    }

    /// The crops of self-distillation for a model.
    pub(crate) fn crops(&self, vit: &Vit) -> Option<MultiCrop> {
        let p = &self.pretraining;
        let usual = |axis: usize| {
            let ([side, patch], whole) = ([vit.image_size[axis], vit.patch_size[axis].max(1)], 3.0 / 7.0);
            ((side as f64 * whole / patch as f64).round() as usize).max(1) * patch
        };
        (p.task == PretrainingTask::Dino).then(|| MultiCrop {
            local_crops: p.local_crops,
            local_size: if p.local_size == 0 { [usual(0), usual(1)] } else { [p.local_size; 2] },
            student_temperature: p.student_temperature as f32,
        })
    }

    /// Whether it is pre-training without labels.
    pub fn is_pretraining(&self) -> bool {
        self.pretraining.task != PretrainingTask::None
    }

    /// The moving average of weights, if there is one and an epoch has this many steps.
    pub fn average(&self, steps_per_epoch: u64) -> Option<Average> {
        let AverageSettings { decay, end, warmup } = self.average;
        let [from, to] = [decay, if end == 0.0 { decay } else { end }].map(|decay| f64::from(decay as f32));
        let decay = CosineRamp { from, to, steps: self.steps(steps_per_epoch) };
        (from > 0.0).then_some(Average { decay, warmup })
    }

    /// The weight decay of each step, if it is not constant and an epoch has this many steps.
    pub fn weight_decay(&self, steps_per_epoch: u64) -> Option<CosineRamp> {
        let OptimiserSettings { weight_decay: from, weight_decay_end: to, .. } = self.optimiser;
        (to > 0.0).then_some(CosineRamp { from, to, steps: self.steps(steps_per_epoch) })
    }

    /// The schedules of self-distillation, if an epoch has this many steps.
    pub fn distillation_schedule(&self, steps_per_epoch: u64) -> Option<DistillationSchedule> {
        let (p, steps) = (&self.pretraining, self.steps(steps_per_epoch));
        (p.task == PretrainingTask::Dino).then(|| DistillationSchedule {
            first_temperature: p.first_teacher_temperature,
            temperature: p.teacher_temperature,
            warmup: p.teacher_warmup.steps(steps_per_epoch, steps),
            frozen: p.freeze_last_layer.steps(steps_per_epoch, steps),
        })
    }

    /// All steps, if an epoch has this many.
    pub fn steps(&self, steps_per_epoch: u64) -> u64 {
        self.length.steps(steps_per_epoch, 0)
    }

    /// The learning-rate schedule, if an epoch has this many steps.
    pub fn schedule(&self, steps_per_epoch: u64) -> Schedule {
        let (s, steps) = (&self.schedule, self.steps(steps_per_epoch));
        let span = |span: Span| span.steps(steps_per_epoch, steps);
        let larger = if s.rate_batch == 0 { 1.0 } else { self.batch as f64 / s.rate_batch as f64 };
        let decay = match s.decay {
            DecayName::Constant => Decay::Constant,
            DecayName::Cosine => Decay::Cosine { end: s.end },
            DecayName::Linear => Decay::Polynomial { end: s.end, power: 1.0 },
            DecayName::ReciprocalSqrt => {
                Decay::ReciprocalSqrt { timescale: span(s.timescale).max(1) as f64, shift: 0.0 }
            }
        };
        Schedule { base: s.rate * larger, steps, warmup: span(s.warmup), cooldown: span(s.cooldown), decay }
    }

    /// Changes a named model by this recipe's options.
    pub fn configure(&self, architecture: &mut Architecture) -> Result<(), RecipeError> {
        let options = self.model.options.iter().map(|option| keys::option(option)).collect::<Result<_, _>>()?;
        let wrong =
            |what| RecipeError::Value { key: "model.options".into(), what: format!("cannot be followed: {what}") };
        if self.model.options.is_empty() { Ok(()) } else { architecture.set_options(&options).map_err(wrong) }
    }

    /// Gives a model the dropout and stochastic depth of this recipe.
    pub fn apply_to(&self, architecture: &mut Architecture) {
        let ModelSettings { drop_path, dropout, attention_dropout, patch_drop, .. } = self.model;
        architecture.set_dropout(dropout as f32);
        architecture.set_attention_dropout(attention_dropout as f32);
        architecture.set_patch_drop(patch_drop as f32);
        architecture.set_drop_path(drop_path as f32);
    }
}
