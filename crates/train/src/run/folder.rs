//! The folder of a training run.
//!
//! ```text
//! RUN/config.toml                 the resolved configuration
//! RUN/command.txt                 the command that began the run and the one that resumes it
//! RUN/algorithms.json             the device and its chosen algorithms, on which the bits of results depend
//! RUN/data.txt, data.json         what was read and what was skipped
//! RUN/samples.tsv.zst             every sample with its split, labels and size
//! RUN/metrics.jsonl, metrics.csv  one row per logged step
//! RUN/events.out.tfevents.*       the same rows for TensorBoard
//! RUN/curves.svg, curves.png      the same rows as curves
//! RUN/checkpoints/last, best      model folders; `last` with the optimiser's state
//! ```

mod error;
mod events;
mod log;
mod row;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use vit_graph::device::Algorithms;

pub use error::RunError;
pub use log::MetricsLog;
pub use row::{MetricsRow, columns};

use vit_data::dataset::SampleRecord;
use vit_models::run::{CHECKPOINTS, CONFIG, files_of_model};
use vit_storage::{MirroredFolder, SnapshotSelection, is_url};
use vit_system::{atomic_file, regular_file};

use crate::run::saving::Slot;

const COMMAND: &str = "command.txt";
const DATA: [&str; 2] = ["data.txt", "data.json"];
const ALGORITHMS: &str = "algorithms.json";
const SAMPLES: &str = "samples.tsv.zst";
const ROWS: &str = "metrics.jsonl";
const TABLE: &str = "metrics.csv";
const CURVES: [&str; 2] = ["curves.svg", "curves.png"];
const LOCK: &str = "run.lock";

/// What to do with a run that is already in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Fail.
    Refuse,
    /// Remove the run's files, and only those.
    Replace,
}

/// The folder of one run.
#[derive(Debug)]
pub struct RunFolder {
    /// The folder on this machine.
    path: PathBuf,
    /// The run in remote storage whose copy the folder is.
    mirror: Option<MirroredFolder>,
    /// Held by the process that trains; the system releases it when the process ends.
    _lock: Option<File>,
}

impl RunFolder {
    /// Begins a run with the given configuration. Two processes cannot train into the same folder.
    pub fn create(path: impl Into<PathBuf>, config: &str, existing: Existing) -> Result<RunFolder, RunError> {
        let mut path = path.into();
        let mut mirror = None;
        if is_url(&path) {
            let created = MirroredFolder::create(&path, existing == Existing::Replace);
            match created.map_err(|error| RunError::io(&path, error))? {
                Some(created) => path = mirror.insert(created).local().to_owned(),
                None => return Err(RunError::Exists { path }),
            }
        }
        fs::create_dir_all(&path).map_err(|error| RunError::io(&path, error))?;
        let lock = lock(&path)?;
        let found = files_of_run(&path)?;
        if existing == Existing::Refuse && !found.is_empty() {
            return Err(RunError::Exists { path });
        }
        for item in found {
            let removed = if item.is_dir() { fs::remove_dir_all(&item) } else { fs::remove_file(&item) };
            removed.map_err(|error| RunError::io(&item, error))?;
        }
        let run = RunFolder { path, mirror, _lock: lock };
        let checkpoints = run.path.join(CHECKPOINTS);
        fs::create_dir_all(&checkpoints).map_err(|error| RunError::io(&checkpoints, error))?;
        run.write(CONFIG, config.as_bytes())?;
        Ok(run)
    }

    /// The size of all files in bytes.
    pub fn bytes_on_disk(&self) -> Result<u64, RunError> {
        fn bytes(folder: &Path) -> io::Result<u64> {
            fs::read_dir(folder)?.try_fold(0, |sum, entry| {
                let (path, found) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
                Ok(sum + if found.is_dir() { bytes(&path)? } else { found.len() })
            })
        }
        bytes(&self.path).map_err(|error| RunError::io(&self.path, error))
    }

    /// Opens a run in order to continue training.
    pub fn resume(path: impl Into<PathBuf>) -> Result<RunFolder, RunError> {
        let newest = |names: &[&str]| {
            names.iter().filter(|name| !name.contains(".previous/")).map(|name| name.to_string()).collect()
        };
        let run = RunFolder::open_selected(path.into(), &newest)?;
        Ok(RunFolder { _lock: lock(&run.path)?, ..run })
    }

