//! Training runs in the background: their metrics as they come, and what they left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use vit::train::{MetricsRow, Observer, PreparedRun, Progress, TrainedRun, free_folder, metrics};
use vit::{DeviceChoice, Precision, Recipe, Trainer};

use crate::error::{Error, exception, exception_of};
use crate::options::{self, ImageSize};
use crate::progress::StatusLine;

/// Trains a model on a dataset, in the background, and returns the run at once.
///
/// ```python
/// >>> run = vit.train("photos/", recipe="small", epochs=20)
/// >>> for row in run:                         # metrics as they come; run.wait() only waits
/// ...     print(row["step"], row.get("train/loss"), row.get("val/top1"))
/// >>> run.best
/// {'metric': 'val/top1', 'value': 0.93, 'step': 1800}
/// >>> model = run.model()
/// >>> pandas.DataFrame(run.metrics).plot("step", "train/loss")
/// ```
///
/// data: a folder with a folder of images for each class, tar shards, Parquet, a table of paths, CIFAR or MNIST files. model: the
/// name of a model to train from scratch, by default a small one that suits the images. finetune: a checkpoint instead. recipe: a
/// name, or a TOML file; by default "small", or "finetune". settings: changes of the recipe, as {"schedule.rate": 3e-4}; epochs,
/// batch and seed are short for three of them. validation: another dataset, or a split of this one ("val", "test"); without, a
/// share validation_fraction of each class. out: the run's folder, by default the first free runs/NAME-N. overwrite: replace a run
/// that is there. precision: by default "bf16" on a GPU and "f32" on the CPU.
///
/// Ctrl-C while a program waits for the run stops it; so does run.stop(). It is saved then, and run.resume() or vit.resume continues
/// to the same bits. At its end the program waits for runs.
#[pyfunction]
#[pyo3(signature = (data, *, model=None, finetune=None, recipe=None, settings=None, epochs=None, batch=None, seed=None, image_size=None, validation=None, validation_fraction=0.1, out=None, overwrite=false, device="auto", precision=None, threads=None))]
#[allow(clippy::too_many_arguments)]
pub fn train(
    py: Python<'_>,
    data: PathBuf,
    model: Option<&str>,
    finetune: Option<PathBuf>,
    recipe: Option<&str>,
    settings: Option<&Bound<'_, PyDict>>,
    epochs: Option<f64>,
    batch: Option<usize>,
    seed: Option<u64>,
    image_size: Option<ImageSize>,
    validation: Option<PathBuf>,
    validation_fraction: f64,
    out: Option<PathBuf>,
    overwrite: bool,
    device: &str,
    precision: Option<&str>,
    threads: Option<usize>,
) -> PyResult<Run> {
    let out = out.unwrap_or_else(|| free_folder(&data));
    let mut trainer = Trainer::new(data).validation_fraction(validation_fraction).overwrite(overwrite);
    trainer = match (model, finetune) {
        (Some(_), Some(_)) => {
            return Err(PyValueError::new_err("give either model, to train from scratch, or finetune, a checkpoint"));
        }
        (Some(model), None) => trainer.model(model),
        (None, Some(checkpoint)) => trainer.finetune(checkpoint),
        (None, None) => trainer,
    };
    if let Some(recipe) = recipe {
        trainer = trainer.recipe(read_recipe(recipe)?);
    }
    let short = [
        epochs.map(|epochs| format!("length={epochs} epochs")),
        batch.map(|batch| format!("batch={batch}")),
        seed.map(|seed| format!("seed={seed}")),
    ];
    trainer = short.into_iter().flatten().fold(trainer, Trainer::set);
    for (key, value) in settings.into_iter().flatten() {
        trainer = trainer.set(format!("{key}={}", setting(&value)?));
    }
    trainer = image_size.into_iter().fold(trainer, |trainer, size| trainer.image_size(size.sides()));
    trainer = validation.into_iter().fold(trainer, Trainer::validation);
    let precision = precision.map(options::precision).transpose()?;
    let device = options::device(device, precision.unwrap_or(Precision::F32), threads)?;
    let prepared = py.detach(|| {
        let device = if precision.is_some() { device } else { device.precision(usual_precision(device.device)) };
        trainer.device(device).prepare(&out)
    });
    Run::begin(out, prepared.map_err(exception)?)
}

/// Continues a run that was stopped, on the device on which it began. It ends with the same bits as if it had not been stopped.
///
/// ```python
/// >>> run = vit.resume("runs/photos-1").wait()
/// ```
#[pyfunction]
pub fn resume(py: Python<'_>, folder: PathBuf) -> PyResult<Run> {
    let prepared = py.detach(|| PreparedRun::resume(&folder)).map_err(exception)?;
    Run::begin(folder, prepared)
}

/// The precision for training where none is chosen.
fn usual_precision(device: DeviceChoice) -> Precision {
    let on_gpu = || vit::DeviceOptions::new().device(device).precision(Precision::Bf16).open().is_ok();
    if device != DeviceChoice::Cpu && on_gpu() { Precision::Bf16 } else { Precision::F32 }
}

