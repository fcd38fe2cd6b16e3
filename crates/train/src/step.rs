//! One training step as one graph.

use vit_graph::autodiff::gradients;
use vit_graph::ops::{AdamW, CrossEntropy, GlobalNorm, Input, Parameter};
use vit_graph::rewrite::{dead_code, patchify};
use vit_graph::{DType, Graph, GraphError, Init, Shape, Type, Value};
use vit_models::{Architecture, Mode};

/// How parameters move.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Optimiser {
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    /// Decoupled weight decay of parameters with two axes or more.
    pub weight_decay: f32,
    /// The largest global norm of the gradients; longer ones are scaled down.
    pub clip: Option<f32>,
}

impl Default for Optimiser {
    fn default() -> Self {
        Optimiser { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1, clip: Some(1.0) }
    }
}

/// A training step: inputs `image`, `targets [batch, classes]`, `rate`, `step` (from 1 on) and, with dropout, `seed`;
/// outputs `loss` and, with clipping, `grad_norm`; updates every parameter and the optimiser's moments.
pub struct TrainingStep {
    /// The graph.
    pub graph: Graph,
    /// The model's parameters and their gradients, which can be made outputs.
    pub gradients: Vec<(String, Value)>,
}

impl TrainingStep {
    /// Builds the step of a classifier.
    pub fn new(architecture: &Architecture, batch: usize, optimiser: &Optimiser) -> Result<Self, GraphError> {
        let mut graph = architecture.build(batch, Mode::Training)?;
        let logits = graph.output("logits")?;
        graph.retain_outputs(|name| name == "logits");
        // Before differentiating, so that the gradients are products of matrices too.
        let mut graph = dead_code(&patchify(&graph)?)?;
        let logits = graph.output("logits").unwrap_or(logits);
        graph.retain_outputs(|_| false);

        let input = |graph: &mut Graph, name: &str, shape: Shape| {
            graph.value(Input { name: name.into(), ty: Type::new(DType::F32, shape) }, &[])
        };
        let shape = graph.shape(logits).clone();
        let targets = input(&mut graph, "targets", shape)?;
        let rate = input(&mut graph, "rate", Shape::default())?;
        let step = input(&mut graph, "step", Shape::default())?;
        let loss = graph.value(CrossEntropy, &[logits, targets])?;
        graph.set_output("loss", loss)?;

        let parameters: Vec<(Value, Parameter)> = graph
            .parameters()
            .filter(|(_, p)| p.trainable)
            .map(|(node, p)| (Value { node, output: 0 }, p.clone()))
            .collect();
        let wrt: Vec<Value> = parameters.iter().map(|(value, _)| *value).collect();
        let found = gradients(&mut graph, loss, &wrt)?;
        let norm = match optimiser.clip {
            Some(_) => {
                let norm = graph.value(GlobalNorm, &found)?;
                graph.set_output("grad_norm", norm)?;
                Some(norm)
            }
            None => None,
        };
        let mut named = Vec::new();
        for ((value, parameter), &gradient) in parameters.iter().zip(&found) {
            let moment = |graph: &mut Graph, which: &str| {
                let name = format!("{}.{which}", parameter.name);
                graph.value(Parameter::new(name, parameter.shape.clone(), Init::Zeros), &[])
            };
            let (mean, variance) = (moment(&mut graph, "adam_mean")?, moment(&mut graph, "adam_variance")?);
            let decays = parameter.shape.len() >= 2;
            let op = AdamW {
                beta1: optimiser.beta1,
                beta2: optimiser.beta2,
                epsilon: optimiser.epsilon,
                weight_decay: if decays { optimiser.weight_decay } else { 0.0 },
                clip: optimiser.clip,
            };
            let mut inputs = vec![*value, gradient, mean, variance, rate, step];
            inputs.extend(norm);
            let node = graph.add(op, &inputs)?;
            for (output, target) in [*value, mean, variance].into_iter().enumerate() {
                graph.update(target, Value { node, output })?;
            }
            named.push((parameter.name.clone(), gradient));
        }
        Ok(TrainingStep { graph, gradients: named })
    }
}
