//! A study: a grid of runs (models, datasets, amounts of data, seeds, any setting of a recipe), with tables and figures of the
//! results. Every run is an ordinary run folder. An interrupted study continues, several processes share one, and a finished
//! one can grow.
//!
//! ```text
//! STUDY/study.toml              the study as it was last started
//! STUDY/runs/NAME/              a run, the settings that it was planned with, and its result.json when it is finished
//! STUDY/results.csv             one row per run
//! STUDY/results.md, index.html  tables; tables and figures on one page
//! STUDY/results.svg, .png       accuracy, and for each few-shot accuracy few-shot-N.svg, .png
//! ```

mod data;
mod estimate;
mod file;
mod grid;
mod measure;
mod page;
mod report;
mod result;
mod run;
mod summary;

use std::fs;
use std::path::{Path, PathBuf};

use vit_system::{atomic_file, regular_file};

use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::run::folder::{Existing, RunError, RunFolder};
use crate::run::saving::Snapshot;
use crate::run::setup::{ChangedData, Launch, ModelChoice, RunSettings, Setup, named_variant};
pub(crate) use data::name as data_name;
pub use data::{StudyData, TestImages};
pub use estimate::RunEstimate;
pub use file::{OneOrMany, PretrainStage, StudyFile, StudyModel, StudyProbe};
use grid::{Grid, expand};
pub use report::StudyTable;
pub use result::{PretrainingCost, StudyResult};
pub(crate) use run::slug as file_name;
pub use run::{SampleSize, Stage, StudyRun};
pub use summary::Spread;

const SETTINGS: &str = "study.toml";
const PLANNED: &str = "planned.toml";

/// A study in its folder.
pub struct Study {
    path: PathBuf,
    file: StudyFile,
    launch: Launch,
    grid: Grid,
}

/// The options of a study that its file does not have: they belong to this machine or this call.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyMachine {
    /// Settings of single models, in addition: model and `KEY=VALUE`.
    pub own: Vec<(String, String)>,
    /// The largest share of images that may be unreadable.
    pub max_unreadable: f64,
    /// The precision of all runs.
    pub precision: String,
    /// How the study was started.
    pub launch: Launch,
}

/// A run that may be carried out now, or why not.
pub enum Begun {
    /// It is begun or continued here.
    Here(Box<BegunRun>),
    /// Another process is at it.
    Elsewhere,
    /// It was finished meanwhile.
    Finished,
}

/// A run that was begun.
pub struct BegunRun {
    /// The run's setup.
    pub setup: Setup,
    /// Its folder, locked.
    pub folder: RunFolder,
    /// The snapshot that it continues from.
    pub from: Option<Snapshot>,
}

impl Study {
    /// Plans a study in a folder. Nothing is written; runs that were begun with other settings are an error. `read` finds
    /// recipes by their name or file.
    pub fn open<E: From<TrainError>>(
        path: &Path,
        mut file: StudyFile,
        machine: StudyMachine,
        read: &dyn Fn(&str) -> Result<Recipe, E>,
    ) -> Result<Study, E> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let base = RunSettings {
            model: String::new(),
            data: PathBuf::new(),
            validation: None,
            template: None,
            validation_fraction: file.validation_fraction,
            fraction: 1.0,
            max_unreadable: machine.max_unreadable,
            skip_non_finite: false,
            precision: machine.precision,
        };
        let grid = expand(&path, &file, &machine.own, &base, read)?;
        if file.name.is_empty() {
            file.name = grid::usual_name(&file);
        }
        let study = Study { path, file, launch: machine.launch, grid };
        study.runs().iter().try_for_each(|run| study.check_planned(run))?;
        Ok(study)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its file.
    pub fn file(&self) -> &StudyFile {
        &self.file
    }

    /// Its runs in their order: those that others need come first.
    pub fn runs(&self) -> &[StudyRun] {
        &self.grid.runs
    }

    /// Its datasets, without that of pre-training.
    pub fn data(&self) -> &[StudyData] {
        &self.grid.data
    }

    /// The result of a run, if it is finished.
    pub fn result(&self, run: &StudyRun) -> Result<Option<StudyResult>, TrainError> {
        StudyResult::read(&run.folder)
    }

