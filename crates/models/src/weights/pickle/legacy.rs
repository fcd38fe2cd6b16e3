//! The format before PyTorch 1.6: five pickles one after another (magic number, protocol, system, the object, the
//! order of its storages), then the storages. Their bytes are always little-endian.

use std::borrow::Cow;
use std::collections::HashMap;

use super::document::{Document, PickleNode, PickleValue};
use super::machine;
use super::{FORMAT, materialise, state_dict};
use crate::weights::element::ByteOrder;
use crate::weights::{Weights, WeightsError};

/// The magic number as a pickled long, after the two bytes that name the pickle's protocol.
const MAGIC: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
const PROTOCOL: i64 = 1001;

/// Whether the bytes start as this format does.
pub(in crate::weights) fn is_legacy(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0x80) && bytes.get(2..).is_some_and(|rest| rest.starts_with(MAGIC))
}

pub(super) fn from_bytes(bytes: &[u8]) -> Result<Weights, WeightsError> {
    let (protocol, at) = machine::run(bytes, 2 + MAGIC.len())?;
    if !matches!(protocol.top, PickleValue::Int(PROTOCOL)) {
        return Err(WeightsError::unsupported(FORMAT, "a legacy checkpoint of another protocol than 1001"));
    }
    let (_system, at) = machine::run(bytes, at)?;
    let (document, at) = machine::run(bytes, at)?;
    let (keys, at) = machine::run(bytes, at)?;
    let storages = storages(bytes, &document, &keys, at)?;
    materialise(state_dict::find(&document)?, &storages, ByteOrder::Little, bytes.len())
}

/// The storages' bytes by key, in the order that the last pickle gives.
fn storages<'a>(
    bytes: &'a [u8],
    document: &Document<'a>,
    keys: &Document<'a>,
    mut at: usize,
) -> Result<HashMap<&'a str, Cow<'a, [u8]>>, WeightsError> {
    let damaged = |what: String| WeightsError::damaged(FORMAT, what);
    let sizes: HashMap<&str, usize> = document
        .nodes
        .iter()
        .filter_map(|node| match node {
            PickleNode::Storage(storage) => Some((storage.key, storage.element_size())),
            _ => None,
        })
        .collect();
    let Some(PickleNode::List(keys)) = keys.node(keys.top) else {
        return Err(damaged("the order of the storages is not a list".into()));
    };
    let mut storages = HashMap::new();
    for key in keys {
        let &PickleValue::Str(key) = key else {
            return Err(damaged("a storage's key is not text".into()));
        };
        let size = sizes.get(key).ok_or_else(|| damaged(format!("storage `{key}` belongs to no tensor")))?;
        let content =
            counted(bytes, &mut at, *size).ok_or_else(|| damaged(format!("storage `{key}` reaches past the file")))?;
        storages.insert(key, Cow::Borrowed(content));
    }
    Ok(storages)
}

/// A count of elements, then as many.
fn counted<'a>(bytes: &'a [u8], at: &mut usize, size: usize) -> Option<&'a [u8]> {
    let (count, rest) = bytes.get(*at..)?.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*count)).ok()?.checked_mul(size)?;
    let content = rest.get(..length)?;
    *at += 8 + length;
    Some(content)
}
