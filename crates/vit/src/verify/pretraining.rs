//! Recordings of pre-training without labels: the masks are given, and predictions, loss and gradients are compared.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use vit_graph::device::Elements;
use vit_graph::ops::{ColourClass, Constant, Gather};
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{Graph, GraphError, Value};
use vit_models::Checkpoint;
use vit_models::vit::{Masks, PatchTarget, Pretraining, Vit};
use vit_models::weights::{Tensor, Weights};
use vit_train::{Colours, MaskedPrediction};

use super::{Comparison, ReplayError, VerifyOptions, loss, usual_tolerance};

/// Recorded arrays of masks.
const MASKS: [&str; 2] = ["noise", "corrupted"];

/// Whether a recording has masks.
pub(super) fn is_recorded(io: &Weights) -> bool {
    MASKS.iter().any(|name| io.tensors.contains_key(*name))
}

/// The masks of a recording as inputs of a graph, and as arrays that may be recorded too.
struct RecordedMasks {
    order: Vec<i32>,
    sources: Option<Vec<i32>>,
    arrays: BTreeMap<&'static str, Vec<f32>>,
}

/// Compares a recorded step of pre-training.
pub(super) fn compare(
    checkpoint: &mut Checkpoint,
    mut io: Weights,
    recording: &Json,
    options: &VerifyOptions,
) -> Result<Vec<Comparison>, ReplayError> {
    let colours = Colours {
        mean: checkpoint.config.preprocessing.mean.clone(),
        std: checkpoint.config.preprocessing.std.clone(),
    };
    let wrong = |what: &str| ReplayError::Recording(what.into());
    let Some(vit) = checkpoint.config.architecture.downcast_ref::<Vit>().cloned() else {
        return Err(wrong("only Vision Transformers can be pre-trained without labels"));
    };
    let input = io.tensors.remove("input").ok_or_else(|| wrong("there is no array named `input`"))?;
    let batch = input.shape.first().copied().unwrap_or(0);
    let patches: usize = vit.grid().iter().product();
    if input.shape != [batch, vit.channels, vit.image_size[0], vit.image_size[1]] {
        let found = format!("`input` should be [batch, channels, height, width] of the model, not {:?}", input.shape);
        return Err(ReplayError::Recording(found));
    }
    let masks = masks(&vit, &mut io, batch * patches).ok_or_else(|| wrong("its masks are not those of the model"))?;
    // Names of timm's files have no mask token.
    let token = io.tensors.remove("grad.mask_token");
    loss::canonical_gradients(&mut io)?;
    io.tensors.extend(token.map(|token| ("grad.mask_token".to_string(), token)));

    let mut graph = checkpoint.config.architecture.build_pretraining(batch, Masks::Given)?;
    append(&mut graph, &vit, &colours, &io)?;
    let output = |name: &str| match name {
        "encoder_tokens" => "tokens".to_string(),
        "decoder_prediction" | "logits" => "prediction_all".into(),
        _ => name.to_string(),
    };
    let recorded: Vec<String> = io.tensors.keys().map(|name| output(name)).collect();
    graph.retain_outputs(|name| recorded.iter().any(|recorded| recorded == name));
    let graph = eliminate_dead_code(&graph)?;
    let mut executable = options.device.open()?.compile(&graph, &mut checkpoint.weights)?;
    executable.write("image", Elements::F32(&input.data))?;
    for (name, indices) in [("order", Some(&masks.order)), ("sources", masks.sources.as_ref())] {
        if let Some(indices) = indices.filter(|_| graph.inputs().any(|(_, input)| input.name == name)) {
            executable.write(name, Elements::I32(indices))?;
        }
    }
    executable.run()?;
    let mut arrays = Vec::new();
    for (name, expected) in &io.tensors {
        let found = match (masks.arrays.get(name.as_str()), graph.output(&output(name))) {
            (Some(array), _) => Some(array.clone()),
            (None, Ok(value)) => {
                let mut found = vec![0.0; graph.shape(value).elements()];
                executable.read(&output(name), &mut found)?;
                Some(found)
            }
            (None, Err(_)) if name.starts_with("sincos_") => Some(positions(&vit, expected)),
            (None, Err(_)) => None,
        };
        let exact = masks.arrays.contains_key(name.as_str()) || name == "targets";
        let usual = match name.as_str() {
            _ if exact => 0.0,
            _ if name.starts_with("sincos_") => 1e-6,
            _ => usual_tolerance(name, recording, options.device.precision),
        };
        let tolerance = options.tolerance.filter(|_| !exact).unwrap_or(usual);
        arrays.push(Comparison::new(name.clone(), expected, found.as_deref(), tolerance));
    }
    Ok(arrays)
}

