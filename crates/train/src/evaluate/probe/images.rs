//! The images of a probe: those that classifiers are fitted to and those that they are measured on.

use std::path::Path;
use std::sync::Arc;

use vit_data::Samples;
use vit_data::dataset::{Dataset, DatasetFormat, DatasetOptions, Split, Splits, open};

use crate::error::TrainError;
use crate::evaluate::held_out::splits_of_run;
use crate::run::folder::RunFolder;

/// The images of a probe.
pub struct ProbeImages {
    /// For fitting.
    pub train: Arc<Dataset>,
    /// For the figures.
    pub test: Arc<Dataset>,
    /// The format of the dataset.
    pub format: DatasetFormat,
    /// Which images those for the figures are, as text.
    pub which: String,
}

/// Opens the training images of a dataset, and of its `split` (by default the test split, else the validation split, else a
/// tenth of the images) those for the figures. If the model is that of a run on this dataset, its division is kept.
pub fn open_for_probe(data: &Path, split: Option<Split>, run: Option<&RunFolder>) -> Result<ProbeImages, TrainError> {
    let of_run = run.map(|run| splits_of_run(run, data, None)).transpose()?.flatten();
    let divided_by_run = of_run.is_some();
    let splits = match of_run {
        Some(of_run) => of_run.splits,
        None => open(data, &DatasetOptions::default())?,
    };
    let Splits { train, validation, test, report, .. } = splits;
    let held_out = format!("images held out for validation{}", if divided_by_run { " by the run" } else { "" });
    let chosen = match split {
        Some(Split::Test) => test.map(|test| (test, "the test split".to_owned())),
        Some(Split::Validation) => validation.map(|validation| (validation, held_out)),
        Some(Split::Train) => None,
        None => test
            .map(|test| (test, "the test split".to_owned()))
            .or_else(|| validation.map(|validation| (validation, held_out))),
    };
    let Some((test, which)) = chosen else {
        let name = split.unwrap_or(Split::Test);
        return Err(TrainError::Unsuitable(format!(
            "{}: has no {name} images beside those for training; choose another --split, test or val",
            data.display()
        )));
    };
    if train.is_multi_label() || train.classes().len() < 2 {
        return Err(TrainError::Unsuitable(format!(
            "{}: a probe needs images of at least two classes with one label each",
            data.display()
        )));
    }
    Ok(ProbeImages { train, test, format: report.format, which })
}
