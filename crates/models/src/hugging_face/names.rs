//! Tables of tensor names, read in both directions.
//!
//! A row has transformers' name of a module or tensor and the canonical one. `*` is an index that both have in the same
//! order; `+` in a canonical name is transformers' index plus one. `#0`, `#1` and `#2` after a canonical name are the thirds
//! of its rows: transformers has one matrix each for query, key and value where timm has one for all three.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use crate::weights::{Tensor, Weights, WeightsError};

/// One row: transformers' name, the canonical one.
type Row = (Cow<'static, str>, Cow<'static, str>);

/// Ends of the names of buffers, which follow from the configuration or count training steps.
const BUFFERS: [&str; 4] =
    [".num_batches_tracked", ".relative_position_index", ".position_ids", ".relative_coords_table"];

/// The names of one model type's tensors.
#[derive(Default)]
pub(super) struct Names {
    rows: Vec<Row>,
}

impl Names {
    /// A table, in which of several rows for one canonical name the first is written.
    pub fn new(rows: &[(&'static str, &'static str)]) -> Self {
        Names { rows: rows.iter().map(|&(theirs, ours)| (theirs.into(), ours.into())).collect() }
    }

    /// The table with more rows.
    pub fn and(mut self, rows: &[(&'static str, &'static str)]) -> Self {
        self.rows.extend(Names::new(rows).rows);
        self
    }

    /// The table with more rows, whose names of transformers have a prefix.
    pub fn and_prefixed(mut self, prefix: &str, rows: &[(&'static str, &'static str)]) -> Self {
        for &(theirs, ours) in rows {
            self.add(format!("{prefix}{theirs}"), ours);
        }
        self
    }

    /// Adds a row.
    pub fn add(&mut self, theirs: impl Into<Cow<'static, str>>, ours: impl Into<Cow<'static, str>>) {
        self.rows.push((theirs.into(), ours.into()));
    }

    /// The canonical name of a tensor, and which third of it this is.
    pub fn ours(&self, theirs: &str) -> Option<(String, Option<usize>)> {
        self.rows.iter().find_map(|(pattern, ours)| {
            let found = Matched::new(theirs, pattern)?;
            let (ours, part) = parted(ours);
            Some((found.fill(ours, |index| index + 1), part))
        })
    }

    /// transformers' names of a canonical tensor: one, or three for its thirds.
    pub fn theirs(&self, ours: &str) -> Vec<String> {
        let mut all: BTreeMap<Option<usize>, String> = BTreeMap::new();
        for (theirs, pattern) in &self.rows {
            let (pattern, part) = parted(pattern);
            if let Some(found) = Matched::new(ours, pattern) {
                all.entry(part).or_insert_with(|| found.fill(theirs, |index| index.saturating_sub(1)));
            }
        }
        all.into_values().collect()
    }
}

/// A canonical name of a table without its `#`, and the number after it.
fn parted(ours: &str) -> (&str, Option<usize>) {
    match ours.split_once('#') {
        Some((name, part)) => (name, part.parse().ok()),
        None => (ours, None),
    }
}

/// A name that begins with a pattern.
struct Matched<'a> {
    /// The indices, and whether the pattern counts them from one.
    indices: Vec<(usize, bool)>,
    /// The name after the pattern, with its dot.
    rest: &'a str,
}

impl<'a> Matched<'a> {
    fn new(name: &'a str, pattern: &str) -> Option<Self> {
        let mut indices = Vec::new();
        let mut left = name;
        for (at, part) in pattern.split('.').enumerate() {
            if at > 0 {
                left = left.strip_prefix('.')?;
            }
            let end = left.find('.').unwrap_or(left.len());
            let (segment, after) = left.split_at(end);
            match part.find(['*', '+']) {
                Some(star) => {
                    let index = segment.strip_prefix(&part[..star])?.parse().ok()?;
                    indices.push((index, part.ends_with('+')));
                }
                None if part == segment => {}
                None => return None,
            }
            left = after;
        }
        Some(Matched { indices, rest: left })
    }

    /// The other side's pattern with these indices; one that only one side counts from one is `moved`.
    fn fill(&self, pattern: &str, moved: impl Fn(usize) -> usize) -> String {
        let mut filled = String::new();
        let mut indices = self.indices.iter();
        for c in pattern.chars() {
            match c {
                '*' | '+' => {
                    let &(index, from_one) = indices.next().unwrap_or(&(0, false));
                    let index = if from_one != (c == '+') { moved(index) } else { index };
                    filled.push_str(&index.to_string());
                }
                _ => filled.push(c),
            }
        }
        filled + self.rest
    }
}

