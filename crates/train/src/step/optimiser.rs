//! Optimisers: their settings in a recipe, the update of every parameter in a training step, and its state.

use serde::{Deserialize, Serialize};
use vit_graph::ops::{Adam, Lion, MovingAverage, OptimiserUpdate, Parameter, Scale, Sgd, Unary};
use vit_graph::{Graph, GraphError, Init, Value};

use crate::step::groups::{DecayOn, rate_factors};
use crate::step::sharding::TrainedParameter;

/// The optimisers by their names in a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum MethodName {
    AdamW,
    Adam,
    Lamb,
    Lion,
    Sgd,
}

/// The optimiser's section of a recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct OptimiserSettings {
    pub method: MethodName,
    pub betas: [f64; 2],
    pub epsilon: f64,
    pub momentum: f64,
    pub nesterov: bool,
    pub weight_decay: f64,
    #[serde(default)]
    pub weight_decay_end: f64,
    pub decay_on: DecayOn,
    pub layer_decay: f64,
    pub clip: f64,
}

impl OptimiserSettings {
    /// Its keys with their meaning.
    pub(crate) const KEYS: [(&'static str, &'static str); 10] = [
        ("optimiser.method", "adamw, adam, lamb, lion or sgd"),
        ("optimiser.betas", "adamw, adam, lamb, lion: decay of the moments; 0.9 and 0.99 in lion's paper"),
        ("optimiser.epsilon", "adamw, adam, lamb: added to the root of the second moment"),
        ("optimiser.momentum", "sgd: decay of the momentum buffer"),
        ("optimiser.nesterov", "sgd: Nesterov momentum"),
        ("optimiser.weight_decay", "weight decay"),
        ("optimiser.weight_decay_end", "adamw, lion: the last weight decay, approached along a cosine; 0: constant"),
        ("optimiser.decay_on", "weights, matrices (tokens and positions too) or everything"),
        ("optimiser.layer_decay", "the rate's factor for each layer below the head; 1: none"),
        ("optimiser.clip", "largest global norm of gradients; 0: none"),
    ];

    /// The optimiser with these settings.
    pub(crate) fn optimiser(&self) -> Optimiser {
        let [beta1, beta2, epsilon] = [self.betas[0], self.betas[1], self.epsilon].map(|v| v as f32);
        let method = match self.method {
            MethodName::AdamW => OptimiserMethod::AdamW { beta1, beta2, epsilon },
            MethodName::Adam => OptimiserMethod::Adam { beta1, beta2, epsilon },
            MethodName::Lamb => OptimiserMethod::Lamb { beta1, beta2, epsilon },
            MethodName::Lion => OptimiserMethod::Lion { beta1, beta2 },
            MethodName::Sgd => {
                OptimiserMethod::Sgd { momentum: self.momentum as f32, dampening: 0.0, nesterov: self.nesterov }
            }
        };
        Optimiser {
            method,
            weight_decay: self.weight_decay as f32,
            decay_on: self.decay_on,
            layer_decay: self.layer_decay as f32,
            clip: (self.clip > 0.0).then_some(self.clip as f32),
        }
    }
}

/// An update rule.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum OptimiserMethod {
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    AdamW { beta1: f32, beta2: f32, epsilon: f32 },
    /// Adam with L2 regularisation (Kingma and Ba, 2015).
    Adam { beta1: f32, beta2: f32, epsilon: f32 },
    /// AdamW with a trust ratio per parameter (You et al., 2020); as in timm, parameters without weight decay have none.
    Lamb { beta1: f32, beta2: f32, epsilon: f32 },
    /// The sign of interpolated momentum and gradient, with decoupled weight decay (Chen et al., 2023).
    Lion { beta1: f32, beta2: f32 },
    /// Gradient descent with momentum and L2 regularisation, as in PyTorch.
    Sgd { momentum: f32, dampening: f32, nesterov: bool },
}

/// An update rule with what all of them have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimiser {
    /// The update rule.
    pub method: OptimiserMethod,
    /// The factor of weight decay.
    pub weight_decay: f32,
    /// The parameters with weight decay.
    pub decay_on: DecayOn,
    /// The learning rate's factor for every layer below the head; 1 for the same rate everywhere.
    pub layer_decay: f32,
    /// The largest global norm of the gradients; longer ones are scaled to it.
    pub clip: Option<f32>,
}

impl Default for Optimiser {
    fn default() -> Self {
        Optimiser {
            method: OptimiserMethod::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
            weight_decay: 0.1,
            decay_on: DecayOn::default(),
            layer_decay: 1.0,
            clip: Some(1.0),
        }
    }
}

