//! Datasets by formula: every image is drawn when it is read, and nothing is on disk.

use super::DatasetFormat;
use super::error::DatasetError;
use super::listing::{LabelText, Listing};
use super::split::Split;
use crate::formula::{Formula, FormulaKind};
use std::io;
use std::path::{Path, PathBuf};

/// Whether this names a dataset by formula, such as `fractals:1000`.
pub fn is_formula(path: &Path) -> bool {
    Formula::named(path).is_some()
}

/// The absolute path of a dataset; URLs and datasets by formula have none and stay as they are.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    if is_formula(path) { Ok(path.to_owned()) } else { vit_storage::absolute(path) }
}

/// Lists the dataset if the path names one by formula.
pub(super) fn read(path: &Path) -> Result<Option<Listing>, DatasetError> {
    let Some(formula) = Formula::named(path) else { return Ok(None) };
    let formula = formula.map_err(|reason| DatasetError::unrecognised(path, reason))?;
    let count = formula.len();
    if u32::try_from(count).is_err() {
        return Err(DatasetError::unrecognised(path, format!("its {count} images are more than 2^32")));
    }
    let format = match formula.kind() {
        FormulaKind::Fractals => DatasetFormat::Fractals,
        FormulaKind::Contours => DatasetFormat::Contours,
    };
    let mut listing = Listing::new(format, path.to_owned(), path.to_owned(), LabelText::Name);
    listing.texts = formula.class_names().collect();
    listing.class_names = Some(listing.texts.clone());
    for index in 0..count as usize {
        let sample = formula.sample(index);
        listing.labels.push(sample.class);
        listing.label_ends.push(index + 1);
        listing.splits.push(Some(if sample.is_validation() { Split::Validation } else { Split::Train }));
    }
    listing.images.formula = Some(formula);
    Ok(Some(listing))
}
