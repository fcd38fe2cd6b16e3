//! The report of an opened dataset for the user: what was found, what was skipped, and what was decided.

use super::DatasetFormat;
use super::listing::Skipped;
use super::split::Split;
use std::fmt;
use std::path::PathBuf;

/// The source of the validation samples.
#[derive(Clone, Debug, PartialEq)]
pub enum ValidationFrom {
    /// The dataset that the caller named.
    Path(PathBuf),
    /// This split of the dataset.
    Split(Split),
    /// The test split, for lack of a validation split: model selection on it makes the test results too good.
    TestForLackOfValidation,
    /// Held out from the training samples.
    HeldOut {
        /// The fraction of each class.
        fraction: f64,
    },
    /// None.
    Nowhere,
}

/// The samples of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassCount {
    /// Training samples.
    pub train: usize,
    /// Validation samples.
    pub validation: usize,
    /// Test samples.
    pub test: usize,
}

/// The content of a dataset and its division into splits.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The dataset's format.
    pub format: DatasetFormat,
    /// Samples by split; the test split counts twice if it is also the validation split.
    pub samples: ClassCount,
    /// Whether the classes are captions.
    pub captions: bool,
    /// The same per class, in the order of the classes. A sample with several labels counts for each.
    pub classes: Vec<ClassCount>,
    /// Class folders without images, such as `train/dog`.
    pub empty: Vec<String>,
    /// Skipped samples.
    pub skipped: Vec<Skipped>,
    /// The source of the validation samples.
    pub validation: ValidationFrom,
    /// Training samples outside of the fraction.
    pub unused: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClassCount { train, validation, test } = self.samples;
        let what = if self.captions { "captions" } else { "classes" };
        write!(f, "{}: {} {what}; samples: {train} train", self.format, self.classes.len())?;
        if self.unused > 0 {
            write!(f, " (of {})", train + self.unused)?;
        }
        match &self.validation {
            ValidationFrom::Path(path) => write!(f, ", {validation} validation from {}", path.display())?,
            ValidationFrom::Split(_) => write!(f, ", {validation} validation")?,
            ValidationFrom::TestForLackOfValidation => {
                write!(f, ", {validation} validation (the test split, for lack of a validation split)")?;
            }
            ValidationFrom::HeldOut { fraction } => {
                write!(f, ", {validation} validation ({}% of the training split)", fraction * 100.0)?;
            }
            ValidationFrom::Nowhere => write!(f, ", no validation")?,
        }
        if test > 0 {
            write!(f, ", {test} test")?;
        }
        for folder in &self.empty {
            write!(f, "\n{folder}: a class folder without images")?;
        }
        for Skipped { reason, count, example } in &self.skipped {
            write!(f, "\n{count} left out, {reason}: {example}")?;
            if *count > 1 {
                write!(f, " and others")?;
            }
        }
        Ok(())
    }
}
