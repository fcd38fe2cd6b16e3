//! The datasets of a study and what their images are for. Test images choose nothing: the last weights are measured on them
//! once. Validation images are held out of training.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vit_data::Samples;
use vit_data::dataset::{
    self, Dataset, DatasetFormat, DatasetOptions, LabelRequirement, ReadOptions, Split, Splits, Validation,
    ValidationFrom, open_split,
};

use super::StudyFile;
use crate::error::TrainError;
use crate::evaluate::probe::ProbeImages;

/// A dataset of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyData {
    /// Its path.
    pub path: PathBuf,
    /// Its name in tables.
    pub name: String,
    /// Training images, without those for validation.
    pub images: usize,
    /// Images that are held out of training, or of the validation split.
    pub validation_images: usize,
    /// Its classes.
    pub classes: usize,
    /// What the accuracies of the study are measured on.
    pub test: TestImages,
    /// The setting of its runs.
    pub(super) validation: Option<PathBuf>,
    pub(super) validation_fraction: f64,
}

/// The images that accuracy is measured on.
#[derive(Debug, Clone, PartialEq)]
pub enum TestImages {
    /// A split of the dataset.
    Split(Split),
    /// Another dataset.
    Path(PathBuf),
    /// Those that are held out of training, for lack of others.
    HeldOut,
}

impl StudyData {
    /// A dataset that models are measured on.
    pub(crate) fn open(path: &Path, file: &StudyFile) -> Result<StudyData, TrainError> {
        let automatic = divided(path, Validation::Automatic, file.validation_fraction, LabelRequirement::Required)?;
        let has_validation = matches!(automatic.report.validation, ValidationFrom::Split(_));
        let has_test = automatic.test.is_some();
        let test = match file.test.as_deref().map(Validation::from_argument) {
            Some(Validation::Split(split)) => TestImages::Split(split),
            Some(Validation::Path(path)) => TestImages::Path(absolute(&path)?),
            Some(_) => TestImages::HeldOut,
            None if has_test => TestImages::Split(Split::Test),
            None if has_validation => TestImages::Split(Split::Validation),
            None => TestImages::HeldOut,
        };
        let held_out = || Some(PathBuf::from(Validation::HELD_OUT));
        let validation = match (&file.validation, &test) {
            (Some(given), _) => match Validation::from_argument(given) {
                Validation::Path(path) => Some(absolute(&path)?),
                _ => Some(given.clone()),
            },
            (None, TestImages::HeldOut | TestImages::Split(Split::Validation)) => held_out(),
            (None, _) if has_test && !has_validation => held_out(),
            (None, _) => None,
        };
        let chosen = validation.as_deref().map_or(Validation::Automatic, Validation::from_argument);
        let splits = divided(path, chosen.clone(), file.validation_fraction, LabelRequirement::Required)?;
        let same = match (&test, &chosen) {
            (TestImages::Split(test), Validation::Split(validation)) => test == validation,
            (TestImages::Path(test), Validation::Path(validation)) => test == validation,
            _ => false,
        };
        let wrong = |what: &str| Err(TrainError::Unsuitable(format!("{}: {what}", path.display())));
        if test == TestImages::Split(Split::Train) || same {
            return wrong("test images choose nothing, so they must be others than those for training and validation");
        }
        if test == TestImages::HeldOut && !file.sweep.is_empty() {
            return wrong(
                "a sweep chooses by validation images, and the dataset has no others to measure the choice on; give \
                 `test` a split or a dataset",
            );
        }
        if splits.validation.is_none() && !file.sweep.is_empty() {
            return wrong("a sweep chooses by validation images, and there are none; hold some out");
        }
        if test == TestImages::HeldOut && splits.validation.is_none() {
            return wrong("there are no images to measure on; give `test` a split or a dataset");
        }
        Ok(StudyData { test, validation, ..StudyData::of(path, splits, file) })
    }

