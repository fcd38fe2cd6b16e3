//! Recordings of a tokeniser: texts and their ids, without padding.

use std::path::Path;

use serde_json::Value;
use vit_data::tokenise::Tokeniser;

use super::{Comparison, Verification};
use crate::Error;

/// Whether a recording is one of CLIP's tokeniser alone.
pub(super) fn is_recorded(recording: &Value) -> bool {
    recording["vocabulary"].is_object() && recording["texts"][0]["ids"].is_array()
}

/// Compares the ids of every text with those of CLIP's tokeniser.
pub(super) fn compare(folder: &Path, recording: &Value) -> Result<Verification, Error> {
    let tokeniser = Tokeniser::clip(recording["context_length"].as_u64().unwrap_or(77) as usize);
    let texts = recording["texts"].as_array().map_or(&[][..], Vec::as_slice);
    let mut different = Vec::new();
    for recorded in texts {
        let text = recorded["text"].as_str().unwrap_or_default();
        let tokens = tokeniser.encode(text)?;
        let found = tokens.ids.iter().take(tokens.length).map(|&id| Some(i64::from(id)));
        if !found.eq(recorded["ids"].as_array().into_iter().flatten().map(Value::as_i64)) {
            different.push(text);
        }
    }
    let array = Comparison {
        name: "ids".into(),
        shape: vec![texts.len()],
        difference: Some(different.len() as f64),
        tolerance: 0.0,
        note: different.first().map(|text| format!("{} texts differ, the first is {text:?}", different.len())),
    };
    let vocabulary = recording["vocabulary"]["file"].as_str().unwrap_or_default();
    Ok(Verification { weights: folder.join(vocabulary), arrays: vec![array] })
}
