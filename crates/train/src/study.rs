//! A study: several models, each trained on several fractions of a dataset with the same number of steps, with a table and a
//! plot of the results. Every run is an ordinary run folder. An interrupted study continues, and models and fractions can be
//! added to a finished one.
//!
//! ```text
//! STUDY/study.toml                the settings that all runs share
//! STUDY/runs/MODEL-FRACTION/      a run, and its result.json when it is finished
//! STUDY/results.csv, results.md   one row per run; one row per model
//! STUDY/results.svg, results.png  accuracy against training images
//! ```

mod report;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vit_graph::cost::Cost;
use vit_models::{Mode, ProblemType, Variant};
use vit_system::{atomic_file, regular_file};

use crate::error::TrainError;
use crate::recipe::{Recipe, Span, Teaching};
use crate::run::folder::{Existing, RunError, RunFolder, columns};
use crate::run::saving::Snapshot;
use crate::run::setup::{ChangedData, Launch, ModelChoice, RunSettings, Setup, named_variant};
use crate::run::trainer::Finished;
pub use report::StudyTable;

const SETTINGS: &str = "study.toml";
const RUNS: &str = "runs";
const RESULT: &str = "result.json";

/// The plan of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyPlan {
    /// The models, by name.
    pub models: Vec<String>,
    /// The fractions of the training images, each above 0 and at most 1.
    pub fractions: Vec<f64>,
    /// The teacher of models with a distillation head, one of the study's models; by default its largest convolutional one.
    pub teacher: Option<String>,
    /// The settings of all runs; model and fraction are replaced.
    pub settings: RunSettings,
    /// The recipe of all runs.
    pub recipe: Recipe,
    /// Settings of single models, in addition: model and `KEY=VALUE`.
    pub own: Vec<(String, String)>,
    /// How the study was started.
    pub launch: Launch,
}

/// One run of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyRun {
    /// The model's name.
    pub model: String,
    /// The model's family.
    pub family: String,
    /// The fraction of the training images.
    pub fraction: f64,
    /// Its folder.
    pub folder: PathBuf,
    /// Its recipe.
    pub recipe: Recipe,
    /// Its teacher.
    pub teacher: Option<String>,
    /// Settings of the recipe without effect on the model, one line each.
    pub left_out: Vec<String>,
}

/// The result of one run: `result.json` of its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyResult {
    /// The model's name.
    pub model: String,
    /// The model's family.
    pub family: String,
    /// Its teacher.
    pub teacher: Option<String>,
    /// Its parameters.
    pub parameters: u64,
    /// The fraction of the training images.
    pub fraction: f64,
    /// The number of training images.
    #[serde(rename = "pictures")]
    pub images: usize,
    /// Steps taken.
    pub steps: u64,
    /// Images seen, with repetitions.
    pub seen: u64,
    /// Seconds of training and evaluation, over all sessions.
    pub seconds: f64,
    /// The metric of the score: `val/top1`, or `val/map` for images with several labels.
    pub metric: String,
    /// The score after the last step.
    pub score: f64,
    /// The validation loss after the last step.
    pub loss: f64,
}

impl StudyResult {
    /// The usual name of the metric.
    pub fn metric_name(&self) -> &str {
        match self.metric.as_str() {
            "val/top1" => "top-1",
            "val/map" => "mAP",
            other => other,
        }
    }
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

/// A study in its folder.
pub struct Study {
    path: PathBuf,
    title: String,
    settings: RunSettings,
    launch: Launch,
    runs: Vec<StudyRun>,
}

impl Study {
    /// Begins a study in a folder, or continues the one in it.
    pub fn open(path: &Path, plan: StudyPlan) -> Result<Study, TrainError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let runs = plan.runs(&path)?;
        let file = |path: &Path| {
            let path = path.to_path_buf();
            move |error: std::io::Error| TrainError::Config { path, what: error.to_string() }
        };
        fs::create_dir_all(path.join(RUNS)).map_err(file(&path))?;
        let (settings, text) = (path.join(SETTINGS), plan.to_toml());
        match regular_file::read_to_string(&settings) {
            Ok(before) if normalised(&before) != normalised(&text) => {
                let (was, is) = first_difference(&normalised(&before), &normalised(&text));
                let what = format!(
                    "this study was begun with other settings (`{was}`, now `{is}`), so its runs cannot be compared \
                     with new ones; choose another folder"
                );
                return Err(TrainError::Config { path: settings, what });
            }
            Ok(_) => {}
            Err(_) => atomic_file::write(&settings, text.as_bytes()).map_err(file(&settings))?,
        }
        let data = plan.settings.data.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let title = format!("{data}: {} of {} images for every model", plan.recipe.length, plan.recipe.batch);
        Ok(Study { path, title, settings: plan.settings, launch: plan.launch, runs })
    }

