//! Finds the state dict in a checkpoint. Training code nests it in other dicts; the usual keys are followed, averaged
//! weights first, as timm does.

use std::collections::{BTreeMap, BTreeSet};

use super::FORMAT;
use super::document::{Document, PickleNode, PickleValue, TensorRef};
use crate::weights::WeightsError;

/// Keys under which state dicts are kept, in the order they are preferred.
const USUAL: [&str; 10] = [
    "state_dict_ema",
    "model_ema",
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "net",
    "network",
    "teacher",
    // I-JEPA's, beside its predictor.
    "encoder",
];
const DEEPEST: usize = 4;
/// Prefixes that data-parallel and compiled modules put before every name.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// Tensors by name.
pub(super) type StateDict<'a, 'd> = BTreeMap<String, &'d TensorRef<'a>>;

/// The state dict of a checkpoint, without the prefixes of wrappers.
pub(super) fn find<'a, 'd>(document: &'d Document<'a>) -> Result<StateDict<'a, 'd>, WeightsError> {
    let mut at = document.top;
    for _ in 0..DEEPEST {
        let Some(PickleNode::Dict(items)) = document.node(at) else {
            break;
        };
        if let Some(inner) = usual(document, items) {
            at = inner;
            continue;
        }
        let tensors = tensors(document, items);
        if !tensors.is_empty() {
            return Ok(unwrapped(tensors));
        }
        match only(document, items) {
            Some(inner) => at = inner,
            None => break,
        }
    }
    Err(WeightsError::unsupported(
        FORMAT,
        "the checkpoint holds no state dict (a dict of tensors by name); in Python, save one with \
         torch.save(model.state_dict(), 'weights.pt')",
    ))
}

/// The dict under the most preferred of the usual keys.
fn usual<'a>(document: &Document<'a>, items: &[(PickleValue<'a>, PickleValue<'a>)]) -> Option<PickleValue<'a>> {
    USUAL.iter().find_map(|usual| {
        items.iter().rev().find_map(|&(key, value)| {
            let is_it = matches!(key, PickleValue::Str(key) if key == *usual)
                && matches!(document.node(value), Some(PickleNode::Dict(inner)) if !inner.is_empty());
            is_it.then_some(value)
        })
    })
}

/// The only dict of tensors, whatever its key.
fn only<'a>(document: &Document<'a>, items: &[(PickleValue<'a>, PickleValue<'a>)]) -> Option<PickleValue<'a>> {
    // Each container once: a hostile file may refer to one of them a million times.
    let containers: BTreeSet<usize> = items
        .iter()
        .filter_map(|&(_, value)| match value {
            PickleValue::Node(at) => Some(at),
            _ => None,
        })
        .collect();
    let mut found = containers.into_iter().map(PickleValue::Node).filter(
        |&value| matches!(document.node(value), Some(PickleNode::Dict(inner)) if !tensors(document, inner).is_empty()),
    );
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The tensors of a dict by name; as in Python, the last of two equal keys counts.
fn tensors<'a, 'd>(document: &'d Document<'a>, items: &[(PickleValue<'a>, PickleValue<'a>)]) -> StateDict<'a, 'd> {
    items
        .iter()
        .filter_map(|&(key, value)| match (key, document.node(value)) {
            (PickleValue::Str(name), Some(PickleNode::Tensor(tensor))) => Some((name.to_string(), tensor.as_ref())),
            _ => None,
        })
        .collect()
}

fn unwrapped<'a, 'd>(mut tensors: StateDict<'a, 'd>) -> StateDict<'a, 'd> {
    while let Some(wrapper) = WRAPPERS.iter().find(|wrapper| tensors.keys().all(|name| name.starts_with(**wrapper))) {
        tensors = tensors.into_iter().map(|(name, tensor)| (name[wrapper.len()..].to_string(), tensor)).collect();
    }
    tensors
}