    /// Whether all runs that it needs are finished.
    pub fn is_ready(&self, run: &StudyRun) -> Result<bool, TrainError> {
        let mut needed = run.needs.iter().filter_map(|name| self.run(name));
        needed.try_fold(true, |ready, run| Ok(ready && self.result(run)?.is_some()))
    }

    fn run(&self, name: &str) -> Option<&StudyRun> {
        self.runs().iter().find(|run| run.name == *name)
    }

    /// The run that pre-trained another one's model.
    fn pretraining_of(&self, run: &StudyRun) -> Option<&StudyRun> {
        run.start.as_deref().and_then(|name| self.run(name))
    }

    /// Refuses to go on with a run that was begun with other settings.
    fn check_planned(&self, run: &StudyRun) -> Result<(), TrainError> {
        let path = run.folder.join(PLANNED);
        let Ok(before) = regular_file::read_to_string(&path) else {
            let begun = ["config.toml", "result.json"].iter().any(|name| run.folder.join(name).exists());
            let what = "the run was begun by an earlier version, which measured other images; choose another folder";
            return if begun {
                Err(TrainError::Config { path: run.folder.clone(), what: what.into() })
            } else {
                Ok(())
            };
        };
        let Some((was, is)) = run::difference(&before, &run.planned()) else { return Ok(()) };
        let what = format!(
            "this run was begun with other settings (`{was}`, now `{is}`), so it cannot be compared with new ones; choose \
             another folder"
        );
        Err(TrainError::Config { path, what })
    }

    /// Begins a run, or continues it.
    pub fn begin(&self, run: &StudyRun) -> Result<Begun, TrainError> {
        let file = |path: &Path| {
            let path = path.to_path_buf();
            move |error: std::io::Error| TrainError::Config { path, what: error.to_string() }
        };
        fs::create_dir_all(&run.folder).map_err(file(&run.folder))?;
        self.check_planned(run)?;
        let (planned, settings) = (run.folder.join(PLANNED), self.path.join(SETTINGS));
        atomic_file::write(&settings, self.file.to_toml().as_bytes()).map_err(file(&settings))?;
        atomic_file::write(&planned, run.planned().as_bytes()).map_err(file(&planned))?;
        let there = match RunFolder::resume(&run.folder) {
            Ok(folder) => Some(folder).filter(|folder| !folder.last().is_empty()),
            Err(RunError::NotARun { .. }) => None,
            Err(RunError::Busy { .. }) => return Ok(Begun::Elsewhere),
            Err(error) => return Err(error.into()),
        };
        // Another process may have finished it while this one looked.
        if self.result(run)?.is_some() {
            return Ok(Begun::Finished);
        }
        if let Some(folder) = there {
            let snapshot = folder.last().open()?.snapshot;
            let setup = Setup::resume(&folder, &snapshot, ChangedData::Refuse)?;
            return Ok(Begun::Here(Box::new(BegunRun { setup, folder, from: Some(snapshot) })));
        }
        let checkpoint = run.finetunes.then(|| PathBuf::from(&run.settings.model));
        let choice = checkpoint.as_deref().map_or(ModelChoice::Named(&run.model), ModelChoice::Checkpoint);
        let setup = Setup::new(choice, run.image_size, run.settings.clone(), run.recipe.clone())?;
        match RunFolder::create(&run.folder, &setup.to_toml(&self.launch), Existing::Replace) {
            Ok(folder) => Ok(Begun::Here(Box::new(BegunRun { setup, folder, from: None }))),
            Err(RunError::Busy { .. }) => Ok(Begun::Elsewhere),
            Err(error) => Err(error.into()),
        }
    }

    /// All results so far that the study is about, in the order of the runs.
    pub fn results(&self) -> Result<Vec<(&StudyRun, StudyResult)>, TrainError> {
        let stage = if self.file.finetune { Stage::Training } else { Stage::Pretraining };
        let of_stage = self.runs().iter().filter(|run| run.stage == stage);
        of_stage.filter_map(|run| Some(self.result(run).transpose()?.map(|result| (run, result)))).collect()
    }

    /// Writes the tables, the figures and the page of all results so far; returns the files' names and the table.
    pub fn report(&self) -> Result<(Vec<String>, StudyTable), TrainError> {
        report::write(self, &self.results()?)
    }
}