fn read_recipe(name: &str) -> PyResult<Recipe> {
    let read = match name.ends_with(".toml") {
        true => Recipe::parse(&std::fs::read_to_string(name)?),
        false => Recipe::named(name),
    };
    read.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The value of a setting as a recipe has it.
fn setting(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_instance_of::<PyString>() {
        return value.extract();
    }
    value.py().import("json")?.call_method1("dumps", (value,))?.extract()
}

/// A training run, made by vit.train and vit.resume. It goes on in the background; iterating over it gives a dict for every row
/// of its metrics, as they come, and ends with the run.
#[pyclass(frozen, module = "vit")]
pub struct Run {
    folder: PathBuf,
    report: Vec<String>,
    shared: Arc<Shared>,
}

/// What the training thread and Python's threads share.
struct Shared {
    state: Mutex<RunState>,
    /// There are more rows, or the run ended.
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Default)]
struct RunState {
    rows: Vec<MetricsRow>,
    notes: Vec<String>,
    progress: Option<Progress>,
    ended: Option<Ended>,
}

impl RunState {
    fn ended(&self) -> Option<Ended> {
        self.ended.clone()
    }
}

#[derive(Clone)]
enum Ended {
    Trained(Arc<TrainedRun>),
    Failed(Arc<vit::Error>),
    Panicked,
}

impl Ended {
    fn result(&self) -> PyResult<&TrainedRun> {
        match self {
            Ended::Trained(run) => Ok(run),
            Ended::Failed(error) => Err(exception_of(error)),
            Ended::Panicked => {
                Err(Error::new_err("training failed unexpectedly; please report this with what was printed"))
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, ended: Ended) {
        self.state().ended = Some(ended);
        self.changed.notify_all();
    }

    /// Waits until `ready` gives something. If a signal's handler raises, as at Ctrl-C, the run stops and is saved first; if that
    /// happens again meanwhile, this no longer waits for it.
    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        line: &mut Option<StatusLine>,
        ready: impl Fn(&RunState) -> Option<T> + Sync,
    ) -> PyResult<T> {
        loop {
            let found = py.detach(|| {
                let state = self.state();
                let waited = self.changed.wait_timeout_while(state, Duration::from_millis(100), |s| ready(s).is_none());
                ready(&waited.unwrap_or_else(PoisonError::into_inner).0)
            });
            // First, or rows that keep coming would leave Ctrl-C to the caller's loop, which cannot stop the run.
            if let Err(interrupt) = py.check_signals() {
                if !self.stop.swap(true, Ordering::Relaxed) {
                    self.wait(py, line, RunState::ended)?;
                }
                return Err(interrupt);
            }
            if let Some(found) = found {
                return Ok(found);
            }
            if let Some(line) = line {
                let text = || self.state().progress.as_ref().map_or("beginning".into(), Progress::to_string);
                line.show(py, text)?;
            }
        }
    }
}

/// Hands on what happens in a run.
struct Watcher(Arc<Shared>);

impl Observer for Watcher {
    fn step(&mut self, progress: &Progress) {
        self.0.state().progress = Some(progress.clone());
    }

    fn recorded(&mut self, row: &MetricsRow) {
        self.0.state().rows.push(row.clone());
        self.0.changed.notify_all();
    }

    fn note(&mut self, message: &str) {
        self.0.state().notes.push(message.into());
    }
}

/// The runs that a program waits for at its end.
static RUNS: Mutex<Vec<(PathBuf, Weak<Shared>)>> = Mutex::new(Vec::new());

/// Waits for the runs that still train, at the end of a program; where Ctrl-C ended it, they stop and are saved.
#[pyfunction]
#[pyo3(name = "_wait_for_runs")]
pub fn wait_for_runs(py: Python<'_>) -> PyResult<()> {
    let runs = std::mem::take(&mut *RUNS.lock().unwrap_or_else(PoisonError::into_inner));
    let last = py.import("sys")?.getattr_opt("last_type")?;
    let interrupted = last.is_some_and(|last| last.is(py.get_type::<PyKeyboardInterrupt>()));
    for run in runs.iter().filter_map(|(_, run)| run.upgrade()) {
        run.stop.fetch_or(interrupted, Ordering::Relaxed);
    }
    for (folder, shared) in runs {
        let Some(shared) = shared.upgrade().filter(|shared| shared.state().ended.is_none()) else { continue };
        let stderr = py.import("sys")?.getattr("stderr")?;
        if !stderr.is_none() {
            let folder = folder.display();
            let what = if interrupted { "stops and is saved" } else { "still trains; Ctrl-C stops and saves it" };
            stderr.call_method1("write", (format!("vit: {folder} {what}\n"),))?;
        }
        shared.wait(py, &mut Some(StatusLine::new(py, None)?), RunState::ended)?;
    }
    Ok(())
}

impl Run {
    fn begin(folder: PathBuf, prepared: PreparedRun) -> PyResult<Run> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, stop: AtomicBool::new(false) });
        let (report, watched) = (prepared.report().to_vec(), shared.clone());
        let work = move || {
            let mut watcher = Watcher(watched.clone());
            let trained = catch_unwind(AssertUnwindSafe(|| prepared.train(&mut watcher, &watched.stop)));
            watched.end(match trained {
                Ok(Ok(run)) => Ended::Trained(run.into()),
                Ok(Err(error)) => Ended::Failed(error.into()),
                Err(_) => Ended::Panicked,
            });
        };
        std::thread::Builder::new().name("vit-train".into()).spawn(work)?;
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|(_, run)| run.strong_count() > 0);
        runs.push((folder.clone(), Arc::downgrade(&shared)));
        Ok(Run { folder, report, shared })
    }

    fn ended(&self) -> Option<Ended> {
        self.shared.state().ended()
    }
}

