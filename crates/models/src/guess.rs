//! Guesses a model's configuration from its weights.

use crate::architecture::Architecture;
use crate::config::Config;
use crate::layers::Mode;
use crate::problem_type::ProblemType;
use crate::registry::registered;
use crate::variant::{Variant, variants};
use crate::weights::{Scheme, Weights};

/// Guesses the configuration of weights with canonical names: from their shapes where the architecture can, otherwise by
/// the named variant that has exactly these parameters.
pub fn guess(weights: &Weights, scheme: Scheme) -> Result<Config, String> {
    if let Some(found) = registered().iter().find_map(|architecture| (architecture.guess)(weights, scheme)) {
        return Ok(found);
    }
    named(weights)?.ok_or_else(|| {
        "the weights are no Vision Transformer's, nor those of a model known by name; a config.json beside them would say what they are".into()
    })
}

/// The variant with these parameters, whatever its classes and channels. Two variants that compute differently may have the
/// same parameters: then it is an error.
fn named(weights: &Weights) -> Result<Option<Config>, String> {
    let shape = |name: &str| weights.tensors.get(name).map(|t| t.shape.as_slice());
    let fits = |architecture: &Architecture| {
        let Ok(graph) = architecture.build(1, Mode::Inference) else { return false };
        let all = || graph.parameters().map(|(_, p)| p);
        all().count() == weights.tensors.len() && all().all(|p| shape(&p.name) == Some(&p.shape[..]))
    };
    let mut found: Vec<Variant> = Vec::new();
    for mut v in variants() {
        let Some(&[_, channels, _, _]) = shape(&v.architecture.first_filters()) else { continue };
        let head = shape(&format!("{}.weight", v.architecture.heads()[0]));
        v.architecture.set_channels(channels);
        v.architecture.set_classes(head.and_then(|s| s.first().copied()).unwrap_or(0));
        if fits(&v.architecture) {
            found.push(v);
        }
    }
    let sized = |v: &Variant| {
        let mut architecture = v.architecture.clone();
        architecture.set_image_size([224, 224]);
        architecture
    };
    if let Some(other) = found.iter().find(|v| sized(v) != sized(&found[0])) {
        return Err(format!(
            "the weights fit {} as well as {}; a config.json with `{{\"architecture\": \"{}\"}}` beside them would say which",
            found[0].name, other.name, other.name
        ));
    }
    Ok(found.into_iter().next().map(|v| Config {
        name: Some(v.name),
        architecture: v.architecture,
        preprocessing: v.preprocessing,
        labels: Vec::new(),
        problem_type: ProblemType::default(),
    }))
}