/// Scalars that all updates of a step take.
pub(crate) struct UpdateInputs {
    pub rate: Value,
    pub step: Value,
    pub norm: Value,
    /// The decay of moving averages, if there are any.
    pub average_decay: Option<Value>,
    /// The weight decay, if it has a schedule.
    pub weight_decay: Option<Value>,
}

impl Optimiser {
    /// The update of one parameter, and the suffixes of its state's names. With a scheduled weight decay, that of the update is
    /// a factor of 0 or 1.
    fn op(&self, parameter: &Parameter, scheduled_decay: bool) -> (OptimiserUpdate, &'static [&'static str]) {
        let decays = self.decay_on.includes(&parameter.name, &parameter.shape);
        let weight_decay = if scheduled_decay { 1.0 } else { self.weight_decay };
        let (weight_decay, clip) = (if decays { weight_decay } else { 0.0 }, self.clip);
        let adam = |[beta1, beta2, epsilon]: [f32; 3], decoupled, trust_ratio| {
            let op = Adam { beta1, beta2, epsilon, weight_decay, decoupled, scheduled_decay, trust_ratio, clip };
            (op.into(), &["adam_mean", "adam_variance"][..])
        };
        match self.method {
            OptimiserMethod::AdamW { beta1, beta2, epsilon } => adam([beta1, beta2, epsilon], true, false),
            OptimiserMethod::Adam { beta1, beta2, epsilon } => adam([beta1, beta2, epsilon], false, false),
            OptimiserMethod::Lamb { beta1, beta2, epsilon } => adam([beta1, beta2, epsilon], true, weight_decay != 0.0),
            OptimiserMethod::Lion { beta1, beta2 } => {
                (Lion { beta1, beta2, weight_decay, scheduled_decay, clip }.into(), &["lion_momentum"])
            }
            OptimiserMethod::Sgd { momentum, dampening, nesterov } => {
                (Sgd { momentum, dampening, nesterov, weight_decay, clip }.into(), &["sgd_buffer"])
            }
        }
    }

    /// Adds the updates of all trained parameters and returns the names of their state. `all` are the names of all
    /// parameters, from which layers are numbered.
    pub(crate) fn build(
        &self,
        graph: &mut Graph,
        trained: &[TrainedParameter],
        gradients: &[Value],
        all: &[&str],
        inputs: &UpdateInputs,
    ) -> Result<Vec<String>, GraphError> {
        let mut rates: Vec<(f32, Value)> = vec![(1.0, inputs.rate)];
        let factors = rate_factors(all, self.layer_decay);
        let mut names = Vec::new();
        for (trained, &gradient) in trained.iter().zip(gradients) {
            let parameter = &trained.parameter;
            let factor = all.iter().position(|name| *name == parameter.name).map_or(1.0, |at| factors[at]);
            let rate = match rates.iter().find(|(f, _)| *f == factor) {
                Some((_, rate)) => *rate,
                None => {
                    let rate = graph.value(Scale(factor), &[inputs.rate])?;
                    rates.push((factor, rate));
                    rate
                }
            };
            let mut state = |graph: &mut Graph, suffix: &str| {
                let name = format!("{}.{suffix}", parameter.name);
                names.push(name.clone());
                // A teacher that is the moving average is in the graph already.
                let known = graph.parameters().find(|(_, p)| suffix == "average" && p.name == name);
                match known.map(|(node, _)| Value { node, output: 0 }) {
                    Some(known) => Ok(known),
                    None => graph.value(Parameter::new(name, trained.updated_shape(), Init::Zeros), &[]),
                }
            };
            let (op, suffixes) = self.op(parameter, inputs.weight_decay.is_some());
            let state_values = suffixes.iter().map(|suffix| state(graph, suffix)).collect::<Result<Vec<Value>, _>>()?;
            let mut operands = vec![trained.updated(graph)?, gradient];
            operands.extend(&state_values);
            operands.extend([rate, inputs.step, inputs.norm]);
            operands.extend(inputs.weight_decay.filter(|_| op.scheduled_decay()));
            let node = graph.add(op, &operands)?;
            let mut new = Value { node, output: 0 };
            if let Some(max) = trained.max {
                new = graph.value(Unary::AtMost(max), &[new])?;
            }
            trained.update(graph, new)?;
            for (i, target) in state_values.into_iter().enumerate() {
                graph.update(target, Value { node, output: i + 1 })?;
            }
            if let Some(decay) = inputs.average_decay {
                let average = state(graph, "average")?;
                let new = graph.value(MovingAverage, &[average, new, decay, inputs.norm])?;
                graph.update(average, new)?;
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;
    use vit_graph::ops::{GlobalNorm, Input};
    use vit_graph::reference::{self, Array, Bindings};
    use vit_graph::{Shape, Type};

    use super::*;
    use crate::Average;

    fn numbers(json: &Json) -> Vec<f64> {
        json.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    }

    fn optimiser(case: &Json) -> Optimiser {
        let number = |key: &str| case[key].as_f64().unwrap() as f32;
        let betas = || numbers(&case["betas"]).into_iter().map(|b| b as f32).collect::<Vec<_>>();
        let method = match case["method"].as_str().unwrap() {
            "sgd" => OptimiserMethod::Sgd {
                momentum: number("momentum"),
                dampening: number("dampening"),
                nesterov: case["nesterov"].as_bool().unwrap(),
            },
            "adam" => OptimiserMethod::Adam { beta1: betas()[0], beta2: betas()[1], epsilon: number("epsilon") },
            "adamw" => OptimiserMethod::AdamW { beta1: betas()[0], beta2: betas()[1], epsilon: number("epsilon") },
            "lamb" => OptimiserMethod::Lamb { beta1: betas()[0], beta2: betas()[1], epsilon: number("epsilon") },
            other => panic!("{other}"),
        };
        let everything = case["everything"].as_bool().unwrap();
        Optimiser {
            method,
            weight_decay: number("weight_decay"),
            decay_on: if everything { DecayOn::Everything } else { DecayOn::Weights },
            layer_decay: 1.0,
            clip: case["clip"].as_f64().map(|c| c as f32),
        }
    }

    #[test]
    fn updates_and_averages_are_those_of_pytorch_and_timm() {
        let recorded: Json = serde_json::from_str(include_str!("../../tests/optimisers.json")).unwrap();
        let shapes = [("head.weight", Shape::from([3, 4])), ("head.bias", Shape::from([3]))];
        let mut compared = 0;
        for case in recorded["cases"].as_array().unwrap() {
            let average = case["average_settings"].as_object().map(|settings| Average {
                warmup: settings.get("use_warmup").is_some(),
                ..Average::constant(settings["decay"].as_f64().unwrap())
            });
            let mut graph = Graph::new();
            let input = |graph: &mut Graph, name: &str, shape: &Shape| {
                graph.value(Input { name: name.into(), ty: Type::f32(shape.clone()) }, &[]).unwrap()
            };
            let [rate, step, decay] = ["rate", "step", "decay"].map(|n| input(&mut graph, n, &Shape::default()));
            let gradients: Vec<Value> =
                shapes.iter().map(|(name, shape)| input(&mut graph, &format!("{name}.g"), shape)).collect();
            let parameters = shapes.clone().map(|(name, shape)| {
                TrainedParameter::add(&mut graph, &Parameter::new(name, shape, Init::Zeros), None).unwrap()
            });
            let norm = graph.value(GlobalNorm, &gradients).unwrap();
            let inputs = UpdateInputs { rate, step, norm, average_decay: average.map(|_| decay), weight_decay: None };
            let names = shapes.clone().map(|(name, _)| name);
            let state = optimiser(case).build(&mut graph, &parameters, &gradients, &names, &inputs).unwrap();

            let scalar = |n: f64| Array::filled(Shape::default(), n);
            let mut bindings = Bindings::new()
                .with("rate", scalar(recorded["rate"].as_f64().unwrap()))
                .with("head.weight", Array::new([3, 4], numbers(&recorded["weight"])))
                .with("head.bias", Array::new([3], numbers(&recorded["bias"])));
            for (name, shape) in &shapes {
                for state in state.iter().filter(|s| s.starts_with(name)) {
                    bindings = bindings.with(state, Array::filled(shape.clone(), 0.0));
                }
            }
            for (at, given) in recorded["gradients"].as_array().unwrap().iter().enumerate() {
                bindings = bindings.with("step", scalar((at + 1) as f64));
                let decay = average.map_or(0.0, |a| f64::from(a.decay_at(at as u64 + 1)));
                bindings = bindings.with("decay", scalar(decay));
                for (i, (name, shape)) in shapes.iter().enumerate() {
                    bindings = bindings.with(&format!("{name}.g"), Array::new(shape.clone(), numbers(&given[i])));
                }
                reference::step(&graph, &mut bindings).unwrap();
                let averages = average.map(|_| ("average", "head.weight.average", "head.bias.average"));
                for (key, weight, bias) in [("expected", "head.weight", "head.bias")].into_iter().chain(averages) {
                    for (i, name) in [weight, bias].into_iter().enumerate() {
                        let found = bindings.get(name).unwrap();
                        for (f, e) in found.data().iter().zip(numbers(&case[key][at][i])) {
                            assert!((f - e).abs() < 1e-6, "{}, step {at}, {name}: {f} and {e}", case["name"]);
                            compared += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(compared, (9 + 2) * 5 * 15);
    }
}
