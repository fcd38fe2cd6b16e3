//! From the labels as written to class indices, of the dataset's own list of classes or of a model's.
//!
//! Names are sorted bytewise, `class10` before `class2`, not naturally: torchvision's ImageFolder and timm sort that
//! way, and published models have their outputs in that order. Class folders that are numbers are indices of a model's
//! outputs where the model has no classes of these names.

use super::error::DatasetError;
use super::listing::{LabelText, Listing};
use std::collections::HashMap;

/// A larger number is a mistake, and its list of names would exhaust the memory.
const MAX_CLASSES: usize = 1 << 20;

/// Turns the labels of `listing` into indices and returns the classes they index: `target` if given, else the dataset's
/// own. Only the samples in `used` must fit the target.
pub(super) fn resolve(
    listing: &mut Listing,
    target: Option<&[String]>,
    used: &[u32],
) -> Result<Vec<String>, DatasetError> {
    let own = own_classes(listing)?;
    let (classes, indices) = match target {
        None => (own.names, own.indices),
        Some(target) => (target.to_vec(), onto(listing, &own, target, used)?),
    };
    for label in &mut listing.labels {
        *label = indices[*label as usize];
    }
    Ok(classes)
}

/// Makes class folders that are named by numbers mean the classes of these indices, as ImageNet-V2's 0 to 999, unless the
/// model has classes of these names. Without a model's classes, the numbers must be all from 0 on. Whether they are now.
pub(super) fn number_folders(listing: &mut Listing, target: Option<&[String]>) -> bool {
    let Some(numbers) = listing.texts.iter().map(|text| number(text)).collect::<Option<Vec<u64>>>() else {
        return false;
    };
    let named = listing.label_text == LabelText::Name && listing.class_names.is_none();
    let known = |names: &[String]| by_name(&listing.texts, names).iter().all(Option::is_some);
    let all_from_zero = || numbers.iter().all(|number| (*number as usize) < numbers.len());
    if !named || target.map_or_else(|| !all_from_zero(), known) {
        return false;
    }
    listing.label_text = LabelText::NumberOrName;
    true
}

/// Whether these are the classes of the dataset, in any order.
pub(super) fn are_those_of(listing: &Listing, names: &[String]) -> Result<bool, DatasetError> {
    let (mut own, mut names) = (own_classes(listing)?.names, names.to_vec());
    own.sort_unstable();
    names.sort_unstable();
    Ok(own == names)
}

struct OwnClasses {
    names: Vec<String>,
    /// The class of each label text.
    indices: Vec<u32>,
    /// Whether the names are just numbers.
    unnamed: bool,
}

fn own_classes(listing: &Listing) -> Result<OwnClasses, DatasetError> {
    let numbers: Option<Vec<u64>> = match listing.label_text {
        LabelText::Name => None,
        LabelText::NumberOrName => listing.texts.iter().map(|text| number(text)).collect(),
    };
    match (numbers, &listing.class_names) {
        (Some(numbers), names) => {
            let most = names.as_ref().map_or(MAX_CLASSES, Vec::len);
            if let Some(text) = numbers.iter().position(|number| *number >= most as u64) {
                let reason = match names {
                    Some(_) => format!("label {} is outside of the {most} classes, which count from 0", numbers[text]),
                    None => format!("label {} is too large for the number of a class", numbers[text]),
                };
                return Err(DatasetError::Label { sample: first_with(listing, text as u32), reason });
            }
            let count = numbers.iter().max().map_or(0, |most| *most as usize + 1);
            Ok(OwnClasses {
                unnamed: names.is_none(),
                names: names.clone().unwrap_or_else(|| (0..count).map(|number| number.to_string()).collect()),
                indices: numbers.into_iter().map(|number| number as u32).collect(),
            })
        }
        (None, Some(names)) => {
            let indices = by_name(&listing.texts, names);
            let unknown = indices.iter().position(Option::is_none);
            if let Some(text) = unknown {
                let reason = format!("label \"{}\" is not one of the classes listed", listing.texts[text]);
                return Err(DatasetError::Label { sample: first_with(listing, text as u32), reason });
            }
            Ok(OwnClasses { names: names.clone(), indices: indices.into_iter().flatten().collect(), unnamed: false })
        }
        (None, None) => {
            let mut names = listing.texts.clone();
            names.sort_unstable();
            let indices = by_name(&listing.texts, &names).into_iter().flatten().collect();
            Ok(OwnClasses { names, indices, unnamed: false })
        }
    }
}

/// The index of each of `texts` among `names`; `None` if it does not occur or occurs twice.
fn by_name(texts: &[String], names: &[String]) -> Vec<Option<u32>> {
    let mut positions: HashMap<&str, Option<u32>> = HashMap::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        positions.entry(name).and_modify(|position| *position = None).or_insert(Some(index as u32));
    }
    texts.iter().map(|text| positions.get(text.as_str()).copied().flatten()).collect()
}

/// The index in `target` of each label text.
fn onto(listing: &Listing, own: &OwnClasses, target: &[String], used: &[u32]) -> Result<Vec<u32>, DatasetError> {
    // Equal lists need no search by name, which ImageNet's two classes "crane" would break. Bare numbers can only mean
    // the model's outputs.
    let same = own.names == target;
    let by_name = by_name(&own.names, target);
    let mapped: Vec<Option<u32>> = own
        .indices
        .iter()
        .map(|index| match same || own.unnamed {
            true => Some(*index).filter(|index| (*index as usize) < target.len()),
            false => by_name[*index as usize],
        })
        .collect();
    for sample in used {
        let unknown = listing.labels_of(*sample as usize).iter().find(|label| mapped[**label as usize].is_none());
        if let Some(label) = unknown {
            return Err(DatasetError::UnknownClass {
                sample: listing.images.name(*sample as usize),
                class: own.names[own.indices[*label as usize] as usize].clone(),
                known: target.len(),
            });
        }
    }
    // The others are not used.
    Ok(mapped.into_iter().map(|index| index.unwrap_or(0)).collect())
}

fn first_with(listing: &Listing, label: u32) -> String {
    let found = (0..listing.len()).find(|index| listing.labels_of(*index).contains(&label));
    found.map_or_else(|| listing.path.display().to_string(), |index| listing.images.name(index))
}

/// A plain decimal number without leading zeros.
pub(super) fn number(text: &str) -> Option<u64> {
    let plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    plain.then(|| text.parse().ok()).flatten()
}