    /// A dataset for pre-training, on whose test images nothing is measured.
    pub(super) fn for_pretraining(path: &Path, file: &StudyFile, unlabelled: bool) -> Result<StudyData, TrainError> {
        let labels = if unlabelled { LabelRequirement::Optional } else { LabelRequirement::Required };
        let automatic = divided(path, Validation::Automatic, file.validation_fraction, labels)?;
        let by_test = automatic.report.validation == ValidationFrom::TestForLackOfValidation;
        let validation = by_test.then(|| PathBuf::from(Validation::HELD_OUT));
        let splits = match by_test {
            true => divided(path, Validation::HeldOut, file.validation_fraction, labels)?,
            false => automatic,
        };
        Ok(StudyData { validation, ..StudyData::of(path, splits, file) })
    }

    fn of(path: &Path, splits: Splits, file: &StudyFile) -> StudyData {
        StudyData {
            path: path.into(),
            name: name(path),
            images: splits.train.len(),
            validation_images: splits.validation.as_ref().map_or(0, |validation| validation.len()),
            classes: splits.train.classes().len(),
            test: TestImages::HeldOut,
            validation: None,
            validation_fraction: file.validation_fraction,
        }
    }

    /// The test images, whose labels index these classes; `None` if they are those that are held out.
    pub(super) fn test_samples(&self, classes: &[String]) -> Result<Option<Arc<Dataset>>, TrainError> {
        let (path, split) = match &self.test {
            TestImages::Split(split) => (&self.path, Some(*split)),
            TestImages::Path(path) => (path, None),
            TestImages::HeldOut => return Ok(None),
        };
        Ok(Some(open_split(path, split, Some(classes), &ReadOptions::default())?.samples))
    }

    /// Images for few-shot classification: enough of each class to draw from and to choose the regularisation on, not more,
    /// since the features of all of them are computed.
    pub(super) fn probe_images(&self, shots: usize) -> Result<ProbeImages, TrainError> {
        const PER_SHOT: usize = 10;
        self.images_for_probe((shots * PER_SHOT * self.classes.max(1)) as f64 / self.images.max(1) as f64, 0)
    }

    /// A share of the training images, drawn with a seed, and the test images for a probe.
    pub(crate) fn images_for_probe(&self, fraction: f64, seed: u64) -> Result<ProbeImages, TrainError> {
        let validation = self.validation.as_deref().map_or(Validation::Automatic, Validation::from_argument);
        let options = DatasetOptions {
            validation,
            validation_fraction: self.validation_fraction,
            fraction: fraction.clamp(1e-9, 1.0),
            seed,
            ..DatasetOptions::default()
        };
        let splits = dataset::open(&self.path, &options)?;
        let test = match self.test_samples(splits.train.classes())? {
            Some(test) => Some(test),
            None => splits.validation,
        };
        let format: DatasetFormat = splits.report.format;
        let Some(test) = test else {
            return Err(TrainError::Unsuitable(format!("{}: has no test images for a probe", self.path.display())));
        };
        Ok(ProbeImages { train: splits.train, test, format, which: self.test_name() })
    }

    /// The test images in words.
    pub fn test_name(&self) -> String {
        match &self.test {
            TestImages::Split(split) => format!("the {split} split"),
            TestImages::Path(path) => path.display().to_string(),
            TestImages::HeldOut => "images held out of training".into(),
        }
    }
}

/// The name of a dataset: that of its file without endings.
pub(crate) fn name(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "data".into(), |name| name.to_string_lossy().into_owned());
    name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("data").to_string()
}

fn divided(path: &Path, validation: Validation, share: f64, labels: LabelRequirement) -> Result<Splits, TrainError> {
    let read = ReadOptions { labels, ..ReadOptions::default() };
    let options = DatasetOptions { validation, validation_fraction: share, read, ..DatasetOptions::default() };
    Ok(dataset::open(path, &options)?)
}

pub(super) fn absolute(path: &Path) -> Result<PathBuf, TrainError> {
    dataset::absolute(path).map_err(|error| TrainError::Config { path: path.into(), what: error.to_string() })
}
