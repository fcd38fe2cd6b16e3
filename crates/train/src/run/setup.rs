//! What a run starts with: the dataset, the model and its weights, the recipe adapted to both. Every decision is a line of
//! the report.

mod colours;
mod config_file;
mod data;
mod model;
mod pairs;

pub use config_file::{Launch, RunConfig, RunSettings};
pub use data::ChangedData;
pub(crate) use data::{Classes, open_data};
pub use model::{FirstWeights, ModelChoice};
pub(crate) use model::{add_pretraining, named_variant};

use std::path::Path;
use std::sync::Arc;

use vit_data::Samples;
use vit_data::dataset::{Dataset, Fingerprint, Report, SampleRecord, Splits};
use vit_models::{Changes, Checkpoint, Config, OpenOptions, ProblemType, TokenizerFiles};

use crate::error::TrainError;
use crate::pairs::RunCaptions;
use crate::processes::Processes;
use crate::recipe::{Normalise, Recipe, Teaching};
use crate::run::folder::RunFolder;
use crate::run::saving::Snapshot;
use crate::step::objective::Loss;
use data::{accept, accepted};
use model::{SMALL, first_weights, named, usual_model};

/// Everything that a run starts with.
pub struct Setup {
    /// The section `[run]`.
    pub settings: RunSettings,
    /// The recipe, adapted to the data.
    pub recipe: Recipe,
    /// The model, its classes and its preprocessing.
    pub config: Config,
    /// How texts become tokens, if the model has a text tower and a tokeniser of its own.
    pub tokenizer: Option<TokenizerFiles>,
    /// The captions, if the model has a text tower.
    pub(crate) captions: Option<RunCaptions>,
    /// The weights that it starts from.
    pub weights: FirstWeights,
    /// The training samples.
    pub train: Arc<Dataset>,
    /// The validation samples.
    pub validation: Option<Arc<Dataset>>,
    /// Training samples that [`RunSettings::fraction`] leaves out.
    pub unused: Arc<Dataset>,
    /// Whether the run's folder has no record of its samples yet.
    pub unrecorded: bool,
    /// Hashes of the recorded samples.
    pub fingerprint: Option<Fingerprint>,
    /// What was found in the dataset.
    pub data_report: Report,
    /// Decisions about the model and the recipe, one line each.
    pub report: Vec<String>,
}

/// Parts of a batch in a run of several processes, if the recipe leaves their number open: enough for the GPUs of one
/// machine, so that runs of any number of them agree.
const USUAL_PARTS: usize = 8;

/// Where a run's weights and settings come from.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    /// A new run from scratch.
    Scratch,
    /// A new run from a checkpoint.
    Checkpoint,
    /// A resumed run, whose settings were checked when it was begun.
    Run,
}

impl Setup {
    /// Opens the dataset and prepares the model for it.
    pub fn new(
        choice: ModelChoice,
        image_size: Option<[usize; 2]>,
        settings: RunSettings,
        recipe: Recipe,
    ) -> Result<Setup, TrainError> {
        Self::with_data(None, choice, image_size, settings, recipe)
    }

    /// Prepares a model for samples of the caller; `settings.data` only names them. Such a run cannot be resumed.
    pub fn of_samples(
        samples: Arc<dyn Samples>,
        choice: ModelChoice,
        image_size: Option<[usize; 2]>,
        settings: RunSettings,
        recipe: Recipe,
    ) -> Result<Setup, TrainError> {
        Self::with_data(Some(samples), choice, image_size, settings, recipe)
    }

    fn with_data(
        samples: Option<Arc<dyn Samples>>,
        choice: ModelChoice,
        image_size: Option<[usize; 2]>,
        settings: RunSettings,
        recipe: Recipe,
    ) -> Result<Setup, TrainError> {
        match choice {
            ModelChoice::ImageText(path) => Self::finetune_pairs(samples, path, image_size, settings, recipe),
            ModelChoice::Checkpoint(path) => Self::finetune(samples, path, image_size, settings, recipe),
            ModelChoice::Named(name) => Self::from_scratch(samples, Some(name), image_size, settings, recipe),
            ModelChoice::Usual => Self::from_scratch(samples, None, image_size, settings, recipe),
        }
    }

