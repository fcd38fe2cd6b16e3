//! The dataset of a run, and what happens if it changed since the run was begun.

use std::path::Path;
use std::sync::Arc;

use vit_data::Samples;
use vit_data::dataset::{
    self, DatasetOptions, LabelRequirement, ReadOptions, SampleChanges, SampleRecord, Splits, Validation,
};

use super::RunSettings;
use crate::error::TrainError;

/// What to do if a run's data changed since it was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangedData {
    /// Fail with the changes.
    Refuse,
    /// Continue with the run's split: new samples are trained on, unless the dataset has them in a validation split.
    Accept,
}

/// Checks whether a run may continue with data that changed.
pub(super) fn accept(
    data: &Path,
    record: &SampleRecord,
    changes: &SampleChanges,
    changed: ChangedData,
) -> Result<(), TrainError> {
    let validation = record.validation_len();
    if validation > 0 && changes.held_out == 0 {
        return Err(TrainError::Unsuitable(format!(
            "{}: none of the run's {validation} validation images exists any more; put the data back, or \
             begin another run",
            data.display()
        )));
    }
    match changed {
        ChangedData::Accept => Ok(()),
        ChangedData::Refuse => Err(TrainError::ChangedData { path: data.into(), changes: Box::new(changes.clone()) }),
    }
}

/// The report's line about data that changed.
pub(super) fn accepted(data: &Path, record: &SampleRecord, changes: &SampleChanges) -> String {
    let (before, left) = (record.validation_len(), changes.held_out);
    let validation = if left == before { format!("the {before}") } else { format!("{left} of the {before}") };
    let new = match changes.new_in_validation {
        0 => String::new(),
        new => format!(" and on {new} new ones of the validation split"),
    };
    format!(
        "{}: the data changed: {changes}. The split of the run is kept: it is evaluated on {validation} validation images \
         that it had{new}, and {} new images are trained on",
        data.display(),
        changes.new_in_training
    )
}

/// The classes that a dataset's labels index.
pub(crate) enum Classes<'a> {
    /// The dataset's.
    Own,
    /// These, in this order.
    Exactly(&'a [String]),
    /// The dataset's, in this order if it has exactly these.
    InOrder(&'a [String]),
    /// The dataset's, if it has any: images need no label.
    Optional,
    /// The dataset's, which are captions.
    Captions,
}

pub(crate) fn open_data(
    settings: &RunSettings,
    samples: Option<Arc<dyn Samples>>,
    seed: u64,
    classes: Classes,
) -> Result<Splits, TrainError> {
    let given = |names: &[String]| Some(names.to_vec()).filter(|names| !names.is_empty());
    let labels = match classes {
        Classes::Optional => LabelRequirement::Optional,
        Classes::Captions => LabelRequirement::Captions,
        _ => LabelRequirement::Required,
    };
    let (classes, class_order) = match classes {
        Classes::Own | Classes::Optional | Classes::Captions => (None, None),
        Classes::Exactly(names) => (given(names), None),
        Classes::InOrder(names) => (None, given(names)),
    };
    let options = DatasetOptions {
        validation: settings.validation.as_deref().map_or(Validation::Automatic, Validation::from_argument),
        validation_fraction: settings.validation_fraction,
        fraction: settings.fraction,
        seed,
        classes,
        class_order,
        read: ReadOptions { labels, ..ReadOptions::default() },
    };
    Ok(match samples {
        Some(samples) => dataset::from_samples(samples, &options)?,
        None => dataset::open(&settings.data, &options)?,
    })
}
