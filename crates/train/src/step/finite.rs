//! Finds the first operation of a graph whose result has an infinity or NaN.

use std::collections::BTreeMap;

use vit_graph::device::{Device, Elements, Parameters};
use vit_graph::ops::{Op, Operation};
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{DType, Graph, GraphError, NodeId, Value};

/// Bytes of results that one run outputs: all results of a graph together may exceed memory.
const WINDOW: usize = 1 << 30;

/// The first result that is not finite.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NonFinite {
    /// The operation, or `input NAME` or `parameter NAME` if that is not finite already.
    pub op: String,
    /// Its scope in the model, such as `blocks.3.attn`.
    pub scope: String,
    /// How many of its elements are not finite.
    pub elements: usize,
    /// Out of how many.
    pub of: usize,
}

impl std::fmt::Display for NonFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NonFinite { op, scope, elements, of } = self;
        let place = if scope.is_empty() { String::new() } else { format!(" in {scope}") };
        write!(f, "{op}{place}: {elements} of {of} elements are not finite")
    }
}

impl NonFinite {
    /// The cause, if it lies outside of the step.
    pub(crate) fn origin(&self) -> Option<&'static str> {
        match self.op.split_once(' ')? {
            ("input", "teacher") => Some("the teacher's logits are not finite: check its weights"),
            ("input", _) => Some("the step's inputs are not finite: check the images and the model's mean and std"),
            ("parameter", _) => Some("the weights were not finite before this step: start from another checkpoint"),
            _ => None,
        }
    }
}

/// Runs a graph without its updates and finds the first input, parameter or operation that is not finite.
pub fn first_non_finite(
    device: &dyn Device,
    graph: &Graph,
    inputs: &[(&str, Elements)],
    parameters: &mut dyn Parameters,
) -> Result<Option<NonFinite>, GraphError> {
    let mut values = BTreeMap::new();
    for (node, parameter) in graph.parameters() {
        let Some(elements) = parameters.take(parameter).map(|e| e.into_owned()) else { continue };
        if let Some(found) = look(&elements, graph, node, format!("parameter {}", parameter.name)) {
            return Ok(Some(found));
        }
        values.insert(parameter.name.clone(), elements);
    }
    for (node, input) in graph.inputs() {
        if let Some((_, Elements::F32(elements))) = inputs.iter().find(|(name, _)| *name == input.name)
            && let Some(found) = look(elements, graph, node, format!("input {}", input.name))
        {
            return Ok(Some(found));
        }
    }
    let uses = graph.uses();
    let computed = |id: &NodeId| !matches!(graph.node(*id).op, Op::Input(_) | Op::Parameter(_) | Op::Reshape(_));
    let mut nodes = (0..graph.nodes().len()).filter(computed).peekable();
    while nodes.peek().is_some() {
        let (mut window, mut bytes) = (Vec::new(), 0);
        while let Some(node) = nodes.next_if(|_| bytes < WINDOW) {
            for (output, ty) in graph.node(node).outputs.iter().enumerate() {
                if uses[node][output] > 0 && ty.dtype == DType::F32 {
                    window.push(Value { node, output });
                    bytes += ty.bytes();
                }
            }
        }
        if let Some(found) = run_window(device, graph, inputs, &mut values, &window)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Runs a graph with these values as its outputs and searches them in order.
fn run_window(
    device: &dyn Device,
    graph: &Graph,
    inputs: &[(&str, Elements)],
    parameters: &mut BTreeMap<String, Vec<f32>>,
    window: &[Value],
) -> Result<Option<NonFinite>, GraphError> {
    let mut partial = graph.without_updates();
    partial.retain_outputs(|_| false);
    for value in window {
        partial.set_output(&format!("{}.{}", value.node, value.output), *value)?;
    }
    let mut executable = device.compile(&eliminate_dead_code(&partial)?, parameters)?;
    for (name, elements) in inputs {
        executable.write(name, *elements)?;
    }
    executable.run()?;
    for value in window {
        let mut elements = vec![0.0; graph.shape(*value).elements()];
        executable.read(&format!("{}.{}", value.node, value.output), &mut elements)?;
        let op = graph.node(value.node).op.name().to_string();
        if let Some(found) = look(&elements, graph, value.node, op) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn look(elements: &[f32], graph: &Graph, node: NodeId, op: String) -> Option<NonFinite> {
    let count = elements.iter().filter(|v| !v.is_finite()).count();
    let scope = graph.node(node).path();
    (count > 0).then_some(NonFinite { op, scope, elements: count, of: elements.len() })
}
