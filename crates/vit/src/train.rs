//! Training from Rust.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use vit_data::Samples;
use vit_data::loader::UnreadableLimit;
pub use vit_train::{Best, Finished, Observer, Progress, Recipe, TrainError};
use vit_train::{
    Existing, Launch, ModelChoice, Processes, RunFolder, RunSettings, Setup, ShardedState, TrainerOptions,
};

use crate::{DeviceOptions, Error, Model, ModelOptions};

/// A training run.
///
/// ```no_run
/// use vit::{Image, ModelOptions, Trainer};
///
/// let run = Trainer::new("photos").model("Ti/16").set("length=20 epochs").train("runs/photos")?;
/// let mut model = run.model(&ModelOptions::new())?;
/// println!("{}", model.classify(&Image::open("cat.jpg")?)?[0].label);
/// # Ok::<(), vit::Error>(())
/// ```
#[derive(Clone)]
pub struct Trainer {
    data: TrainingData,
    model: StartingModel,
    recipe: Option<Recipe>,
    settings: Vec<String>,
    image_size: Option<[usize; 2]>,
    validation: Option<PathBuf>,
    validation_fraction: f64,
    device: DeviceOptions,
    overwrite: bool,
}

#[derive(Clone)]
enum TrainingData {
    Path(PathBuf),
    Samples(Arc<dyn Samples>),
}

#[derive(Clone)]
enum StartingModel {
    Default,
    Named(String),
    Checkpoint(PathBuf),
}

impl Trainer {
    /// Trains on a dataset on disk: class folders, tar shards, Parquet, a manifest, CIFAR binaries or MNIST files.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self::on(TrainingData::Path(data.into()))
    }

    /// Trains on samples of the program. The run is recorded like any other, but cannot be resumed from its folder alone.
    pub fn on_samples(samples: Arc<dyn Samples>) -> Self {
        Self::on(TrainingData::Samples(samples))
    }

    fn on(data: TrainingData) -> Self {
        Trainer {
            data,
            model: StartingModel::Default,
            recipe: None,
            settings: Vec::new(),
            image_size: None,
            validation: None,
            validation_fraction: 0.1,
            device: DeviceOptions::new(),
            overwrite: false,
        }
    }

    /// The model to train from scratch, by name, such as `Ti/16` or `resnet18_cifar`. By default one that suits the size of
    /// the images.
    pub fn model(self, name: impl Into<String>) -> Self {
        Self { model: StartingModel::Named(name.into()), ..self }
    }

    /// Fine-tunes a checkpoint folder, a weights file or the best model of another run.
    pub fn finetune(self, checkpoint: impl Into<PathBuf>) -> Self {
        Self { model: StartingModel::Checkpoint(checkpoint.into()), ..self }
    }

    /// The recipe. By default `small`, or `finetune` for a checkpoint.
    pub fn recipe(self, recipe: Recipe) -> Self {
        Self { recipe: Some(recipe), ..self }
    }

    /// Changes a setting of the recipe, as in `length=20 epochs` or `schedule.rate=3e-4`.
    pub fn set(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// Height and width of the model's input.
    pub fn image_size(self, size: [usize; 2]) -> Self {
        Self { image_size: Some(size), ..self }
    }

    /// The dataset, or the split (`val`, `test`) of this one, to evaluate on.
    pub fn validation(self, data: impl Into<PathBuf>) -> Self {
        Self { validation: Some(data.into()), ..self }
    }

    /// The share of each class to evaluate on if the dataset has no split for it; by default 0.1.
    pub fn validation_fraction(self, share: f64) -> Self {
        Self { validation_fraction: share, ..self }
    }

    /// The device and its precision.
    pub fn device(self, device: DeviceOptions) -> Self {
        Self { device, ..self }
    }

    /// Replaces a run that is in the folder already.
    pub fn overwrite(self, overwrite: bool) -> Self {
        Self { overwrite, ..self }
    }

    /// Trains to the end of the recipe. `folder` gets the run: configuration, measurements, checkpoints and curves.
    pub fn train(self, folder: impl AsRef<Path>) -> Result<TrainedRun, Error> {
        self.train_observed(folder, &mut (), &AtomicBool::new(false))
    }

    /// The same with an observer of the run's progress. The run saves and stops after the step in which `stop` is set.
    pub fn train_observed(
        self,
        folder: impl AsRef<Path>,
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<TrainedRun, Error> {
        let folder = folder.as_ref();
        let mut setup = self.setup()?;
        let device = self.device.open()?;
        let threads = self.device.threads;
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let options = TrainerOptions {
            threads: threads.unwrap_or_else(cores),
            cache_bytes: 2 << 30,
            save_every: Duration::from_secs(300),
            recompute: false,
            processes: Processes::default(),
            sharded: ShardedState::None,
        };
        let launch = Launch { device: device.id(), threads: threads.map(|n| n as u32), ..Launch::default() };
        let existing = if self.overwrite { Existing::Replace } else { Existing::Refuse };
        let run = RunFolder::create(folder, &setup.to_toml(&launch), existing).map_err(TrainError::from)?;
        let finished = vit_train::train(device.as_ref(), &mut setup, &run, None, &options, observer, stop)?;
        Ok(TrainedRun { folder: folder.into(), report: setup.report, finished })
    }

    fn setup(&self) -> Result<Setup, Error> {
        let (name, choice, recipe) = match &self.model {
            StartingModel::Default => (String::new(), ModelChoice::Usual, "small"),
            StartingModel::Named(name) => (name.clone(), ModelChoice::Named(name), "small"),
            StartingModel::Checkpoint(path) => (path.display().to_string(), ModelChoice::Checkpoint(path), "finetune"),
        };
        let mut recipe = match &self.recipe {
            Some(recipe) => recipe.clone(),
            None => Recipe::named(recipe).map_err(TrainError::from)?,
        };
        recipe.set_all(self.settings.iter().map(String::as_str)).map_err(TrainError::from)?;
        let settings = RunSettings {
            model: name,
            data: match &self.data {
                TrainingData::Path(path) => {
                    vit_data::dataset::absolute(path).map_err(|error| Error::file(path, error))?
                }
                TrainingData::Samples(_) => PathBuf::from("samples of the program"),
            },
            validation: self.validation.clone(),
            template: None,
            validation_fraction: self.validation_fraction,
            fraction: 1.0,
            max_unreadable: UnreadableLimit::default().share,
            skip_non_finite: false,
            precision: self.device.precision.to_string(),
        };
        let mut setup = match &self.data {
            TrainingData::Path(_) => Setup::new(choice, self.image_size, settings, recipe)?,
            TrainingData::Samples(samples) => {
                Setup::of_samples(samples.clone(), choice, self.image_size, settings, recipe)?
            }
        };
        if setup.settings.model.is_empty() {
            setup.settings.model = setup.config.name.clone().unwrap_or_default();
        }
        Ok(setup)
    }
}

/// A run that ended.
#[derive(Debug, Clone)]
pub struct TrainedRun {
    /// Its folder.
    pub folder: PathBuf,
    /// Decisions about the model and the recipe, one line each.
    pub report: Vec<String>,
    /// How it ended.
    pub finished: Finished,
}

impl TrainedRun {
    /// The best evaluation, if there were images to evaluate on.
    pub fn best(&self) -> Option<&Best> {
        self.finished.position.best.as_ref()
    }

    /// Opens the best model, or the last if none was evaluated.
    pub fn model(&self, options: &ModelOptions) -> Result<Model, Error> {
        Model::open_with(&self.folder, options)
    }
}
