//! What a person wants to know after a dataset was opened: what was found, what was left out, and what was decided.

use super::DatasetFormat;
use super::listing::Skipped;
use super::split::Split;
use std::fmt;
use std::path::PathBuf;

/// Where the validation samples come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ValidationFrom {
    /// From the set that the caller named.
    Path(PathBuf),
    /// From this split of the set.
    Split(Split),
    /// From the test split, because there is no validation split: choosing by it makes the test figures too good.
    TestForLackOfValidation,
    /// From the training samples.
    Carved {
        /// The share of each class.
        fraction: f64,
    },
    /// From nowhere.
    Nowhere,
}

/// The samples of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassCount {
    /// Samples to train with.
    pub train: usize,
    /// Samples to validate with.
    pub validation: usize,
    /// Samples to test with.
    pub test: usize,
}

/// What was found in a dataset and made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The format found.
    pub format: DatasetFormat,
    /// Samples by split; those of the test split count twice if they are the validation samples too.
    pub samples: ClassCount,
    /// The same for each class, in the order of the classes. A sample with several labels counts for each.
    pub classes: Vec<ClassCount>,
    /// Folders of classes without an image, such as `train/dog`.
    pub empty: Vec<String>,
    /// What was left out.
    pub skipped: Vec<Skipped>,
    /// Where the validation samples come from.
    pub validation: ValidationFrom,
    /// Training samples that the fraction left out.
    pub unused: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClassCount { train, validation, test } = self.samples;
        write!(f, "{}: {} classes; samples: {train} train", self.format, self.classes.len())?;
        if self.unused > 0 {
            write!(f, " (of {})", train + self.unused)?;
        }
        match &self.validation {
            ValidationFrom::Path(path) => write!(f, ", {validation} validation from {}", path.display())?,
            ValidationFrom::Split(_) => write!(f, ", {validation} validation")?,
            ValidationFrom::TestForLackOfValidation => {
                write!(f, ", {validation} validation (the test split, for lack of a validation split)")?;
            }
            ValidationFrom::Carved { fraction } => {
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
