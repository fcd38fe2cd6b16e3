//! What a run begins with: the data set opened, the model chosen or adapted, the recipe made to fit both. Everything
//! that was decided on the way is in its report, and what a resumed run needs again is in [`RunSettings`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vit_data::Samples;
use vit_data::dataset::{self, Dataset, OpenOptions, Report, Splits, Validation};
use vit_models::weights::Weights;
use vit_models::{Architecture, Changes, Checkpoint, Config, Mode, OpenOptions as CheckpointOptions, Variant};

use crate::colours;
use crate::error::TrainError;
use crate::objective::Loss;
use crate::recipe::{Normalise, Recipe, Start, Teaching};

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
    /// Go on past steps whose loss is not finite.
    pub skip_non_finite: bool,
    /// How precisely the device computes, as `--precision` names it.
    pub precision: String,
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
    /// What was found in the data set.
    pub data_report: Report,
    /// What was decided about the model and the recipe, one line each.
    pub report: Vec<String>,
}

/// The first weights of a model from scratch.
fn first_weights(architecture: &Architecture, recipe: &Recipe) -> Result<FirstWeights, TrainError> {
    match (architecture, recipe.model.start) {
        (Architecture::Vit(vit), Start::Mimetic) => Ok(FirstWeights::Given(vit.mimetic(recipe.seed)?)),
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
    pub fn resume(settings: RunSettings, recipe: Recipe, config: Config) -> Result<Setup, TrainError> {
        let splits = open_data(&settings, recipe.seed, Classes::Exactly(&config.labels))?;
        Self::finish(settings, recipe, config, FirstWeights::Random, splits, vec![], Origin::Run)
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
        let Splits { train, validation, report: data_report, .. } = splits;
        config.labels = train.classes().to_vec();
        if origin != Origin::Run {
            let model = config.name.as_deref().unwrap_or(&settings.model);
            report.extend(recipe.leave_out_unfollowed(model, &config.architecture, origin == Origin::Scratch)?);
        }
        recipe.apply_to(&mut config.architecture);
        if train.is_multi_label() && recipe.objective.loss == Loss::Softmax {
            recipe.objective.loss = Loss::Sigmoid;
            report.push("objective.loss: sigmoid, since pictures have several labels".into());
        }
        if recipe.objective.distillation == Teaching::None && !recipe.objective.teacher.is_empty() {
            return Err(TrainError::Unsuitable(format!(
                "objective.teacher is {}, but objective.distillation is none; set it to hard or soft",
                recipe.objective.teacher
            )));
        }
        if train.classes().len() < 2 && recipe.objective.loss == Loss::Softmax {
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
        Ok(Setup { settings, recipe, config, weights, train, validation, data_report, report })
    }

    /// The text of `config.toml`: the whole recipe, then what else the run depends on.
    pub fn to_toml(&self) -> String {
        let settings = toml::to_string(&self.settings).unwrap_or_default();
        format!("{}\n[run]\n{settings}", self.recipe.to_toml())
    }

    /// Reads what [`Setup::to_toml`] wrote.
    pub fn parse_toml(text: &str, path: &Path) -> Result<(RunSettings, Recipe), TrainError> {
        let fail = |what: String| TrainError::Config { path: path.into(), what };
        let mut table: toml::Table = toml::from_str(text).map_err(|e| fail(e.message().to_string()))?;
        let run = table.remove("run").ok_or_else(|| fail("the section [run] is missing".into()))?;
        let settings = run.try_into().map_err(|e: toml::de::Error| fail(format!("[run]: {}", e.message())))?;
        let recipe = Recipe::parse(&table.to_string()).map_err(|e| fail(e.to_string()))?;
        Ok((settings, recipe))
    }
}

/// Which classes the labels of a data set are to be indices of.
enum Classes<'a> {
    /// Those of the set.
    Own,
    /// These.
    Exactly(&'a [String]),
    /// Those of the set, in this order if it has exactly these.
    InOrder(&'a [String]),
}

fn open_data(settings: &RunSettings, seed: u64, classes: Classes) -> Result<Splits, TrainError> {
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
    Ok(Config { name: Some(name), architecture, preprocessing, labels: vec![] })
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
