//! Recordings of image-text models: embeddings of images and texts, the logits of their pairs, and what a tokeniser makes of
//! the texts.

use serde_json::Value;
use vit_data::tokenise::Tokeniser;
use vit_graph::device::Elements;
use vit_graph::rewrite::eliminate_dead_code;
use vit_models::clip::{Clip, PairExtents};
use vit_models::weights::{Tensor, Weights};
use vit_models::{Checkpoint, Mode};

use super::{Comparison, VerifyOptions, largest_difference, request, usual_tolerance};
use crate::Error;
use crate::device::quantised;
use crate::text::tokeniser_of;

const IDS: &str = "input_ids";
const MASK: &str = "attention_mask";
/// Ends the names of arrays that were recorded with the mask.
const MASKED: &str = "_masked";

/// The model's name for a recorded array.
fn output(name: &str) -> &str {
    match name {
        "image_tokens" => "tokens",
        // The sigmoids of the logits.
        "probs" => "logits_per_image",
        name => name.strip_suffix(MASKED).unwrap_or(name),
    }
}

/// Whether a recording is one of pairs.
pub(super) fn is_recorded(io: &Weights) -> bool {
    io.tensors.contains_key(IDS)
}

/// Runs both towers on the recorded images and ids, and compares all other arrays.
pub(super) fn compare(
    checkpoint: &Checkpoint,
    clip: &Clip,
    mut io: Weights,
    recording: &Value,
    options: &VerifyOptions,
    unsuitable: &dyn Fn(String) -> Error,
) -> Result<Vec<Comparison>, Error> {
    let missing = |name: &str| unsuitable(format!("there is no array named `{name}`"));
    let input = io.tensors.remove("input").ok_or_else(|| missing("input"))?;
    let ids = io.tensors.remove(IDS).ok_or_else(|| missing(IDS))?;
    let mask = io.tensors.remove(MASK);
    let [images, channels, height, width] = input.shape[..] else {
        return Err(unsuitable(format!("`input` should be [images, channels, height, width], not {:?}", input.shape)));
    };
    let mut clip = clip.clone();
    clip.image.image_size = [height, width];
    let texts = match ids.shape[..] {
        [texts, context] if context == clip.text.context => texts,
        _ => {
            let context = clip.text.context;
            return Err(unsuitable(format!("`{IDS}` should be [texts, {context}], not {:?}", ids.shape)));
        }
    };
    if channels != clip.image.channels {
        let expected = clip.image.channels;
        return Err(unsuitable(format!("`input` has {channels} channels, the model takes {expected}")));
    }
    let mut arrays = Vec::new();
    arrays.extend(tokenised(checkpoint, recording, &ids)?);
    // transformers' CLIP masks padding, which changes nothing but the padded tokens; its SigLIP does not.
    let masks_all = mask.is_some() && !io.tensors.keys().any(|name| name.ends_with(MASKED));
    for masked in [false, true] {
        let of_this_run = |name: &str| masked == (masks_all || name.ends_with(MASKED));
        let recorded: Vec<String> = io.tensors.keys().filter(|name| of_this_run(name)).cloned().collect();
        if recorded.is_empty() {
            continue;
        }
        let mask = mask.as_ref().filter(|_| masked);
        let extents = PairExtents { images, texts, masked: mask.is_some() };
        let mut graph = clip.build_pairs(extents, Mode::Inference)?;
        let available: Vec<String> =
            recorded.iter().filter(|name| request(&mut graph, output(name)).is_ok()).cloned().collect();
        graph.retain_outputs(|name| available.iter().any(|recorded| output(recorded) == name));
        let graph = quantised(eliminate_dead_code(&graph)?, options.device.precision)?;
        let mut executable = options.device.open()?.compile(&graph, &mut &checkpoint.weights)?;
        let whole: Vec<i32> = ids.data.iter().map(|&id| id as i32).collect();
        let ends = clip.text.ends(&whole);
        let inputs: Vec<String> = graph.inputs().map(|(_, input)| input.name.clone()).collect();
        for name in &inputs {
            let elements = match (name.as_str(), mask) {
                ("image", _) => Elements::F32(&input.data),
                ("ids", _) => Elements::I32(&whole),
                ("ends", _) => Elements::I32(&ends),
                (_, Some(mask)) => Elements::F32(&mask.data),
                (other, None) => return Err(missing(other)),
            };
            executable.write(name, elements)?;
        }
        executable.run()?;
        for name in recorded {
            let expected = io.take(&name)?;
            let found = match graph.output(output(&name)).ok().filter(|_| available.contains(&name)) {
                None => None,
                Some(value) => {
                    let mut found = vec![0.0; graph.shape(value).elements()];
                    executable.read(output(&name), &mut found)?;
                    Some(if name == "probs" { found.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect() } else { found })
                }
            };
            let tolerance = usual_tolerance(&name, recording, options.device.precision);
            let tolerance = options.tolerance.unwrap_or(tolerance);
            arrays.push(Comparison::new(name, &expected, found.as_deref(), tolerance));
        }
    }
    Ok(arrays)
}

/// The ids of the recorded texts, if there are any and the model has a tokeniser.
fn tokenised(checkpoint: &Checkpoint, recording: &Value, ids: &Tensor) -> Result<Option<Comparison>, Error> {
    let texts: Option<Vec<&str>> =
        recording["texts"].as_array().and_then(|texts| texts.iter().map(Value::as_str).collect());
    let Some(texts) = texts else { return Ok(None) };
    let tokeniser: Tokeniser = tokeniser_of(checkpoint)?;
    let mut found = Vec::with_capacity(ids.data.len());
    for text in texts {
        found.extend(tokeniser.encode(text)?.ids.into_iter().map(|id| id as f32));
    }
    let found_shape = found.len() == ids.data.len();
    Ok(Some(Comparison {
        name: IDS.into(),
        shape: ids.shape.clone(),
        difference: found_shape.then(|| largest_difference(&ids.data, &found)),
        tolerance: 0.0,
        note: (!found_shape).then(|| format!("the tokeniser gives {} ids", found.len())),
    }))
}
