//! What does not match between a file of transformers and its configuration, in the names and options of transformers.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::ModelType;
use crate::architecture::Architecture;
use crate::layers::Mode;

/// Shapes by name.
type Shapes = BTreeMap<String, Vec<usize>>;

impl ModelType {
    /// One line for each tensor that is missing, unknown or of another shape than `config` says.
    pub(crate) fn misfits(&self, tensors: &Shapes, config: &Value, model: &Architecture) -> Vec<String> {
        let expected = self.shapes(model);
        let mut lines = Vec::new();
        let mut options = OptionsOfShapes { kind: self, config, changed: None };
        let find = |name: &str| {
            let inside = format!("{}{name}", self.base);
            [inside, name.to_string()].into_iter().find_map(|name| tensors.get_key_value(&name))
        };
        let without_ones = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        // A patch embedding may be a matrix.
        let matches = |found: &[usize], expected: &[usize]| {
            let elements = |shape: &[usize]| shape.iter().product::<usize>();
            without_ones(found) == without_ones(expected)
                || (found.len() != expected.len() && elements(found) == elements(expected))
        };
        for (name, shape) in &expected {
            match find(name) {
                Some((_, found)) if matches(found, shape) => {}
                // Positions of another image size are resampled.
                Some(_) if name.contains("position_embedding") => {}
                Some((theirs, found)) => {
                    let from = options.of(name, shape);
                    lines.push(format!("`{theirs}` has shape {found:?}, expected {shape:?}{from}"));
                }
                None => lines.push(format!("`{name}` is missing, expected {shape:?}{}", options.of(name, shape))),
            }
        }
        let names = (self.names)(model);
        for (name, shape) in tensors {
            let inner = name.strip_prefix(self.base).unwrap_or(name);
            let unused = self.unused.iter().any(|unused| inner.starts_with(unused) || name.starts_with(unused));
            let known = expected.contains_key(inner) || expected.contains_key(name);
            // SigLIP's pooling has its projections apart.
            let split = names.ours(inner).is_some_and(|(ours, _)| ours.starts_with("attn_pool.qkv."));
            if !unused && !known && !split && !super::names::is_buffer(name) {
                lines.push(format!("`{name}` {shape:?} is no part of the model"));
            }
        }
        lines
    }

    /// The shapes of a model's tensors under transformers' names, without the prefix of a class with a head.
    fn shapes(&self, model: &Architecture) -> Shapes {
        let names = (self.names)(model);
        let mut shapes = Shapes::new();
        let Ok(graph) = model.build(1, Mode::Inference) else { return shapes };
        for (_, parameter) in graph.parameters() {
            let theirs = names.theirs(&parameter.name);
            for name in &theirs {
                let mut shape = parameter.shape.to_vec();
                if let [rows, ..] = &mut shape[..] {
                    *rows /= theirs.len();
                }
                shapes.insert(name.clone(), shape);
            }
        }
        shapes
    }
}

/// Finds the options that a shape depends on, by changing each of them.
struct OptionsOfShapes<'a> {
    kind: &'a ModelType,
    config: &'a Value,
    /// The shapes after the change of each option, computed when first needed.
    changed: Option<Vec<(String, Shapes)>>,
}

impl OptionsOfShapes<'_> {
    /// `` (from `hidden_size` 48)``.
    fn of(&mut self, name: &str, shape: &[usize]) -> String {
        let (kind, config) = (self.kind, self.config);
        let changed = self.changed.get_or_insert_with(|| changes(kind, config));
        let from: Vec<&str> = changed
            .iter()
            .filter(|(_, shapes)| !shapes.is_empty() && shapes.get(name).map(Vec::as_slice) != Some(shape))
            .map(|(option, _)| option.as_str())
            .collect();
        if from.is_empty() { String::new() } else { format!(" (from {})", from.join(", ")) }
    }
}

/// Every option of a configuration with its value, and the shapes of the model in which it has another.
fn changes(kind: &ModelType, config: &Value) -> Vec<(String, Shapes)> {
    let Some(map) = config.as_object() else { return Vec::new() };
    let class = map.get("architectures").and_then(|a| a.as_array()?.first()?.as_str()).unwrap_or_default();
    let shapes = |map: &Map<String, Value>| {
        kind.config(class, map, None).map_or_else(|_| Shapes::new(), |config| kind.shapes(&config.architecture))
    };
    let mut all = Vec::new();
    for (option, value) in map {
        if ["vision_config", "text_config"].contains(&option.as_str()) {
            for (inner, value) in value.as_object().into_iter().flatten() {
                if let Some(other) = another(value) {
                    let mut map = map.clone();
                    map[option][inner] = other;
                    all.push((format!("`{inner}` {value}"), shapes(&map)));
                }
            }
        } else if let Some(other) = another(value) {
            let mut map = map.clone();
            map.insert(option.clone(), other);
            all.push((format!("`{option}` {value}"), shapes(&map)));
        }
    }
    all
}

/// Another value of an option: sizes twice as large, which all divisors allow.
fn another(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(on) => Some(json!(!on)),
        Value::Number(number) => match number.as_u64() {
            Some(0) => Some(json!(1)),
            Some(count) => Some(json!(count.checked_mul(2)?)),
            None => Some(json!(number.as_f64()? * 2.0)),
        },
        Value::Array(all) if all.iter().all(Value::is_u64) && !all.is_empty() => {
            Some(Value::Array(all.iter().filter_map(another).collect()))
        }
        _ => None,
    }
}
