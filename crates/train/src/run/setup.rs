//! What a run begins with: the data set opened, the model chosen or adapted, the recipe made to fit both. Everything
//! that was decided on the way is in its report, and what a resumed run needs again is in [`RunSettings`].

mod colours;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vit_data::Samples;
use vit_data::dataset::{
    self, Changes as DataChanges, Dataset, Fingerprint, OpenOptions, Report, SampleRecord, Splits, Validation,
};
use vit_data::loader::UnreadableLimit;
use vit_models::vit::Vit;
use vit_models::weights::Weights;
use vit_models::{
    Architecture, Changes, Checkpoint, Config, Mode, OpenOptions as CheckpointOptions, ProblemType, Variant,
};

use crate::error::TrainError;
use crate::recipe::{Normalise, Recipe, Start, Teaching};
use crate::run::folder::RunFolder;
use crate::step::objective::Loss;

/// What a run depends on besides its recipe: the `[run]` section of its `config.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// The model's name, or the checkpoint that it starts from.
    pub model: String,
    /// The data set.
    pub data: PathBuf,
    /// The split or the data set that is evaluated on; the usual rule if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<PathBuf>,
    /// The share of each class that is carved off for validation where there is no split for it.
    pub validation_fraction: f64,
    /// The share of the training samples that is used.
    pub fraction: f64,
    /// The share of the training or validation images above which the run stops because they cannot be read.
    #[serde(default = "usual_unreadable", skip_serializing_if = "is_usual_unreadable")]
    pub max_unreadable: f64,
    /// Go on past steps whose loss is not finite.
    pub skip_non_finite: bool,
    /// How precisely the device computes, as `--precision` names it.
    pub precision: String,
}

fn usual_unreadable() -> f64 {
    UnreadableLimit::default().share
}

fn is_usual_unreadable(share: &f64) -> bool {
    *share == usual_unreadable()
}

/// How a run was started: the `[launch]` section of its `config.toml`. A resumed run is carried out in the same way where
/// nothing else is asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Launch {
    /// The whole command, quoted for a shell.
    pub command: String,
    /// The folder in which it was given.
    pub folder: PathBuf,
    /// The device that was opened, as `--device` names it; empty if that is not known.
    pub device: String,
    /// CPU threads, where not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Memory for decoded images, in megabytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<u64>,
    /// The longest time between two saves, in minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_every: Option<f64>,
    /// Whether activations are computed again in the backward pass.
    pub recompute: bool,
}

/// What to do about a run whose data is no longer what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedData {
    /// Stop and say what changed.
    Refuse,
    /// Go on, with the run's split kept: what is new is trained on, unless the dataset says that it is for validation.
    Accept,
}

/// Where a model's first weights come from.
pub enum FirstWeights {
    /// Drawn as the model's initialisers say.
    Random,
    /// From a checkpoint, under canonical names, fitting.
    Given(Weights),
}

/// A run before its first step.
pub struct Setup {
    /// What else the run depends on.
    pub settings: RunSettings,
    /// The recipe, with what did not fit the data changed.
    pub recipe: Recipe,
    /// The model, its classes and its preprocessing.
    pub config: Config,
    /// Its first weights.
    pub weights: FirstWeights,
    /// What to learn from.
    pub train: Arc<Dataset>,
    /// What to look at while training.
    pub validation: Option<Arc<Dataset>>,
    /// The training samples that the fraction leaves out.
    pub unused: Arc<Dataset>,
    /// Whether the run's folder does not say yet which samples these are.
    pub unrecorded: bool,
    /// Hashes of the samples, once they are recorded.
    pub fingerprint: Option<Fingerprint>,
    /// What was found in the data set.
    pub data_report: Report,
    /// What was decided about the model and the recipe, one line each.
    pub report: Vec<String>,
}

/// The first weights of a model from scratch.
fn first_weights(architecture: &Architecture, recipe: &Recipe) -> Result<FirstWeights, TrainError> {
    match (architecture.downcast_ref::<Vit>(), recipe.model.start) {
        (Some(vit), Start::Mimetic) => Ok(FirstWeights::Given(vit.mimetic(recipe.seed)?)),
        _ => Ok(FirstWeights::Random),
    }
}