/// The positions of a new masked autoencoder.
fn positions(vit: &Vit, expected: &Tensor) -> Vec<f32> {
    let width = expected.shape.last().copied().unwrap_or(0);
    vit_models::vit::sin_cos_mae(vit.prefix_tokens(), vit.grid(), width)
}

/// The order of a masked autoencoder's noise, or the corruption of masked patches.
fn masks(vit: &Vit, io: &mut Weights, places: usize) -> Option<RecordedMasks> {
    let patches: usize = vit.grid().iter().product();
    let mut take = |name: &str| io.tensors.remove(name).map(|array| array.data).filter(|data| data.len() == places);
    let mut order: Vec<i32> = Vec::with_capacity(places);
    match vit.pretraining.as_ref()? {
        Pretraining::MaskedAutoencoder(mae) => {
            let noise = take("noise")?;
            let (mut mask, mut restored) = (vec![1.0; places], vec![0.0; places]);
            for (sample, noise) in noise.chunks_exact(patches).enumerate() {
                let mut sorted: Vec<usize> = (0..patches).collect();
                sorted.sort_by(|&a, &b| noise[a].total_cmp(&noise[b]));
                for (place, &patch) in sorted.iter().enumerate() {
                    restored[sample * patches + patch] = place as f32;
                    if place < mae.kept(patches) {
                        mask[sample * patches + patch] = 0.0;
                    }
                }
                order.extend(sorted.iter().map(|&patch| patch as i32));
            }
            Some(RecordedMasks { order, sources: None, arrays: [("mask", mask), ("ids_restore", restored)].into() })
        }
        Pretraining::MaskedPatches(_) => {
            let (corrupted, kind, other) = (take("corrupted")?, take("kind")?, take("other_index")?);
            let mut sources = Vec::with_capacity(places);
            for sample in 0..places / patches.max(1) {
                let all = sample * patches..(sample + 1) * patches;
                let (first, rest): (Vec<usize>, Vec<usize>) = all.clone().partition(|&place| corrupted[place] != 0.0);
                order.extend(first.iter().chain(&rest).map(|place| (place - all.start) as i32));
                sources.extend(all.clone().map(|place| match kind[place] as i32 {
                    0 => patches as i32,
                    1 => other[place] as i32,
                    _ => (place - all.start) as i32,
                }));
            }
            Some(RecordedMasks { order, sources: Some(sources), arrays: BTreeMap::new() })
        }
        Pretraining::SelfDistillation(_) => None,
    }
}

/// Appends the loss, the classes of all patches' mean colours as `targets`, and the gradients that were recorded.
fn append(graph: &mut Graph, vit: &Vit, colours: &Colours, io: &Weights) -> Result<(), GraphError> {
    let image = graph.inputs().find(|(_, input)| input.name == "image").map(|(node, _)| Value { node, output: 0 });
    let [prediction, order] = MaskedPrediction::OUTPUTS.map(|name| graph.output(name));
    let (prediction, order) = (prediction?, order?);
    let found = MaskedPrediction { image: image.unwrap_or(prediction), prediction, order };
    let loss = found.loss(graph, vit, colours)?;
    graph.set_output("loss", loss)?;
    if io.tensors.contains_key("targets") {
        let Colours { mean, std } = colours.clone();
        let classes = graph.value(ColourClass { cell: vit.patch_size, mean, std }, &[found.image])?;
        let count = PatchTarget::colours(vit.channels);
        let names = Constant::f32([count], (0..count).map(|class| class as f32).collect());
        let names = graph.value(names, &[])?;
        let targets = graph.value(Gather, &[names, classes])?;
        graph.set_output("targets", targets)?;
    }
    loss::append_gradients(graph, loss, io)
}