    fn from_scratch(
        samples: Option<Arc<dyn Samples>>,
        name: Option<&str>,
        image_size: Option<[usize; 2]>,
        mut settings: RunSettings,
        recipe: Recipe,
    ) -> Result<Setup, TrainError> {
        let named = name.map(|name| named(name, &recipe)).transpose()?;
        let classes = || match &named {
            _ if recipe.is_pretraining() => Classes::Optional,
            Some(config) if pairs::trains_on_pairs(config) => Classes::Captions,
            _ => Classes::Own,
        };
        let mut splits = open_data(&settings, samples.clone(), recipe.seed, classes())?;
        let mut report = Vec::new();
        if recipe.is_pretraining() && splits.train.classes().len() > 1 {
            report.push("evaluation: the accuracy of nearest neighbours; labels are used for nothing else".into());
        } else if recipe.is_pretraining() {
            report.push("evaluation: none, since the images have no labels".into());
            if settings.validation.is_none() {
                // All images are trained on.
                settings.validation_fraction = 0.0;
                splits = open_data(&settings, samples, recipe.seed, classes())?;
            }
        }
        let mut config = match named {
            Some(config) => config,
            None => usual_model(splits.train.as_ref(), &recipe)?,
        };
        if name.is_none() {
            let name = config.name.as_deref().unwrap_or_default();
            report.push(format!("model: {name}, chosen for the size of the images"));
        }
        if let Some(size) = image_size {
            config.architecture.set_image_size(size);
            config.preprocessing.image_size = size;
        }
        let published = |name: &String| vit_models::variants().iter().any(|v| v.name == *name);
        if image_size.is_some() || !config.name.as_ref().is_some_and(published) {
            let reason = config.architecture.refuses_image_size(config.architecture.image_size());
            reason.map_or(Ok(()), |reason| Err(TrainError::Unsuitable(reason)))?;
        }
        // Small images are not cropped.
        if config.preprocessing.image_size.iter().any(|&side| side < SMALL) {
            config.preprocessing.crop_pct = 1.0;
        }
        if recipe.data.normalise == Normalise::Images {
            report.extend(colours::normalise_by(splits.train.as_ref(), &mut config));
        }
        if recipe.is_pretraining() {
            model::add_pretraining(&mut config, &recipe)?;
        } else if !pairs::trains_on_pairs(&config) {
            config.architecture.set_classes(splits.train.classes().len());
        }
        let weights = first_weights(&config.architecture, &recipe)?;
        Self::finish(settings, recipe, config, weights, splits, report, Origin::Scratch)?.with_captions(None)
    }

    /// Fine-tuning as in the ViT paper: a new head that starts from zero, position embeddings resized.
    fn finetune(
        samples: Option<Arc<dyn Samples>>,
        path: &Path,
        image_size: Option<[usize; 2]>,
        settings: RunSettings,
        recipe: Recipe,
    ) -> Result<Setup, TrainError> {
        if recipe.is_pretraining() {
            return Err(TrainError::Unsuitable(format!(
                "{}: pre-training without labels starts from a named model, not from a checkpoint",
                path.display()
            )));
        }
        let mut checkpoint = Checkpoint::open_image_model(path, OpenOptions::default())?;
        // If the dataset has the checkpoint's classes, its labels follow their order.
        let splits = open_data(&settings, samples, recipe.seed, Classes::InOrder(&checkpoint.config.labels))?;
        let classes = splits.train.classes().len();
        let same = splits.train.classes() == checkpoint.config.labels;
        let changes =
            Changes { image_size, classes: Some(classes), new_head: !same, encoder_alone: true, ..Changes::default() };
        checkpoint.change(changes)?;
        let mut report = std::mem::take(&mut checkpoint.report);
        if same {
            report.push(format!("head: kept, since the dataset has the checkpoint's {classes} classes"));
        }
        let Checkpoint { config, weights, .. } = checkpoint;
        Self::finish(settings, recipe, config, FirstWeights::Given(weights), splits, report, Origin::Checkpoint)
    }

