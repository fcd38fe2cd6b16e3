//! WebDataset: members of an archive with the same name up to the first dot form a sample, such as `00017.jpg` and
//! `00017.cls`. The label is in `cls`, in a field of `json`, or in `txt`.

use super::DatasetFormat;
use super::archive::{Shard, has_class_folders, is_image};
use super::error::DatasetError;
use super::labels::{self, LabelledRow, WrittenLabels};
use super::listing::{LabelText, Listing};
use super::manifest::classes_beside;
use super::split::Split;
use super::store::Store;
use super::tar::TarMember;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// No label is longer; a caption or a document is not read as one.
const MAX_LABEL_BYTES: u64 = 1 << 16;

const FIELDS: [&str; 5] = ["label", "labels", "class", "cls", "target"];

/// Adds the samples of the shards if they have label files; otherwise returns `false` and changes nothing.
pub(super) fn add(listing: &mut Listing, shards: &[Shard]) -> Result<bool, DatasetError> {
    let mut labels = Vec::with_capacity(shards.len());
    for shard in shards {
        labels.push(labels_in(&listing.images.stores[shard.store as usize], shard)?);
    }
    // Texts beside images in class folders are captions.
    let is_sure = labels.iter().flat_map(HashMap::values).any(|found| found.rank < TEXT);
    if labels.iter().all(HashMap::is_empty) || (!is_sure && has_class_folders(shards)) {
        return Ok(false);
    }
    listing.format = DatasetFormat::WebDataset;
    listing.label_text = LabelText::NumberOrName;
    let mut rows = Vec::new();
    for (shard, labels) in shards.iter().zip(&labels) {
        for member in shard.members.iter().filter(|member| is_image(member)) {
            let key = split_name(&member.name).0;
            let labels = labels.get(key).map_or(WrittenLabels::None, |found| found.labels.clone());
            let split = key.split_once('/').and_then(|(folder, _)| Split::from_name(folder)).or(shard.split);
            rows.push(LabelledRow { place: shard.place(member), split, labels });
        }
    }
    labels::add(listing, rows);
    listing.class_names = classes_beside(&listing.images.stores[0].path)?;
    Ok(true)
}

struct FoundLabels {
    /// The position in the list of possible label members: lower is better.
    rank: usize,
    labels: WrittenLabels,
}

const ENDINGS: [&str; 3] = ["cls", "json", "txt"];
const TEXT: usize = 2;

/// The labels of the images in a shard.
fn labels_in<'a>(store: &Store, shard: &'a Shard) -> Result<HashMap<&'a str, FoundLabels>, DatasetError> {
    let images: HashSet<&str> =
        shard.members.iter().filter(|member| is_image(member)).map(|member| split_name(&member.name).0).collect();
    let mut labels: HashMap<&str, FoundLabels> = HashMap::new();
    for member in shard.members.iter().filter(|member| !member.is_folder) {
        let (key, ending) = split_name(&member.name);
        let Some(rank) = ENDINGS.iter().position(|known| *known == ending) else {
            continue;
        };
        if images.contains(key)
            && labels.get(key).is_none_or(|found| found.rank > rank)
            && let Some(found) = read_label(store, member, rank)?
        {
            labels.insert(key, FoundLabels { rank, labels: found });
        }
    }
    Ok(labels)
}

/// `None` if the member holds no label.
fn read_label(store: &Store, member: &TarMember, rank: usize) -> Result<Option<WrittenLabels>, DatasetError> {
    if member.length > MAX_LABEL_BYTES {
        return Ok(None);
    }
    let bytes = member.read(store).map_err(DatasetError::io(&store.path))?;
    let Ok(text) = std::str::from_utf8(&bytes) else {
        let reason = format!("{}: the label is not text in UTF-8", member.name);
        return Err(DatasetError::damaged(&store.path, reason));
    };
    if ENDINGS[rank] != "json" {
        return Ok(Some(WrittenLabels::of_text(text)));
    }
    let document: Value = serde_json::from_str(text)
        .map_err(|error| DatasetError::damaged(&store.path, format!("{}: not valid JSON: {error}", member.name)))?;
    Ok(FIELDS.iter().find_map(|field| document.get(field)).and_then(WrittenLabels::of_json))
}

/// The name of the sample and the rest, ignoring dots in folders.
fn split_name(name: &str) -> (&str, &str) {
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    match name[start..].find('.') {
        Some(dot) => (&name[..start + dot], &name[start + dot + 1..]),
        None => (name, ""),
    }
}