/// Where a setup comes from.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    /// A new run from scratch.
    Scratch,
    /// A new run from a checkpoint.
    Checkpoint,
    /// A run that goes on: what its model cannot follow made no difference before.
    Run,
}

/// The model that a run trains.
pub enum ModelChoice<'a> {
    /// One that suits the pictures.
    Usual,
    /// A named variant, from scratch.
    Named(&'a str),
    /// A checkpoint folder or weights file, to be fine-tuned.
    Checkpoint(&'a Path),
}

impl Setup {
    /// Opens the data set and prepares the model for it.
    pub fn new(
        choice: ModelChoice,
        image_size: Option<[usize; 2]>,
        settings: RunSettings,
        recipe: Recipe,
    ) -> Result<Setup, TrainError> {
        match choice {
            ModelChoice::Checkpoint(path) => Self::finetune(path, image_size, settings, recipe),
            ModelChoice::Named(_) | ModelChoice::Usual => {
                let splits = open_data(&settings, recipe.seed, Classes::Own)?;
                let mut report = Vec::new();
                let mut config = match choice {
                    ModelChoice::Named(name) => named(name)?,
                    _ => usual_model(splits.train.as_ref())?,
                };
                if let ModelChoice::Usual = choice {
                    let name = config.name.as_deref().unwrap_or_default();
                    report.push(format!("model: {name}, for the size of the pictures (another with --model)"));
                }
                let published = |name: &String| vit_models::variants().iter().any(|v| v.name == *name);
                if let Some(size) = image_size {
                    config.architecture.set_image_size(size);
                    config.preprocessing.image_size = size;
                }
                if image_size.is_some() || !config.name.as_ref().is_some_and(published) {
                    let reason = config.architecture.refuses_image_size(config.architecture.image_size());
                    reason.map_or(Ok(()), |reason| Err(TrainError::Unsuitable(reason)))?;
                }
                // Small pictures have no margin to crop away.
                if config.preprocessing.image_size.iter().any(|&side| side < SMALL) {
                    config.preprocessing.crop_pct = 1.0;
                }
                if recipe.data.normalise == Normalise::Pictures {
                    report.extend(colours::normalise_by(splits.train.as_ref(), &mut config));
                }
                config.architecture.set_classes(splits.train.classes().len());
                let weights = first_weights(&config.architecture, &recipe)?;
                Self::finish(settings, recipe, config, weights, splits, report, Origin::Scratch)
            }
        }
    }

    /// The published way: another head, starting from zero, and positions for the new size.
    fn finetune(
        path: &Path,
        image_size: Option<[usize; 2]>,
        settings: RunSettings,
        recipe: Recipe,
    ) -> Result<Setup, TrainError> {
        let mut checkpoint = Checkpoint::open(path, CheckpointOptions::default())?;
        // The same classes in another order are the checkpoint's classes.
        let splits = open_data(&settings, recipe.seed, Classes::InOrder(&checkpoint.config.labels))?;
        let classes = splits.train.classes().len();
        let same = splits.train.classes() == checkpoint.config.labels;
        checkpoint.change(Changes { image_size, classes: Some(classes), new_head: !same, channels: None })?;
        let mut report = std::mem::take(&mut checkpoint.report);
        if same {
            report.push(format!("head: kept, since the data set has the checkpoint's {classes} classes"));
        }
        let Checkpoint { config, weights, .. } = checkpoint;
        Self::finish(settings, recipe, config, FirstWeights::Given(weights), splits, report, Origin::Checkpoint)
    }

    /// A run as its folder describes it, to go on with.
    pub fn resume(run: &RunFolder, config: Config, changed: ChangedData) -> Result<Setup, TrainError> {
        let RunConfig { settings, recipe, .. } = RunConfig::of(run)?;
        let mut splits = open_data(&settings, recipe.seed, Classes::Exactly(&config.labels))?;
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
        let setup = Self::finish(settings, recipe, config, FirstWeights::Random, splits, report, Origin::Run)?;
        Ok(Setup { unrecorded: fingerprint.is_none(), fingerprint, ..setup })
    }

    /// Records which samples the run learns from and is measured on.
    pub(crate) fn record_samples(&mut self, run: &RunFolder) -> Result<(), TrainError> {
        if std::mem::take(&mut self.unrecorded) {
            let record = SampleRecord::of(&self.train, self.validation.as_deref(), &self.unused);
            run.write_samples(&record)?;
            self.fingerprint = Some(record.fingerprint());
        }
        Ok(())
    }

    /// How many of how many of the model's parameters are trained.
    pub fn trained_parameters(&self) -> Result<(usize, usize), TrainError> {
        let graph = self.config.architecture.build(1, Mode::Inference)?;
        let trainable: Vec<&str> =
            graph.parameters().filter(|(_, p)| p.trainable).map(|(_, p)| p.name.as_str()).collect();
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
        config.labels = train.classes().to_vec();
        if origin != Origin::Run {
            let model = config.name.as_deref().unwrap_or(&settings.model);
            report.extend(recipe.leave_out_unfollowed(model, &config.architecture, origin == Origin::Scratch)?);
        }
        recipe.apply_to(&mut config.architecture);
        config.problem_type = match train.is_multi_label() {
            true => ProblemType::MultiLabel,
            false => ProblemType::SingleLabel,
        };
        if train.is_multi_label() && recipe.objective.loss == Loss::Softmax {
            recipe.objective.loss = Loss::Sigmoid;
            report.push("objective.loss: sigmoid, since pictures have several labels".into());
        }
        if train.is_multi_label() && recipe.objective.distillation != Teaching::None {
            return Err(TrainError::Unsuitable(format!(
                "{}: images have several labels, and a teacher can be followed only where they have one; \
                 set objective.distillation to none",
                settings.data.display()
            )));
        }
        if recipe.objective.distillation == Teaching::None && !recipe.objective.teacher.is_empty() {
            return Err(TrainError::Unsuitable(format!(
                "objective.teacher is {}, but objective.distillation is none; set it to hard or soft",
                recipe.objective.teacher
            )));
        }
        if train.classes().len() < 2 && !train.is_multi_label() {
            return Err(TrainError::Unsuitable(format!(
                "{}: there is only one class, {:?}; a classifier needs at least two",
                settings.data.display(),
                train.classes().first().map_or("", String::as_str)
            )));
        }
        // An epoch is as many images as there are, also where each appears several times in it.
        let most = train.len();
        if recipe.batch > most {
            let batch = (most / recipe.accumulate * recipe.accumulate).max(1);
            recipe.accumulate = recipe.accumulate.min(batch);
            report.push(format!("batch: {batch} instead of {}, since there are {most} training images", recipe.batch));
            recipe.batch = batch;
        }
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

    /// The text of `config.toml`: the whole recipe, then what else the run depends on, then how it was started.
    pub fn to_toml(&self, launch: &Launch) -> String {
        let [settings, launch] =
            [toml::to_string(&self.settings), toml::to_string(launch)].map(Result::unwrap_or_default);
        format!("{}\n[run]\n{settings}\n[launch]\n{launch}", self.recipe.to_toml())
    }
}

/// What a run's `config.toml` says.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// What the run depends on besides its recipe.
    pub settings: RunSettings,
    /// Its recipe.
    pub recipe: Recipe,
    /// How it was started.
    pub launch: Launch,
}

impl RunConfig {
    /// Reads the configuration of a run.
    pub fn of(run: &RunFolder) -> Result<RunConfig, TrainError> {
        Self::parse(&run.config()?, &run.path().join("config.toml"))
    }

    /// Reads what [`Setup::to_toml`] wrote.
    fn parse(text: &str, path: &Path) -> Result<RunConfig, TrainError> {
        let fail = |what: String| TrainError::Config { path: path.into(), what };
        let mut table: toml::Table = toml::from_str(text).map_err(|e| fail(e.message().to_string()))?;
        let run = table.remove("run").ok_or_else(|| fail("the section [run] is missing".into()))?;
        let settings = run.try_into().map_err(|e: toml::de::Error| fail(format!("[run]: {}", e.message())))?;
        let launch = table.remove("launch").unwrap_or_else(|| toml::Table::new().into());
        let launch = launch.try_into().map_err(|e: toml::de::Error| fail(format!("[launch]: {}", e.message())))?;
        let recipe = Recipe::parse(&table.to_string()).map_err(|e| fail(e.to_string()))?;
        Ok(RunConfig { settings, recipe, launch })
    }
}

/// Whether a run may go on with data that changed.
fn accept(data: &Path, record: &SampleRecord, changes: &DataChanges, changed: ChangedData) -> Result<(), TrainError> {
    let validation = record.validation_len();
    if validation > 0 && changes.held_out == 0 {
        return Err(TrainError::Unsuitable(format!(
            "{}: none of the {validation} images that the run is measured on is there any more; put the data back, or \
             begin another run",
            data.display()
        )));
    }
    match changed {
        ChangedData::Accept => Ok(()),
        ChangedData::Refuse => Err(TrainError::ChangedData { path: data.into(), changes: Box::new(changes.clone()) }),
    }
}

/// What is done about data that changed.
fn accepted(data: &Path, record: &SampleRecord, changes: &DataChanges) -> String {
    let (before, left) = (record.validation_len(), changes.held_out);
    let validation = if left == before { format!("the {before}") } else { format!("{left} of the {before}") };
    let new = match changes.new_in_validation {
        0 => String::new(),
        new => format!(" and on {new} new ones of the validation split"),
    };
    format!(
        "{}: the data changed: {changes}. The split of the run is kept: it is measured on {validation} validation images \
         that it had{new}, and {} new images are trained on",
        data.display(),
        changes.new_in_training
    )
}

/// Which classes the labels of a data set are to be indices of.
pub(crate) enum Classes<'a> {
    /// Those of the set.
    Own,
    /// These.
    Exactly(&'a [String]),
    /// Those of the set, in this order if it has exactly these.
    InOrder(&'a [String]),
}

pub(crate) fn open_data(settings: &RunSettings, seed: u64, classes: Classes) -> Result<Splits, TrainError> {
    let given = |names: &[String]| Some(names.to_vec()).filter(|names| !names.is_empty());
    let (classes, class_order) = match classes {
        Classes::Own => (None, None),
        Classes::Exactly(names) => (given(names), None),
        Classes::InOrder(names) => (None, given(names)),
    };
    let options = OpenOptions {
        validation: settings.validation.as_deref().map_or(Validation::Automatic, Validation::from_argument),
        validation_fraction: settings.validation_fraction,
        fraction: settings.fraction,
        seed,
        classes,
        class_order,
        ..OpenOptions::default()
    };
    Ok(dataset::open(&settings.data, &options)?)
}

/// A model by name, or what to do about a name that is none.
pub(crate) fn named_variant(name: &str) -> Result<Variant, TrainError> {
    vit_models::variant(name).ok_or_else(|| {
        TrainError::Unsuitable(format!(
            "there is no model named `{name}`; `vit models` lists them, and the forms N/4@32 and \
             vit_nano_patch4_32 give any patch and image size"
        ))
    })
}

fn named(name: &str) -> Result<Config, TrainError> {
    let variant = named_variant(name)?;
    let Variant { name, architecture, mut preprocessing, .. } = variant;
    preprocessing.image_size = architecture.image_size();
    Ok(Config { name: Some(name), architecture, preprocessing, labels: vec![], problem_type: ProblemType::default() })
}

/// Below how many pixels a model sees the whole picture.
const SMALL: usize = 128;

/// Patch and image size of the usual model for pictures whose shorter side is below a limit. Always 64 patches: enough to
/// see by, few enough for a laptop. Their mean answers: in short training that learns faster than a class token.
const USUAL: [(usize, &str); 3] =
    [(48, "vit_pico_patch4_gap_32"), (96, "vit_pico_patch8_gap_64"), (usize::MAX, "vit_pico_patch16_gap_128")];

/// The model for someone who named none.
fn usual_model(samples: &dyn Samples) -> Result<Config, TrainError> {
    // A few pictures from all over the set say enough about its size.
    let stride = samples.len().div_ceil(25).max(1);
    let mut sides: Vec<usize> = (0..samples.len())
        .step_by(stride)
        .filter_map(|index| samples.image(index).ok())
        .map(|image| image.width().min(image.height()))
        .collect();
    sides.sort_unstable();
    let middle = sides.get(sides.len() / 2).copied().unwrap_or(0);
    let name = USUAL.iter().find(|(limit, _)| middle < *limit).map_or(USUAL[2].1, |(_, name)| name);
    named(name)
}