    /// A run that is continued from its folder.
    pub fn resume(run: &RunFolder, snapshot: &Snapshot, changed: ChangedData) -> Result<Setup, TrainError> {
        let Snapshot { config, tokenizer, .. } = snapshot;
        let RunConfig { settings, mut recipe, .. } = RunConfig::of(run)?;
        // A run that was begun in one process.
        recipe.parts = recipe.parts.max(1);
        let classes = match recipe.is_pretraining() {
            true => Classes::Optional,
            false if pairs::trains_on_pairs(config) => Classes::Captions,
            false => Classes::Exactly(&config.labels),
        };
        let mut splits = open_data(&settings, None, recipe.seed, classes)?;
        let (mut report, mut fingerprint) = (vec![], None);
        match run.samples()? {
            None => report.push(
                "the run has no record of its samples, so it could not be checked whether the data changed since it was \
                 begun"
                    .into(),
            ),
            Some(record) => {
                let changes = record.restore(&mut splits);
                if changes.is_empty() {
                    fingerprint = Some(record.fingerprint());
                } else {
                    accept(&settings.data, &record, &changes, changed)?;
                    report.push(accepted(&settings.data, &record, &changes));
                }
            }
        }
        let (config, first) = (config.clone(), FirstWeights::Random);
        let setup = Self::finish(settings, recipe, config, first, splits, report, Origin::Run)?;
        Setup { unrecorded: fingerprint.is_none(), fingerprint, ..setup }.with_captions(tokenizer.clone())
    }

    /// Decides into how many parts a batch is cut if the recipe leaves it open, and checks that the processes can share
    /// them.
    pub fn divide(&mut self, processes: &Processes) -> Result<(), TrainError> {
        let (recipe, size) = (&mut self.recipe, processes.size());
        let open = recipe.parts == 0;
        recipe.parts = recipe.parts.max(1);
        if open && size > 1 {
            // The largest power of two that divides the batch, up to the usual number.
            let most = size.next_power_of_two().max(USUAL_PARTS);
            let micro_batch = recipe.batch / recipe.accumulate;
            recipe.parts = 1 << micro_batch.trailing_zeros().min(most.trailing_zeros());
            self.report.push(format!(
                "parts: {parts}, since there are {size} processes; with parts={parts} one process gives the same bits",
                parts = recipe.parts
            ));
        }
        let Some(reason) = processes.misfit(recipe.parts) else { return Ok(()) };
        let way_out = match open && size > recipe.parts {
            true => format!("; choose a batch that is a multiple of {}", size.next_power_of_two()),
            false => String::new(),
        };
        Err(TrainError::Unsuitable(format!("{reason}{way_out}")))
    }

    /// Checks that all processes have the same data, model and recipe, and continue after the same step.
    pub(crate) fn ensure_same(&self, processes: &Processes, step: Option<u64>) -> Result<(), TrainError> {
        if processes.size() == 1 {
            return Ok(());
        }
        let validation = self.validation.as_ref().map_or(0, |validation| validation.len());
        let data = format!("{} training and {validation} validation images", self.train.len());
        processes.ensure_same("dataset", &format!("{data}\n{}", self.train.classes().join("\n")))?;
        processes.ensure_same("recipe", &format!("{}\nstep {}", self.recipe.to_toml(), step.unwrap_or(0)))
    }

    /// Records which samples are trained on and which are held out.
    pub(crate) fn record_samples(&mut self, run: &RunFolder) -> Result<(), TrainError> {
        if std::mem::take(&mut self.unrecorded) {
            let record = SampleRecord::of(&self.train, self.validation.as_deref(), &self.unused);
            run.write_samples(&record)?;
            self.fingerprint = Some(record.fingerprint());
        }
        Ok(())
    }

