//! Labels as written in manifests, JSON and text files: `cat`, `3`, `cat|dog`, `["cat", "dog"]`, or soft labels
//! `{"cat": 0.7, "dog": 0.3}`.

use super::LabelRequirement;
use super::listing::{ImagePlace, Listing};
use super::split::Split;
use serde_json::Value;

/// The label or labels of a sample as written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WrittenLabels {
    /// None, or -1, which Hugging Face writes for hidden labels.
    None,
    /// A single label.
    One(String),
    /// A list, even with one entry or none: multi-label data.
    Many(Vec<String>),
    /// Classes and their probabilities, which add up to 1, the largest first.
    Shares(Vec<(String, f32)>),
}

impl WrittenLabels {
    pub(super) fn of_text(text: &str) -> Self {
        let text = text.trim();
        let list = text.starts_with(['[', '{']).then(|| serde_json::from_str(text).ok()).flatten();
        match list {
            Some(list) => WrittenLabels::of_json(&list).unwrap_or_else(|| WrittenLabels::One(text.to_owned())),
            None if text.is_empty() || text == "-1" => WrittenLabels::None,
            None if text.contains('|') => {
                let parts = text.split('|').map(str::trim).filter(|part| !part.is_empty());
                WrittenLabels::Many(parts.map(str::to_owned).collect())
            }
            None => WrittenLabels::One(text.to_owned()),
        }
    }

    /// `None` if the value is no label, such as a number with a fraction.
    pub(super) fn of_json(value: &Value) -> Option<Self> {
        match value {
            Value::Null => Some(WrittenLabels::None),
            Value::String(text) => Some(WrittenLabels::of_text(text)),
            Value::Number(_) => match integer(value)? {
                -1 => Some(WrittenLabels::None),
                number => Some(WrittenLabels::One(number.to_string())),
            },
            Value::Array(items) => {
                let one = |item: &Value| match item {
                    Value::String(text) => Some(text.trim().to_owned()),
                    number => integer(number).map(|number| number.to_string()),
                };
                Some(WrittenLabels::Many(items.iter().map(one).collect::<Option<_>>()?))
            }
            Value::Object(shares) => {
                let shares = shares.iter().map(|(class, share)| Some((class.trim().to_owned(), share.as_f64()?)));
                whole(shares.collect::<Option<_>>()?).map(WrittenLabels::Shares)
            }
            Value::Bool(_) => None,
        }
    }
}

/// Probabilities normalised to a sum of 1, the largest first; `None` if they are invalid.
fn whole(mut shares: Vec<(String, f64)>) -> Option<Vec<(String, f32)>> {
    let total: f64 = shares.iter().map(|(_, share)| share).sum();
    if shares.iter().any(|(_, share)| *share < 0.0) || !(total > 0.0 && total.is_finite()) {
        return None;
    }
    shares.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    Some(shares.into_iter().map(|(class, share)| (class, (share / total) as f32)).collect())
}

fn integer(value: &Value) -> Option<i64> {
    // pandas turns an integer column with a gap into floats, such as 3.0.
    value.as_i64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 1e15).map(|n| n as i64))
}

/// A sample listed by a table or an archive.
pub(super) struct LabelledRow {
    pub(super) place: ImagePlace,
    pub(super) split: Option<Split>,
    pub(super) labels: WrittenLabels,
}

/// Adds the rows. Samples without labels are skipped unless a row has a list of labels, or none needs one.
pub(super) fn add(listing: &mut Listing, rows: Vec<LabelledRow>) {
    listing.multi_label |= rows.iter().any(|row| matches!(row.labels, WrittenLabels::Many(_)));
    let required = listing.labels_required != LabelRequirement::Optional;
    for LabelledRow { place, split, labels } in rows {
        match labels {
            WrittenLabels::None if !listing.multi_label && required => {
                listing.skip("without a label", || match &place {
                    ImagePlace::File(path) => path.display().to_string(),
                    ImagePlace::Range { name, .. } | ImagePlace::Custom { name, .. } => name.to_string(),
                    ImagePlace::Row { row, .. } => format!("row {row}"),
                })
            }
            WrittenLabels::None => listing.push(place, split, [] as [&str; 0]),
            WrittenLabels::One(label) => listing.push(place, split, [label]),
            WrittenLabels::Shares(shares) => listing.push_shares(place, split, &shares),
            WrittenLabels::Many(mut labels) => {
                labels.sort_unstable();
                labels.dedup();
                listing.push(place, split, labels);
            }
        }
    }
}
