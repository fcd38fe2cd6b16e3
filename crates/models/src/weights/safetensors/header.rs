//! The header of a safetensors file: a length, then JSON. All offsets are checked here, so that slicing the data afterwards
//! cannot fail.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::FORMAT;
use crate::weights::element::Element;
use crate::weights::{WeightsError, element_count};

/// The limit of the reference implementation; the largest published headers are a hundredth of it.
const LONGEST: u64 = 100_000_000;

/// A header whose entries fit its file.
#[derive(Debug)]
pub(super) struct SafetensorsHeader {
    pub tensors: BTreeMap<String, TensorEntry>,
    pub metadata: BTreeMap<String, String>,
}

/// A tensor's type, shape and range in the data.
#[derive(Debug)]
pub(super) struct TensorEntry {
    pub element: Element,
    pub shape: Vec<usize>,
    pub start: usize,
    pub end: usize,
}

#[derive(Deserialize)]
struct RawTensorEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

#[derive(Default)]
struct RawSafetensorsHeader {
    tensors: BTreeMap<String, RawTensorEntry>,
    metadata: Option<BTreeMap<String, String>>,
}

/// The checked header and the data after it.
pub(super) fn parse(bytes: &[u8]) -> Result<(SafetensorsHeader, &[u8]), WeightsError> {
    let damaged = |what: String| WeightsError::damaged(FORMAT, what);
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(damaged(format!("{} bytes, too short for a header", bytes.len())));
    };
    let (json, data) = rest.split_at(json_length(*length, rest.len())?);
    Ok((check_json(json, data.len())?, data))
}

/// The length of the JSON, which is in the file's first eight bytes; `rest` bytes follow them.
pub(super) fn json_length(bytes: [u8; 8], rest: usize) -> Result<usize, WeightsError> {
    let damaged = |what: String| WeightsError::damaged(FORMAT, what);
    let length = u64::from_le_bytes(bytes);
    if length > LONGEST {
        return Err(damaged(format!("the header claims {length} bytes, more than {LONGEST}")));
    }
    match usize::try_from(length) {
        Ok(length) if length <= rest => Ok(length),
        _ => Err(damaged(format!("the header claims {length} bytes, the file has {rest} after the length"))),
    }
}

/// Checks the JSON of a header against the number of data bytes after it.
pub(super) fn check_json(json: &[u8], data: usize) -> Result<SafetensorsHeader, WeightsError> {
    let damaged = |what: String| WeightsError::damaged(FORMAT, what);
    if json.first() != Some(&b'{') {
        return Err(damaged("the header does not start with `{`".into()));
    }
    let raw: RawSafetensorsHeader =
        serde_json::from_slice(json).map_err(|error| damaged(format!("header: {error}")))?;

    let mut tensors = BTreeMap::new();
    for (name, entry) in raw.tensors {
        let entry = check(&name, entry, data)?;
        tensors.insert(name, entry);
    }
    check_cover(&tensors, data)?;
    let metadata = raw.metadata.unwrap_or_default();
    Ok(SafetensorsHeader { tensors, metadata })
}

fn check(name: &str, raw: RawTensorEntry, data: usize) -> Result<TensorEntry, WeightsError> {
    let [start, end] = raw.data_offsets;
    let element = element(&raw.dtype)
        .ok_or_else(|| WeightsError::tensor(name, format!("element type {} is not read; save it as F32", raw.dtype)))?;
    if start > end || end > data {
        return Err(WeightsError::damaged(
            FORMAT,
            format!("tensor `{name}` lies at {start}..{end} of {data} bytes of data"),
        ));
    }
    let bytes = element_count(&raw.shape).and_then(|count| count.checked_mul(element.size()));
    if bytes != Some(end - start) {
        return Err(WeightsError::damaged(
            FORMAT,
            format!("tensor `{name}` of shape {:?} and type {} has {} bytes", raw.shape, raw.dtype, end - start),
        ));
    }
    Ok(TensorEntry { element, shape: raw.shape, start, end })
}

/// Tensors must cover the data from the first byte to the last: bytes of two tensors or of none would be read differently by
/// different readers.
fn check_cover(tensors: &BTreeMap<String, TensorEntry>, data: usize) -> Result<(), WeightsError> {
    let mut by_place: Vec<_> = tensors.iter().collect();
    by_place.sort_by_key(|(_, entry)| (entry.start, entry.end));
    let mut covered = 0;
    for (name, entry) in by_place {
        if entry.start != covered {
            let what = if entry.start < covered { "overlaps the tensor before it" } else { "leaves a gap before it" };
            return Err(WeightsError::damaged(FORMAT, format!("tensor `{name}` at byte {} {what}", entry.start)));
        }
        covered = entry.end;
    }
    if covered != data {
        return Err(WeightsError::damaged(FORMAT, format!("tensors cover {covered} of {data} bytes of data")));
    }
    Ok(())
}

fn element(dtype: &str) -> Option<Element> {
    Some(match dtype {
        "F64" => Element::F64,
        "F32" => Element::F32,
        "F16" => Element::F16,
        "BF16" => Element::BF16,
        "F8_E4M3" => Element::F8E4M3,
        "F8_E5M2" => Element::F8E5M2,
        "I64" => Element::I64,
        "I32" => Element::I32,
        "I16" => Element::I16,
        "I8" => Element::I8,
        "U64" => Element::U64,
        "U32" => Element::U32,
        "U16" => Element::U16,
        "U8" => Element::U8,
        "BOOL" => Element::Bool,
        _ => return None,
    })
}

// Not derived: a derived map keeps the last of two equal keys, and which one counts would depend on the reader.
impl<'de> Deserialize<'de> for RawSafetensorsHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawSafetensorsHeader;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawSafetensorsHeader, A::Error> {
                let mut header = RawSafetensorsHeader::default();
                while let Some(name) = map.next_key::<String>()? {
                    let repeated = if name == "__metadata__" {
                        header.metadata.replace(map.next_value()?).is_some()
                    } else {
                        let entry = map.next_value()?;
                        header.tensors.insert(name.clone(), entry).is_some()
                    };
                    if repeated {
                        return Err(de::Error::custom(format!("`{name}` appears twice")));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
