//! The loss of recorded labels and its gradients: mean cross-entropy of a model as it is evaluated, without dropout.

use vit_graph::autodiff::gradients;
use vit_graph::ops::{CrossEntropy, Input};
use vit_graph::{DType, Graph, GraphError, Type, Value};
use vit_models::weights::{Weights, WeightsError, names};

const GRADIENT: &str = "grad.";

/// Gives recorded gradients the canonical names of their parameters.
pub(super) fn canonical_gradients(io: &mut Weights) -> Result<(), WeightsError> {
    let mut recorded = Weights::default();
    for name in io.tensors.keys().filter(|name| name.starts_with(GRADIENT)).cloned().collect::<Vec<_>>() {
        recorded.insert(&name[GRADIENT.len()..], io.take(&name)?)?;
    }
    if recorded.tensors.is_empty() {
        return Ok(());
    }
    for (name, tensor) in names::canonical(recorded)?.0.tensors {
        io.insert(format!("{GRADIENT}{name}"), tensor)?;
    }
    Ok(())
}

/// Appends the loss with an input `targets [batch, classes]`: outputs `loss`, and `grad.NAME` for every parameter of which
/// a gradient was recorded.
pub(super) fn append(graph: &mut Graph, io: &Weights) -> Result<(), GraphError> {
    let logits = graph.output("logits")?;
    let ty = Type::new(DType::F32, graph.shape(logits).clone());
    let targets = graph.value(Input { name: "targets".into(), ty }, &[])?;
    let loss = graph.value(CrossEntropy, &[logits, targets])?;
    graph.set_output("loss", loss)?;
    append_gradients(graph, loss, io)
}

/// Appends the gradients of a loss with respect to every parameter of which one was recorded.
pub(super) fn append_gradients(graph: &mut Graph, loss: Value, io: &Weights) -> Result<(), GraphError> {
    let recorded: Vec<(String, Value)> = graph
        .parameters()
        .map(|(node, parameter)| (format!("{GRADIENT}{}", parameter.name), Value { node, output: 0 }))
        .filter(|(name, _)| io.tensors.contains_key(name))
        .collect();
    let parameters: Vec<Value> = recorded.iter().map(|(_, value)| *value).collect();
    for ((name, _), gradient) in recorded.iter().zip(gradients(graph, loss, &parameters)?) {
        graph.set_output(name, gradient)?;
    }
    Ok(())
}

/// Rows of 1 for the label and 0 for other classes, or the first label that is none of the classes.
pub(super) fn one_hot(labels: &[f32], classes: usize) -> Result<Vec<f32>, f32> {
    let mut targets = vec![0.0; labels.len() * classes];
    for (row, &label) in labels.iter().enumerate() {
        if !(0.0..classes as f32).contains(&label) {
            return Err(label);
        }
        targets[row * classes + label as usize] = 1.0;
    }
    Ok(targets)
}