#[pymethods]
impl Run {
    fn __iter__(slf: Bound<'_, Self>) -> RunIterator {
        RunIterator { shared: slf.get().shared.clone(), next: AtomicUsize::new(0) }
    }

    /// Waits until the run ended, and returns it. Raises the error that ended it.
    ///
    /// progress: always or never show it; by default where somebody watches.
    #[pyo3(signature = (*, progress=None))]
    fn wait<'py>(slf: Bound<'py, Self>, progress: Option<bool>) -> PyResult<Bound<'py, Self>> {
        let (py, shared) = (slf.py(), &slf.get().shared);
        let mut line = Some(StatusLine::new(py, progress)?);
        let ended = shared.wait(py, &mut line, RunState::ended);
        line.map_or(Ok(()), |mut line| line.clear(py))?;
        ended?.result()?;
        Ok(slf)
    }

    /// Stops the run after its current step and saves it; resume() continues it.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wait(py, &mut None, RunState::ended)?.result().map(drop)
    }

    /// Continues the run after it was stopped, as another Run.
    fn resume(&self, py: Python<'_>) -> PyResult<Run> {
        resume(py, self.folder.clone())
    }

    /// Opens the best model so far, or the last if none was evaluated. Arguments are those of vit.open.
    #[pyo3(signature = (**options))]
    fn model<'py>(&self, py: Python<'py>, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        py.import("vit")?.getattr("open")?.call((&self.folder,), options)
    }

    /// All rows of the metrics so far, those before resume() included: a list of dicts, as pandas.DataFrame takes it.
    #[getter]
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let rows = py.detach(|| metrics(&self.folder)).map_err(exception)?;
        rows.iter().map(|row| dict(py, row)).collect()
    }

    /// The run's folder: configuration, metrics, curves, checkpoints.
    #[getter]
    fn folder(&self) -> &Path {
        &self.folder
    }

    /// Decisions about the model and the recipe, one line each.
    #[getter]
    fn report(&self) -> Vec<String> {
        self.report.clone()
    }

    /// Messages of the run so far, as about images that cannot be read.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.shared.state().notes.clone()
    }

    /// Whether it still trains.
    #[getter]
    fn is_running(&self) -> bool {
        self.ended().is_none()
    }

    /// Whether it reached its end; a run that was stopped did not.
    #[getter]
    fn is_complete(&self) -> bool {
        matches!(self.ended(), Some(Ended::Trained(run)) if run.finished.complete)
    }

    /// The best evaluation of a run that ended: a dict of metric, value and step; None if there was none.
    #[getter]
    fn best<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(Ended::Trained(run)) = self.ended() else { return Ok(None) };
        let Some(best) = run.best() else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("metric", &best.metric)?;
        dict.set_item("value", best.value)?;
        dict.set_item("step", best.step)?;
        Ok(Some(dict))
    }

    fn __repr__(&self) -> String {
        let state = self.shared.state();
        let progress = state.progress.as_ref().map_or("beginning".into(), Progress::to_string);
        let what = match &state.ended {
            None => progress,
            Some(Ended::Trained(run)) => {
                let end = if run.finished.complete { "complete" } else { "stopped" };
                format!("{end} after step {}", run.finished.position.step)
            }
            Some(Ended::Failed(error)) => format!("failed, {error}"),
            Some(Ended::Panicked) => "failed".into(),
        };
        format!("Run({}: {what})", self.folder.display())
    }
}

/// The rows of a run, as they come.
#[pyclass(frozen, module = "vit._vit")]
pub struct RunIterator {
    shared: Arc<Shared>,
    next: AtomicUsize,
}

#[pymethods]
impl RunIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let next = self.next.load(Ordering::Relaxed);
        let ready = |state: &RunState| match (state.rows.get(next), &state.ended) {
            (Some(row), _) => Some(Ok(row.clone())),
            (None, Some(ended)) => Some(Err(ended.clone())),
            (None, None) => None,
        };
        match self.shared.wait(py, &mut None, ready)? {
            Ok(row) => {
                self.next.store(next + 1, Ordering::Relaxed);
                dict(py, &row).map(Some)
            }
            Err(ended) => ended.result().map(|_| None),
        }
    }
}

/// A row as a dict of step, epoch and metrics.
fn dict<'py>(py: Python<'py>, row: &MetricsRow) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("step", row.step)?;
    row.epoch.map_or(Ok(()), |epoch| dict.set_item("epoch", epoch))?;
    row.values.iter().try_for_each(|(name, value)| dict.set_item(name, value))?;
    Ok(dict)
}