/// Whether a tensor is no parameter.
pub(super) fn is_buffer(name: &str) -> bool {
    BUFFERS.iter().any(|buffer| name.ends_with(buffer))
}

/// Tensors under canonical names, with thirds stacked and axes of length 1 as in the model.
pub(super) fn to_canonical(
    weights: Weights,
    names: &Names,
    base: &str,
    unused: &[&str],
    shapes: &HashMap<String, Vec<usize>>,
) -> Result<Weights, WeightsError> {
    let mut ours = Weights { metadata: weights.metadata, ..Weights::default() };
    let mut thirds: BTreeMap<String, [Option<Tensor>; 3]> = BTreeMap::new();
    for (name, tensor) in weights.tensors {
        let inner = name.strip_prefix(base).unwrap_or(&name);
        if is_buffer(&name) || unused.iter().any(|unused| inner.starts_with(unused) || name.starts_with(unused)) {
            continue;
        }
        match names.ours(inner).or_else(|| names.ours(&name)) {
            Some((name, Some(part))) => thirds.entry(name).or_default()[part.min(2)] = Some(tensor),
            Some((name, None)) => ours.insert(name, tensor)?,
            // An unknown tensor keeps its name, and is reported when the weights are adapted to the model.
            None => ours.insert(name, tensor)?,
        }
    }
    for (name, parts) in thirds {
        let [Some(a), Some(b), Some(c)] = parts else { return Err(WeightsError::Missing { name }) };
        let stacked = crate::weights::names::concat(&name, vec![a, b, c])?;
        ours.insert(name, stacked)?;
    }
    let without_ones = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
    for (name, tensor) in &mut ours.tensors {
        if let Some(shape) = shapes.get(name).filter(|shape| without_ones(shape) == without_ones(&tensor.shape)) {
            tensor.shape.clone_from(shape);
        }
    }
    Ok(ours)
}

/// Canonical tensors under transformers' names; one that the table does not have is an error.
pub(super) fn from_canonical(weights: &Weights, names: &Names, kind: &str) -> Result<Weights, WeightsError> {
    let mut theirs = Weights { metadata: weights.metadata.clone(), ..Weights::default() };
    for (name, tensor) in &weights.tensors {
        let found = names.theirs(name);
        match &found[..] {
            [] => {
                let what = format!("transformers' `{kind}` has no such tensor; write timm's names instead");
                return Err(WeightsError::tensor(name, what));
            }
            [one] => theirs.insert(one, tensor.clone())?,
            parts => {
                let mut shape = tensor.shape.clone();
                match shape.first_mut() {
                    Some(rows) if rows.is_multiple_of(parts.len()) && !tensor.data.is_empty() => *rows /= parts.len(),
                    _ => return Err(WeightsError::shape(name, &tensor.shape, "[3 × dim, …]")),
                }
                for (part, values) in parts.iter().zip(tensor.data.chunks(tensor.data.len() / parts.len())) {
                    theirs.insert(part, Tensor::new(shape.clone(), values.into())?)?;
                }
            }
        }
    }
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::Names;

    #[test]
    fn tables_are_read_in_both_directions() {
        let names = Names::new(&[
            ("encoder.stages.*.layers.*.layer.0.convolution", "layer+.*.conv1"),
            ("encoder.layer.*.attention.query", "blocks.*.attn.qkv#0"),
            ("encoder.layer.*.attention.key", "blocks.*.attn.qkv#1"),
            ("layers.*.q_proj", "blocks.*.attn.qkv#0"),
            ("cls_token", "cls_token"),
        ]);
        let ours = |name: &str| names.ours(name);
        assert_eq!(
            ours("encoder.stages.2.layers.11.layer.0.convolution.weight"),
            Some(("layer3.11.conv1.weight".into(), None))
        );
        assert_eq!(ours("encoder.layer.7.attention.key.bias"), Some(("blocks.7.attn.qkv.bias".into(), Some(1))));
        assert_eq!(ours("cls_token"), Some(("cls_token".into(), None)));
        assert_eq!(ours("cls_tokens"), None);
        assert_eq!(ours("encoder.layer.x.attention.key.bias"), None);
        assert_eq!(names.theirs("layer3.11.conv1.weight"), ["encoder.stages.2.layers.11.layer.0.convolution.weight"]);
        assert_eq!(
            names.theirs("blocks.7.attn.qkv.bias"),
            ["encoder.layer.7.attention.query.bias", "encoder.layer.7.attention.key.bias"]
        );
    }
}
