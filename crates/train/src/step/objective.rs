//! The training objective: cross-entropy with the labels, and distillation from a teacher (DeiT).

pub(crate) mod pretraining;

use serde::{Deserialize, Serialize};
use vit_graph::ops::{Binary, CrossEntropy, OneHotMax, Scale, SigmoidCrossEntropy, Softmax};
use vit_graph::{Graph, GraphError, Value};

/// The loss of logits and targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Softmax cross-entropy; targets may be smoothed or mixed.
    #[default]
    Softmax,
    /// Binary cross-entropy of every class, summed over classes, averaged over the batch.
    Sigmoid,
}

impl Loss {
    /// The factor of a step's loss in logs. Gradients are those of the sum over classes, as in big_vision's `sigmoid_xent`,
    /// so that learning rates do not depend on the number of classes. Logs have the mean over classes, as in PyTorch's
    /// `BCEWithLogitsLoss`.
    pub(crate) fn logged_scale(self, classes: usize) -> f64 {
        match self {
            Loss::Softmax => 1.0,
            Loss::Sigmoid => 1.0 / classes.max(1) as f64,
        }
    }
}

/// Distillation from a teacher, whose logits are the input `teacher`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distillation {
    /// Kullback-Leibler divergence from the teacher's distribution at this temperature, times its square, divided by
    /// the number of logits in the batch as in DeiT's code.
    Soft {
        /// What both sides' logits are divided by.
        temperature: f32,
    },
    /// Cross-entropy with the teacher's most likely class.
    Hard,
}

/// The objective that a step minimises.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Objective {
    /// The loss of the labels.
    pub loss: Loss,
    /// The kind of distillation and its weight alpha, from 0 to 1.
    pub distillation: Option<(Distillation, f32)>,
}

/// The logits that are compared with the labels and with the teacher; the same for a model with one head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub labels: Value,
    pub teacher: Value,
}

impl Objective {
    /// The heads that this objective trains; without a teacher, the model's output, which is the mean of two heads if it
    /// has two.
    pub(crate) fn heads(&self, graph: &Graph) -> Result<Heads, GraphError> {
        let one = graph.output("logits")?;
        match (self.distillation, graph.output("logits_cls"), graph.output("logits_dist")) {
            (Some(_), Ok(labels), Ok(teacher)) => Ok(Heads { labels, teacher }),
            _ => Ok(Heads { labels: one, teacher: one }),
        }
    }

    /// Adds the loss to a graph.
    pub(crate) fn build(
        &self,
        graph: &mut Graph,
        heads: Heads,
        targets: Value,
        teacher: Option<Value>,
    ) -> Result<Value, GraphError> {
        let labels = match self.loss {
            Loss::Softmax => graph.value(CrossEntropy, &[heads.labels, targets])?,
            Loss::Sigmoid => graph.value(SigmoidCrossEntropy, &[heads.labels, targets])?,
        };
        let (Some((distillation, alpha)), Some(teacher)) = (self.distillation, teacher) else { return Ok(labels) };
        let distance = distillation.build(graph, heads.teacher, teacher)?;
        let labels = graph.value(Scale(1.0 - alpha), &[labels])?;
        let distance = graph.value(Scale(alpha), &[distance])?;
        graph.value(Binary::Add, &[labels, distance])
    }
}

impl Distillation {
    fn build(&self, graph: &mut Graph, student: Value, teacher: Value) -> Result<Value, GraphError> {
        match *self {
            Distillation::Hard => {
                let decision = graph.value(OneHotMax, &[teacher])?;
                graph.value(CrossEntropy, &[student, decision])
            }
            Distillation::Soft { temperature } => {
                let classes = graph.shape(student).last() as f32;
                let student = graph.value(Scale(1.0 / temperature), &[student])?;
                let teacher = graph.value(Scale(1.0 / temperature), &[teacher])?;
                let targets = graph.value(Softmax, &[teacher])?;
                // KL divergence = cross-entropy - entropy of the teacher.
                let crossed = graph.value(CrossEntropy, &[student, targets])?;
                let own = graph.value(CrossEntropy, &[teacher, targets])?;
                let divergence = graph.value(Binary::Sub, &[crossed, own])?;
                graph.value(Scale(temperature * temperature / classes), &[divergence])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;
    use vit_graph::autodiff::gradients;
    use vit_graph::ops::Input;
    use vit_graph::reference::{self, Array, Bindings};
    use vit_graph::{Shape, Type};

    use super::*;

    #[test]
    fn losses_and_their_gradients_are_those_of_pytorch_and_deit() {
        let recorded: Json = serde_json::from_str(include_str!("../../tests/objectives.json")).unwrap();
        let numbers = |json: &Json| json.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<f64>>();
        let shape = Shape::from([3, 5]);
        let objective = |loss, distillation| Objective { loss, distillation };
        let soft = |temperature| Distillation::Soft { temperature };
        for (name, objective, targets, heads) in [
            ("softmax", objective(Loss::Softmax, None), "targets", 1),
            ("sigmoid", objective(Loss::Sigmoid, None), "labels", 1),
            ("soft", objective(Loss::Softmax, Some((soft(3.0), 0.1))), "targets", 2),
            ("hard", objective(Loss::Softmax, Some((Distillation::Hard, 0.5))), "targets", 2),
            ("soft, one head", objective(Loss::Softmax, Some((soft(2.0), 0.7))), "targets", 1),
            ("hard, sigmoid", objective(Loss::Sigmoid, Some((Distillation::Hard, 0.5))), "labels", 2),
        ] {
            let mut graph = Graph::new();
            let mut bindings = Bindings::new();
            let [logits, logits_dist, targets, teacher] = ["logits", "logits_dist", targets, "teacher"].map(|name| {
                let value = Array::new(shape.clone(), numbers(&recorded[name]));
                bindings = std::mem::take(&mut bindings).with(name, value);
                graph.value(Input { name: name.into(), ty: Type::f32(shape.clone()) }, &[]).unwrap()
            });
            let heads = if heads == 2 { vec![logits, logits_dist] } else { vec![logits] };
            let pair = Heads { labels: logits, teacher: heads[heads.len() - 1] };
            let teacher = objective.distillation.map(|_| teacher);
            let loss = objective.build(&mut graph, pair, targets, teacher).unwrap();
            graph.set_output("loss", loss).unwrap();
            for (i, gradient) in gradients(&mut graph, loss, &heads).unwrap().into_iter().enumerate() {
                graph.set_output(&format!("grad{i}"), gradient).unwrap();
            }
            let found = reference::run(&graph, &bindings).unwrap();
            let expected = &recorded["losses"][name];
            let close = |found: f64, expected: f64| {
                assert!((found - expected).abs() < 1e-6, "{name}: {found} and {expected}");
            };
            close(found["loss"].data()[0], expected["loss"].as_f64().unwrap());
            let recorded_gradients = expected["gradients"].as_array().unwrap();
            assert_eq!(recorded_gradients.len(), heads.len());
            for (i, expected) in recorded_gradients.iter().enumerate() {
                found[&format!("grad{i}")].data().iter().zip(numbers(expected)).for_each(|(f, e)| close(*f, e));
            }
        }
    }
}