    /// Its runs in their order: teachers come before their students.
    pub fn runs(&self) -> &[StudyRun] {
        &self.runs
    }

    /// The result of a run, if it is finished.
    pub fn result(&self, run: &StudyRun) -> Result<Option<StudyResult>, TrainError> {
        let path = run.folder.join(RESULT);
        let Ok(text) = regular_file::read_to_string(&path) else { return Ok(None) };
        let unreadable = |e: serde_json::Error| TrainError::Config { path: path.clone(), what: e.to_string() };
        serde_json::from_str(&text).map(Some).map_err(unreadable)
    }

    /// Begins a run, or continues it.
    pub fn begin(&self, run: &StudyRun) -> Result<BegunRun, TrainError> {
        let there = match RunFolder::resume(&run.folder) {
            Ok(folder) => Some(folder).filter(|folder| !folder.last().is_empty()),
            Err(RunError::NotARun { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(folder) = there {
            let snapshot = folder.last().open()?.snapshot;
            let setup = Setup::resume(&folder, &snapshot, ChangedData::Refuse)?;
            return Ok(BegunRun { setup, folder, from: Some(snapshot) });
        }
        let settings = RunSettings { model: run.model.clone(), fraction: run.fraction, ..self.settings.clone() };
        let setup = Setup::new(ModelChoice::Named(&run.model), None, settings, run.recipe.clone())?;
        if setup.validation.is_none() {
            return Err(TrainError::Unsuitable(
                "a study needs images to evaluate on, and this dataset has no validation or test split; name one"
                    .into(),
            ));
        }
        let folder = RunFolder::create(&run.folder, &setup.to_toml(&self.launch), Existing::Replace)?;
        Ok(BegunRun { setup, folder, from: None })
    }

    /// Writes the result of a finished run.
    pub fn finish(&self, run: &StudyRun, begun: &BegunRun, finished: &Finished) -> Result<StudyResult, TrainError> {
        let position = &finished.position;
        let path = run.folder.join(RESULT);
        let metric = match begun.setup.config.problem_type {
            ProblemType::SingleLabel => columns::VAL_TOP1,
            ProblemType::MultiLabel => columns::VAL_MAP,
        };
        let rows = begun.folder.rows()?;
        let last = rows.iter().rev().find(|row| row.step == position.step && row.get(metric).is_some());
        let Some(last) = last else {
            return Err(TrainError::Config {
                path,
                what: "the run was not evaluated after its last step; remove its folder and run the study again".into(),
            });
        };
        if !last.values.iter().all(|(_, value)| value.is_finite()) {
            let what = "the validation after the last step is NaN or infinite; lower schedule.rate".into();
            return Err(TrainError::Config { path: run.folder.clone(), what });
        }
        let graph = begun.setup.config.architecture.build(1, Mode::Inference)?;
        let result = StudyResult {
            model: run.model.clone(),
            family: run.family.clone(),
            teacher: run.teacher.clone(),
            parameters: Cost::of(&graph).parameters(),
            fraction: run.fraction,
            images: begun.setup.data_report.samples.train,
            steps: position.step,
            seen: position.images,
            seconds: position.seconds,
            metric: metric.into(),
            score: last.get(metric).unwrap_or(f64::NAN),
            loss: last.get(columns::VAL_LOSS).unwrap_or(f64::NAN),
        };
        let text = serde_json::to_string_pretty(&result).unwrap_or_default();
        let failed = |error: std::io::Error| TrainError::Config { path: path.clone(), what: error.to_string() };
        atomic_file::write(&path, format!("{text}\n")).map_err(failed)?;
        Ok(result)
    }

    /// All results so far, in the order of the runs.
    pub fn results(&self) -> Result<Vec<StudyResult>, TrainError> {
        let results = self.runs.iter().map(|run| self.result(run));
        results.filter_map(Result::transpose).collect()
    }

    /// Writes the tables and the plot of all results so far; returns the files' names and the table.
    pub fn report(&self) -> Result<([&'static str; 4], StudyTable), TrainError> {
        report::write(&self.path, &self.title, &self.results()?)
    }
}

impl StudyPlan {
    /// The settings that runs must share to be comparable.
    fn to_toml(&self) -> String {
        let settings = RunSettings { model: String::new(), fraction: 1.0, ..self.settings.clone() };
        let own = self.own.iter().map(|(model, setting)| toml::Value::String(format!("{model}:{setting}")));
        let mut study = toml::Table::new();
        study.insert("teacher".into(), self.teacher.clone().unwrap_or_default().into());
        study.insert("own".into(), toml::Value::Array(own.collect()));
        let [settings, study] = [toml::to_string(&settings), toml::to_string(&study)].map(Result::unwrap_or_default);
        format!("{}\n[run]\n{settings}\n[study]\n{study}", self.recipe.to_toml())
    }

    /// All runs, smaller fractions first, teachers before students.
    fn runs(&self, path: &Path) -> Result<Vec<StudyRun>, TrainError> {
        let wrong = |what: String| Err(TrainError::Unsuitable(what));
        if !matches!(self.recipe.length, Span::Steps(_)) {
            return wrong(format!(
                "length is {}, and that is more steps for more images; a study gives every run the same number of \
                 steps, such as length=4000 steps",
                self.recipe.length
            ));
        }
        if let Some(fraction) = self.fractions.iter().find(|f| !(**f > 0.0 && **f <= 1.0)) {
            return wrong(format!("a fraction of {fraction} of the images; fractions are above 0 and at most 1"));
        }
        let mut variants: Vec<Variant> = Vec::new();
        for name in &self.models {
            let variant = named_variant(name)?;
            if variants.iter().any(|v| v.name == variant.name) {
                return wrong(format!("the model {} is in the study twice", variant.name));
            }
            variants.push(variant);
        }
        if let Some((model, _)) = self.own.iter().find(|(model, _)| self.models.iter().all(|name| name != model)) {
            return wrong(format!("there is a setting for {model}, which is not in the study"));
        }
        let teacher = self.teacher(&variants)?;
        let mut fractions = self.fractions.clone();
        fractions.sort_by(f64::total_cmp);
        fractions.dedup();
        // Stable: otherwise in the given order.
        let mut order: Vec<usize> = (0..variants.len()).collect();
        order.sort_by_key(|&index| variants[index].architecture.follows_teacher());
        let mut runs = Vec::new();
        for fraction in fractions {
            for &index in &order {
                let (variant, given) = (&variants[index], &self.models[index]);
                let folder = |model: &str| path.join(RUNS).join(format!("{model}-{fraction}"));
                let followed = teacher.filter(|_| variant.architecture.follows_teacher()).map(|t| t.name.clone());
                let mut recipe = self.recipe.clone();
                if let Some(teacher) = &followed {
                    recipe.objective.teacher = folder(teacher).display().to_string();
                    recipe.objective.distillation = Teaching::Hard;
                }
                let left_out = recipe.leave_out_for_one_of_many(&variant.name, &variant.architecture)?;
                let own = self.own.iter().filter(|(model, _)| model == given).map(|(_, setting)| setting.as_str());
                recipe.set_all(own)?;
                runs.push(StudyRun {
                    model: variant.name.clone(),
                    family: variant.family.into(),
                    fraction,
                    folder: folder(&variant.name),
                    recipe,
                    teacher: followed,
                    left_out,
                });
            }
        }
        Ok(runs)
    }

    /// The teacher of the models with a distillation head, if there are any.
    fn teacher<'a>(&self, variants: &'a [Variant]) -> Result<Option<&'a Variant>, TrainError> {
        let Some(student) = variants.iter().find(|v| v.architecture.follows_teacher()) else { return Ok(None) };
        let able = || variants.iter().filter(|v| !v.architecture.follows_teacher());
        if let Some(name) = &self.teacher {
            let wanted = named_variant(name)?.name;
            let found = able().find(|v| v.name == wanted);
            return found.map(Some).ok_or_else(|| {
                TrainError::Unsuitable(format!(
                    "the teacher {wanted} must be one of the study's models, and no student"
                ))
            });
        }
        let mut largest: Option<(u64, &Variant)> = None;
        for variant in able().filter(|v| v.architecture.tokens().is_none()) {
            let parameters = Cost::of(&variant.architecture.build(1, Mode::Inference)?).parameters();
            if largest.is_none_or(|(most, _)| parameters > most) {
                largest = Some((parameters, variant));
            }
        }
        largest.map(|(_, variant)| Some(variant)).ok_or_else(|| {
            TrainError::Unsuitable(format!(
                "{} follows a teacher, and there is no convolutional model in the study; add one, such as resnet18_cifar",
                student.name
            ))
        })
    }
}

/// The settings in `study.toml` without comments and the recipe's description, in which versions of this library differ.
fn normalised(text: &str) -> String {
    let parse = || {
        let mut table: toml::Table = toml::from_str(text).ok()?;
        let sections = ["run", "study"].into_iter().filter_map(|name| Some((name.to_string(), table.remove(name)?)));
        let sections: toml::Table = sections.collect();
        let recipe = Recipe { about: String::new(), ..Recipe::parse(&table.to_string()).ok()? };
        Some(format!("{}\n{}", toml::to_string(&recipe).ok()?, toml::to_string(&sections).ok()?))
    };
    parse().unwrap_or_else(|| text.to_string())
}

/// The first line that differs between two texts, in both.
fn first_difference(before: &str, now: &str) -> (String, String) {
    let (mut a, mut b) = (before.lines(), now.lines());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return Default::default(),
            (was, is) if was == is => {}
            (was, is) => return (was.unwrap_or_default().to_string(), is.unwrap_or_default().to_string()),
        }
    }
}