    /// The run whose folder or checkpoint is at a path.
    pub fn of_model(path: &Path) -> Option<RunFolder> {
        if is_url(path) {
            return path.ancestors().take(4).find_map(|run| RunFolder::open(run).ok());
        }
        let path = std::path::absolute(path).ok().filter(|path| path.exists())?;
        // The folder itself, a checkpoint in it, or a file of a checkpoint.
        let holds = |folder: &&Path| folder.join(CHECKPOINTS).is_dir();
        let run = path
            .ancestors()
            .take(4)
            .find(holds)
            .filter(|run| path == *run || path.starts_with(run.join(CHECKPOINTS)))?;
        RunFolder::open(run).ok()
    }

    /// Opens a run for reading, even while it trains.
    pub fn open(path: impl Into<PathBuf>) -> Result<RunFolder, RunError> {
        RunFolder::open_selected(path.into(), &files_of_model_and_log)
    }

    /// Opens a run. Of one in remote storage, the selected files are copied to this machine.
    fn open_selected(path: PathBuf, selection: SnapshotSelection) -> Result<RunFolder, RunError> {
        let (mut local, mut mirror) = (path.clone(), None);
        if is_url(&path) {
            let opened = MirroredFolder::open(&path, selection).map_err(|error| RunError::io(&path, error))?;
            let Some(opened) = opened else { return Err(RunError::NotARun { path }) };
            local = mirror.insert(opened).local().to_owned();
        }
        if !local.join(CONFIG).is_file() {
            return Err(RunError::NotARun { path });
        }
        Ok(RunFolder { path: local, mirror, _lock: None })
    }

    /// The folder on this machine. Of a run in remote storage, it is a copy that is removed at the end.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path or URL by which the run can be opened.
    pub fn place(&self) -> &Path {
        self.mirror.as_ref().map_or(&self.path, MirroredFolder::url)
    }

    /// The place of the checkpoint in a slot of this run.
    pub fn place_of(&self, slot: &Slot) -> PathBuf {
        slot.path().strip_prefix(&self.path).map_or_else(|_| slot.path().to_owned(), |inside| self.place().join(inside))
    }

    /// Makes the present state of the folder visible in remote storage, if the run is there. Readers see all of it or the
    /// state before.
    pub fn publish(&self) -> Result<(), RunError> {
        match &self.mirror {
            Some(mirror) => mirror.publish().map_err(|error| RunError::io(mirror.url(), error)),
            None => Ok(()),
        }
    }

    /// The newest checkpoint.
    pub fn last(&self) -> Slot {
        Slot::new(self.path.join(CHECKPOINTS).join("last"))
    }

    /// The checkpoint with the best metric.
    pub fn best(&self) -> Slot {
        Slot::new(self.path.join(CHECKPOINTS).join("best"))
    }

    /// The text of `config.toml`.
    pub fn config(&self) -> Result<String, RunError> {
        let path = self.path.join(CONFIG);
        regular_file::read_to_string(&path).map_err(|error| RunError::io(&path, error))
    }

    /// Writes a script that resumes the run, with the command that began it.
    pub fn write_command(&self, script: &str) -> Result<(), RunError> {
        self.write(COMMAND, format!("{}\n", script.trim_end()).as_bytes())
    }

    /// The record of the run's samples, if there is one.
    pub fn samples(&self) -> Result<Option<SampleRecord>, RunError> {
        let path = self.path.join(SAMPLES);
        match regular_file::open(&path).and_then(SampleRecord::read) {
            Ok(record) => Ok(Some(record)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RunError::io(&path, error)),
        }
    }

    /// Writes the record of the run's samples.
    pub fn write_samples(&self, record: &SampleRecord) -> Result<(), RunError> {
        let mut table = Vec::new();
        record.write(&mut table).map_err(|error| RunError::io(&self.path.join(SAMPLES), error))?;
        self.write(SAMPLES, &table)
    }

    /// Writes the report on the data, as text and as JSON.
    pub fn write_data_report(&self, text: &str, json: &serde_json::Value) -> Result<(), RunError> {
        self.write(DATA[0], text.as_bytes())?;
        self.write(DATA[1], format!("{json:#}\n").as_bytes())
    }

