//! Training from Rust.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use vit_data::Samples;
use vit_data::loader::UnreadableLimit;
use vit_graph::device::Device;
pub use vit_train::{Best, Clock, Finished, MetricsRow, Observer, Progress, Recipe, TrainError};
use vit_train::{
    ChangedData, Existing, Launch, ModelChoice, Processes, RunConfig, RunFolder, RunSettings, Setup, ShardedState,
    Snapshot, TrainerOptions,
};

use crate::{DeviceChoice, DeviceOptions, Error, Model, ModelOptions};

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
        self.prepare(folder)?.train(observer, stop)
    }

    /// Opens the data and the model and creates the run's folder: what is wrong with them is an error here, before the run
    /// begins.
    pub fn prepare(self, folder: impl AsRef<Path>) -> Result<PreparedRun, Error> {
        let folder = folder.as_ref();
        let setup = self.setup()?;
        let device = self.device.open()?;
        let threads = self.device.threads.map(|n| n as u32);
        let launch = Launch { device: device.id(), threads, ..Launch::default() };
        let existing = if self.overwrite { Existing::Replace } else { Existing::Refuse };
        let run = RunFolder::create(folder, &setup.to_toml(&launch), existing).map_err(TrainError::from)?;
        Ok(PreparedRun { folder: folder.into(), device, setup, run, from: None, options: options(&launch) })
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

/// How a run is carried out in one process.
fn options(launch: &Launch) -> TrainerOptions {
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let minutes = |minutes: f64| Duration::try_from_secs_f64(60.0 * minutes).unwrap_or(Duration::MAX);
    TrainerOptions {
        threads: launch.threads.map_or_else(cores, |threads| threads as usize),
        cache_bytes: launch.cache.unwrap_or(2048) << 20,
        save_every: minutes(launch.save_every.unwrap_or(5.0)),
        recompute: launch.recompute,
        processes: Processes::default(),
        sharded: ShardedState::None,
    }
}

/// The first of `runs/NAME-1`, `runs/NAME-2` … that does not exist, where `NAME` is the dataset's.
pub fn free_folder(data: &Path) -> PathBuf {
    let name = data.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
    let name = name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("run").to_string();
    let numbered = |n: u32| Path::new("runs").join(format!("{name}-{n}"));
    (1..).map(numbered).find(|folder| !folder.exists()).unwrap_or_else(|| numbered(0))
}

/// A run that is ready to begin, or to continue.
pub struct PreparedRun {
    folder: PathBuf,
    device: Arc<dyn Device>,
    setup: Setup,
    run: RunFolder,
    from: Option<Snapshot>,
    options: TrainerOptions,
}

impl PreparedRun {
    /// A run that was stopped, on the device on which it began. It ends with the same bits as if it had not been stopped.
    pub fn resume(folder: impl AsRef<Path>) -> Result<PreparedRun, Error> {
        let folder = folder.as_ref();
        let run = RunFolder::resume(folder).map_err(TrainError::from)?;
        let launch = RunConfig::of(&run)?.launch;
        if run.last().is_empty() {
            return Err(Error::file(folder, "this run was stopped before its first checkpoint; begin it again"));
        }
        let snapshot = run.last().open().map_err(TrainError::from)?.snapshot;
        let mut setup = Setup::resume(&run, &snapshot, ChangedData::Refuse)?;
        let options = options(&launch);
        setup.divide(&options.processes)?;
        let wrong = |what: String| Error::file(folder, what);
        let device = DeviceOptions {
            device: match launch.device.as_str() {
                "" => DeviceChoice::Auto,
                device => device.parse().map_err(wrong)?,
            },
            precision: setup.settings.precision.parse().map_err(wrong)?,
            threads: launch.threads.map(|threads| threads as usize),
        };
        let device = device.open()?;
        Ok(PreparedRun { folder: folder.into(), device, setup, run, from: Some(snapshot), options })
    }

    /// Decisions about the model and the recipe, one line each.
    pub fn report(&self) -> &[String] {
        &self.setup.report
    }

    /// Trains to the end of the recipe, with an observer of the run's progress. The run saves and stops after the step in
    /// which `stop` is set.
    pub fn train(mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<TrainedRun, Error> {
        let (device, setup) = (self.device.as_ref(), &mut self.setup);
        let finished = vit_train::train(device, setup, &self.run, self.from, &self.options, observer, stop)?;
        Ok(TrainedRun { folder: self.folder, report: self.setup.report, finished })
    }
}

/// All rows of a run's metrics, even while it trains.
pub fn metrics(folder: impl AsRef<Path>) -> Result<Vec<MetricsRow>, Error> {
    let rows = RunFolder::open(folder.as_ref()).and_then(|run| run.rows());
    Ok(rows.map_err(TrainError::from)?)
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