    /// The number of trained parameters, and of all that could be.
    pub fn trained_parameters(&self) -> Result<(usize, usize), TrainError> {
        let parameters = self.config.architecture.parameters()?;
        let trainable: Vec<&str> = parameters.iter().filter(|p| p.trainable).map(|p| p.name.as_str()).collect();
        let frozen = self.recipe.model.freeze.includes(self.config.architecture.heads(), &trainable);
        Ok((frozen.iter().filter(|frozen| !**frozen).count(), trainable.len()))
    }

    #[allow(clippy::too_many_arguments)]
    fn finish(
        settings: RunSettings,
        mut recipe: Recipe,
        mut config: Config,
        weights: FirstWeights,
        splits: Splits,
        mut report: Vec<String>,
        origin: Origin,
    ) -> Result<Setup, TrainError> {
        let Splits { train, validation, unused, report: data_report, .. } = splits;
        let classifier = !recipe.is_pretraining() && !pairs::trains_on_pairs(&config);
        config.labels = if classifier { train.classes().to_vec() } else { Vec::new() };
        if origin != Origin::Run {
            let model = config.name.as_deref().unwrap_or(&settings.model);
            report.extend(recipe.leave_out_unfollowed(model, &config.architecture, origin == Origin::Scratch)?);
        }
        recipe.apply_to(&mut config.architecture);
        config.problem_type = match train.is_multi_label() && classifier {
            true => ProblemType::MultiLabel,
            false => ProblemType::SingleLabel,
        };
        if classifier {
            report.extend(adapt_objective(&mut recipe, &settings.data, &train)?);
        }
        report.extend(adapt_batch(&mut recipe, train.len()));
        if recipe.patience > 0 && validation.is_none() {
            return Err(TrainError::Unsuitable(format!(
                "patience is {}, but there are no images to evaluate on; give a validation set, or set patience to 0",
                recipe.patience
            )));
        }
        Ok(Setup {
            settings,
            recipe,
            config,
            tokenizer: None,
            captions: None,
            weights,
            train,
            validation,
            unused,
            unrecorded: true,
            fingerprint: None,
            data_report,
            report,
        })
    }
}

/// Makes the objective that of the dataset's labels.
fn adapt_objective(recipe: &mut Recipe, data: &Path, train: &Dataset) -> Result<Option<String>, TrainError> {
    let objective = &mut recipe.objective;
    let multi_label = train.is_multi_label();
    if multi_label && objective.distillation != Teaching::None {
        return Err(TrainError::Unsuitable(format!(
            "{}: images have several labels, and a teacher can be followed only where they have one; \
             set objective.distillation to none",
            data.display()
        )));
    }
    if objective.distillation == Teaching::None && !objective.teacher.is_empty() {
        return Err(TrainError::Unsuitable(format!(
            "objective.teacher is {}, but objective.distillation is none; set it to hard or soft",
            objective.teacher
        )));
    }
    if train.classes().len() < 2 && !multi_label {
        return Err(TrainError::Unsuitable(format!(
            "{}: there is only one class, {:?}; a classifier needs at least two",
            data.display(),
            train.classes().first().map_or("", String::as_str)
        )));
    }
    Ok((multi_label && objective.loss == Loss::Softmax).then(|| {
        objective.loss = Loss::Sigmoid;
        "objective.loss: sigmoid, since images have several labels".into()
    }))
}

/// Makes a batch no larger than an epoch, which has as many images as the dataset even where repeated augmentation draws
/// each several times.
fn adapt_batch(recipe: &mut Recipe, images: usize) -> Option<String> {
    let before = recipe.batch;
    (before > images).then(|| {
        let unit = recipe.accumulate * recipe.parts.max(1);
        recipe.batch = (images / unit * unit).max(1);
        recipe.accumulate = recipe.accumulate.min(recipe.batch);
        recipe.parts = recipe.parts.min(recipe.batch);
        format!("batch: {} instead of {before}, since there are {images} training images", recipe.batch)
    })
}
