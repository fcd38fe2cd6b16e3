//! The images of a dataset that a run held out, so that its model is not evaluated on its training images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vit_data::dataset::{
    Dataset, DatasetError, DatasetFormat, OpenedSplit, ReadOptions, Split, Splits, Validation, open_all, open_split,
};

use crate::error::TrainError;
use crate::run::folder::RunFolder;
use crate::run::setup::{Classes, RunConfig, RunSettings, open_data};

/// The images of a dataset to evaluate on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EvaluatedSplit {
    /// The validation split, else the test split, else what the run held out, else all images.
    #[default]
    Usual,
    /// This split of the dataset, or of the run if the dataset has none.
    Split(Split),
    /// All images.
    All,
}

/// The images that a model is evaluated on.
pub struct EvaluationImages {
    /// The images.
    pub samples: Arc<Dataset>,
    /// The format of their dataset.
    pub format: DatasetFormat,
    /// Which images of the dataset they are, as text.
    pub which: String,
    /// Whether class folders are numbers that mean the classes of these indices.
    pub numbered: bool,
}

/// Opens the images of a dataset that a model, possibly that of a run, is evaluated on.
pub fn open_for_evaluation(
    data: &Path,
    measure: EvaluatedSplit,
    run: Option<&RunFolder>,
    classes: Option<&[String]>,
) -> Result<EvaluationImages, TrainError> {
    let options = ReadOptions::default();
    let asked = match measure {
        EvaluatedSplit::All => return Ok(whole(open_all(data, classes, &options)?, "all images".into())),
        EvaluatedSplit::Usual => None,
        EvaluatedSplit::Split(split) => Some(split),
    };
    let undivided = |error: &DatasetError| matches!(error, DatasetError::NoSplit { found, .. } if found.is_empty());
    let all = match open_split(data, asked, classes, &options) {
        Ok(evaluation) => match evaluation.split {
            Some(split) => return Ok(whole(evaluation, format!("the {split} split"))),
            None => evaluation,
        },
        // The run may have divided a dataset that has no splits.
        Err(error) if undivided(&error) && run.is_some() && asked != Some(Split::Test) => {
            open_all(data, classes, &options)?
        }
        Err(error) => return Err(error.into()),
    };
    let Some(run) = run else { return Ok(whole(all, "all images, since the dataset has no splits".into())) };
    let (config, name) = (RunConfig::of(run)?, run.path().display());
    if config.settings.validation_path().is_some_and(|path| is_same(path, data)) {
        return Ok(whole(all, format!("all images of the dataset that {name} is validated on")));
    }
    let Some(of_run) = splits_of_run(run, data, classes)? else {
        let trained_on = config.settings.data.display();
        return Ok(whole(all, format!("all images: {name} was trained on another dataset ({trained_on})")));
    };
    let (samples, what) = match asked {
        Some(Split::Train) => (Some(of_run.splits.train), "trained on"),
        _ => (of_run.splits.validation, "held out for validation"),
    };
    let Some(samples) = samples.filter(|samples| samples.is_of_the_same_set(&of_run.splits.unused)) else {
        return Err(TrainError::NothingHeldOut {
            data: data.into(),
            run: run.path().into(),
            validation: config.settings.validation_path().map(Path::to_path_buf),
        });
    };
    let which = format!("the images that {name} {what}{}", of_run.note);
    Ok(EvaluationImages { samples, format: all.format, which, numbered: false })
}

fn whole(evaluation: OpenedSplit, which: String) -> EvaluationImages {
    let OpenedSplit { samples, format, numbered, .. } = evaluation;
    EvaluationImages { samples, format, which, numbered }
}

/// The splits into which a run divided its dataset.
pub struct SplitsOfRun {
    /// The splits.
    pub splits: Splits,
    /// A remark about them that ends a sentence, or empty.
    pub note: String,
}

/// A dataset as a run divided it; `None` if the run was trained on neither this dataset nor a copy of it.
pub fn splits_of_run(
    run: &RunFolder,
    data: &Path,
    classes: Option<&[String]>,
) -> Result<Option<SplitsOfRun>, TrainError> {
    let RunConfig { settings, recipe, .. } = RunConfig::of(run)?;
    let trained_on = settings.data.clone();
    let same = is_same(&trained_on, data);
    let record = run.samples()?;
    // A copy can be recognised only by the record, and only if the run divided the dataset itself.
    let divided =
        settings.validation.as_deref().is_none_or(|path| Validation::from_argument(path) == Validation::HeldOut);
    if !same && (record.is_none() || !divided) {
        return Ok(None);
    }
    let mut splits = open_data(
        &RunSettings { data: data.into(), ..settings },
        None,
        recipe.seed,
        classes.map_or(Classes::Own, Classes::Exactly),
    )?;
    let Some(record) = record else {
        let note = " (drawn again as the run drew them, since it has no record of its samples)".into();
        return Ok(Some(SplitsOfRun { splits, note }));
    };
    let changes = record.restore(&mut splits);
    if !same && changes.same < record.len() {
        return Ok(None);
    }
    let note = match (same, changes.is_empty()) {
        (true, true) => String::new(),
        (true, false) => format!(" (the data changed since: {changes})"),
        (false, _) => format!(" ({} has the same names, sizes and labels)", trained_on.display()),
    };
    Ok(Some(SplitsOfRun { splits, note }))
}

/// Whether two paths or patterns mean the same dataset.
fn is_same(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| -> Option<PathBuf> { path.canonicalize().or_else(|_| vit_storage::absolute(path)).ok() };
    real(a).is_some_and(|a| Some(a) == real(b))
}

impl RunSettings {
    /// The dataset for validation, if it is not a split of the training dataset.
    pub fn validation_path(&self) -> Option<&Path> {
        let path = self.validation.as_deref()?;
        matches!(Validation::from_argument(path), Validation::Path(_)).then_some(path)
    }
}
