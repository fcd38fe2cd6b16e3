//! Comparing a device with the reference interpreter.

use vit_graph::device::Device;
use vit_graph::ops::Op;
use vit_graph::reference::{self, Array};
use vit_graph::{Graph, GraphError};

use crate::{Case, Rng};

/// Runs a case on a device and returns, for every output, its name and its largest difference from the reference
/// interpreter, relative to `1 + |largest expected|`. The loss is compared by the size of the outputs that it sums: where
/// these cancel, their rounding errors do not.
///
/// Non-finite values compare as follows.
/// - Expected infinite: the device must return something non-finite.
/// - Expected NaN, with a NaN among the inputs: the device must return NaN.
/// - Expected NaN without one (∞ − ∞ or 0 · ∞): anything goes, since another order of operations may find a limit.
/// - Expected finite, in a convolution with padding and a non-finite input: NaN is accepted, since a device may
///   multiply a non-finite filter tap by the padding's zeros or skip the padding.
pub fn check(device: &dyn Device, case: &Case) -> Result<Vec<(String, f64)>, GraphError> {
    let expected = reference::run(&case.graph, &case.bindings)?;
    let mut executable = case.compile(device)?;
    executable.run()?;
    let values = case.values();
    let nan_given = values.values().flatten().any(|v| v.is_nan());
    let padding_multiplied = !values.values().flatten().all(|v| v.is_finite()) && has_padding(&case.graph);
    let largest = |array: &Array| array.data().iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let summed = expected.iter().filter(|(name, _)| name.starts_with('y')).map(|(_, y)| largest(y)).fold(0.0, f64::max);
    let mut differences = Vec::new();
    for (name, expected) in &expected {
        let mut found = vec![f32::NAN; expected.data().len()];
        executable.read(name, &mut found)?;
        let largest = largest(expected).max(if name == "loss" { summed } else { 0.0 });
        let difference = expected.data().iter().zip(&found).map(|(e, f)| {
            let accepted = match e {
                e if e.is_nan() => f.is_nan() || !nan_given,
                e if e.is_infinite() => !f.is_finite(),
                _ if padding_multiplied && f.is_nan() => true,
                e => return (e - f64::from(*f)).abs(),
            };
            if accepted { 0.0 } else { f64::INFINITY }
        });
        differences.push((name.clone(), largest_or_nan(difference) / (1.0 + largest)));
    }
    Ok(differences)
}

/// The largest value, or NaN if there is one, which `f64::max` would drop.
pub(crate) fn largest_or_nan(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |m, d| if d.is_nan() || d > m { d } else { m })
}

fn has_padding(graph: &Graph) -> bool {
    graph.nodes().iter().any(|node| matches!(&node.op, Op::Conv2d(conv) if conv.padding != [[0; 2]; 2]))
}

/// For each input and parameter of a case, a copy in which one of its elements is `value`, a NaN or an infinity.
pub fn non_finite_variants(case: &Case, seed: u32, value: f64) -> Vec<Case> {
    let mut rng = Rng::new(seed, 0);
    let variant = |name: &String| {
        let mut variant = Case { name: format!("{} with {value} in {name}", case.name), ..case.clone() };
        let elements = variant.bindings.get_mut(name).map(Array::data_mut).unwrap_or_default();
        if !elements.is_empty() {
            elements[rng.word() as usize % elements.len()] = value;
        }
        variant
    };
    case.names.iter().map(variant).collect()
}