    /// The JSON of [`RunFolder::write_data_report`]; null if there is none.
    pub fn data_report(&self) -> serde_json::Value {
        let text = fs::read_to_string(self.path.join(DATA[1])).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Writes the training curves.
    pub fn write_curves(&self, svg: &str, png: &[u8]) -> Result<(), RunError> {
        self.write(CURVES[0], svg.as_bytes())?;
        self.write(CURVES[1], png)
    }

    /// Writes the algorithms that the bits of the run's results depend on.
    pub fn write_algorithms(&self, algorithms: &Algorithms) -> Result<(), RunError> {
        let Algorithms { environment, chosen } = algorithms;
        let json = serde_json::json!({"environment": environment, "chosen": chosen});
        self.write(ALGORITHMS, format!("{json:#}\n").as_bytes())
    }

    /// The content of [`RunFolder::write_algorithms`], if there is any.
    pub fn algorithms(&self) -> Result<Option<Algorithms>, RunError> {
        #[derive(serde::Deserialize)]
        struct AlgorithmsFile {
            environment: BTreeMap<String, String>,
            chosen: BTreeMap<String, String>,
        }
        let path = self.path.join(ALGORITHMS);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RunError::io(&path, error)),
        };
        let AlgorithmsFile { environment, chosen } =
            serde_json::from_str(&text).map_err(|error| RunError::io(&path, error.into()))?;
        Ok(Some(Algorithms { environment, chosen }))
    }

    /// All rows of the log, without a last line that a killed process left incomplete.
    pub fn rows(&self) -> Result<Vec<MetricsRow>, RunError> {
        let path = self.path.join(ROWS);
        match regular_file::read_to_string(&path) {
            Ok(text) => Ok(text.lines().filter_map(MetricsRow::from_json).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
            Err(error) => Err(RunError::io(&path, error)),
        }
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), RunError> {
        let path = self.path.join(name);
        atomic_file::write(&path, content).map_err(|error| RunError::io(&path, error))
    }
}

/// The files of a run for reading: all but old checkpoints and the state of optimisers.
fn files_of_model_and_log(names: &[&str]) -> Vec<String> {
    let of_model = files_of_model(names);
    let is_read = |name: &&&str| !name.starts_with(CHECKPOINTS) || of_model.iter().any(|chosen| chosen == *name);
    names.iter().filter(is_read).map(|name| name.to_string()).collect()
}

/// The files and folders of a run in a folder.
fn files_of_run(folder: &Path) -> Result<Vec<PathBuf>, RunError> {
    let names = [&[CONFIG, COMMAND, ALGORITHMS, SAMPLES, ROWS, TABLE, CHECKPOINTS], &DATA[..], &CURVES[..]].concat();
    let mut found: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect();
    found.extend(events::files(folder).map_err(|error| RunError::io(folder, error))?);
    Ok(found)
}

/// Locks a folder against a second process; without effect on file systems that have no locks (some network ones).
fn lock(folder: &Path) -> Result<Option<File>, RunError> {
    let path = folder.join(LOCK);
    let file = File::create(&path).map_err(|error| RunError::io(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(RunError::Busy { path: folder.into() }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_not_overwritten_unless_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("notes.md"), "mine").unwrap();
        let run = RunFolder::create(&path, "rate = 0.1\n", Existing::Refuse).unwrap();
        run.write_command("vit resume run").unwrap();
        run.write_data_report("12 skipped", &serde_json::json!({"skipped": 12})).unwrap();
        fs::write(path.join("checkpoints/kept"), "").unwrap();
        drop(run);
        assert!(matches!(RunFolder::create(&path, "", Existing::Refuse), Err(RunError::Exists { .. })));
        assert_eq!(RunFolder::open(&path).unwrap().config().unwrap(), "rate = 0.1\n");

        let run = RunFolder::create(&path, "rate = 0.2\n", Existing::Replace).unwrap();
        assert_eq!(run.config().unwrap(), "rate = 0.2\n");
        assert_eq!(fs::read_to_string(path.join("notes.md")).unwrap(), "mine");
        assert!(!path.join("command.txt").exists() && !path.join("checkpoints/kept").exists());
    }

    #[test]
    fn only_one_process_trains_into_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = RunFolder::create(folder.path(), "", Existing::Refuse).unwrap();
        assert!(matches!(RunFolder::resume(folder.path()), Err(RunError::Busy { .. })));
        assert!(RunFolder::open(folder.path()).is_ok());
        drop(first);
        assert!(RunFolder::resume(folder.path()).is_ok());
    }

    #[test]
    fn a_folder_without_a_run_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = RunFolder::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("config.toml"), "{error}");
    }
}
