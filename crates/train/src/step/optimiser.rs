//! Optimisers: which update every parameter gets in a training step, and what it remembers between steps.

use vit_graph::ops::{Adam, MovingAverage, Op, Parameter, Scale, Sgd};
use vit_graph::{Graph, GraphError, Init, Value};

use crate::step::groups::{DecayOn, rate_factors};

/// How parameters follow their gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Method {
    /// Adam with weight decay beside the gradient (Loshchilov and Hutter, 2019).
    AdamW { beta1: f32, beta2: f32, epsilon: f32 },
    /// Adam with weight decay in the gradient (Kingma and Ba, 2015).
    Adam { beta1: f32, beta2: f32, epsilon: f32 },
    /// AdamW's update scaled to each parameter's length (You et al., 2020); as in timm, parameters without weight decay
    /// are not scaled.
    Lamb { beta1: f32, beta2: f32, epsilon: f32 },
    /// Gradient descent with momentum, weight decay in the gradient, as in PyTorch.
    Sgd { momentum: f32, dampening: f32, nesterov: bool },
}

/// How parameters move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimiser {
    /// The rule.
    pub method: Method,
    /// How strongly parameters are pulled towards zero.
    pub weight_decay: f32,
    /// Which of them.
    pub decay_on: DecayOn,
    /// What the learning rate is multiplied by for every layer below the head; 1 for the same rate everywhere.
    pub layer_decay: f32,
    /// The largest global norm of the gradients; longer ones are scaled down.
    pub clip: Option<f32>,
}

impl Default for Optimiser {
    fn default() -> Self {
        Optimiser {
            method: Method::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
            weight_decay: 0.1,
            decay_on: DecayOn::default(),
            layer_decay: 1.0,
            clip: Some(1.0),
        }
    }
}

/// Numbers that a step's updates share.
pub(crate) struct Numbers {
    pub rate: Value,
    pub step: Value,
    pub norm: Value,
    /// The decay of averages, if there are any.
    pub average_decay: Option<Value>,
}

impl Optimiser {
    /// The update of one parameter, and the names of what it remembers.
    fn op(&self, parameter: &Parameter) -> (Op, &'static [&'static str]) {
        let decays = self.decay_on.includes(&parameter.name, &parameter.shape);
        let (weight_decay, clip) = (if decays { self.weight_decay } else { 0.0 }, self.clip);
        let adam = |[beta1, beta2, epsilon]: [f32; 3], decoupled, trust_ratio| {
            let op = Adam { beta1, beta2, epsilon, weight_decay, decoupled, trust_ratio, clip };
            (op.into(), &["adam_mean", "adam_variance"][..])
        };
        match self.method {
            Method::AdamW { beta1, beta2, epsilon } => adam([beta1, beta2, epsilon], true, false),
            Method::Adam { beta1, beta2, epsilon } => adam([beta1, beta2, epsilon], false, false),
            Method::Lamb { beta1, beta2, epsilon } => adam([beta1, beta2, epsilon], true, weight_decay != 0.0),
            Method::Sgd { momentum, dampening, nesterov } => {
                (Sgd { momentum, dampening, nesterov, weight_decay, clip }.into(), &["sgd_buffer"])
            }
        }
    }

    /// Adds the updates of parameters; gives the names of everything else that is kept between steps. `all` are the
    /// names of all parameters, by which layers are counted.
    pub(crate) fn build(
        &self,
        graph: &mut Graph,
        trained: &[(Value, Parameter)],
        gradients: &[Value],
        all: &[&str],
        numbers: &Numbers,
    ) -> Result<Vec<String>, GraphError> {
        let mut rates: Vec<(f32, Value)> = vec![(1.0, numbers.rate)];
        let factors = rate_factors(all, self.layer_decay);
        let mut kept = Vec::new();
        for ((value, parameter), &gradient) in trained.iter().zip(gradients) {
            let factor = all.iter().position(|name| *name == parameter.name).map_or(1.0, |at| factors[at]);
            let rate = match rates.iter().find(|(f, _)| *f == factor) {
                Some((_, rate)) => *rate,
                None => {
                    let rate = graph.value(Scale(factor), &[numbers.rate])?;
                    rates.push((factor, rate));
                    rate
                }
            };
            let mut state = |graph: &mut Graph, suffix: &str| {
                let name = format!("{}.{suffix}", parameter.name);
                kept.push(name.clone());
                graph.value(Parameter::new(name, parameter.shape.clone(), Init::Zeros), &[])
            };
            let (op, remembered) = self.op(parameter);
            let remembered =
                remembered.iter().map(|suffix| state(graph, suffix)).collect::<Result<Vec<Value>, GraphError>>()?;
            let mut inputs = vec![*value, gradient];
            inputs.extend(&remembered);
            inputs.extend([rate, numbers.step, numbers.norm]);
            let node = graph.add(op, &inputs)?;
            for (output, target) in [*value].into_iter().chain(remembered).enumerate() {
                graph.update(target, Value { node, output })?;
            }
            if let Some(decay) = numbers.average_decay {
                let average = state(graph, "average")?;
                let new = graph.value(MovingAverage, &[average, Value { node, output: 0 }, decay, numbers.norm])?;
                graph.update(average, new)?;
            }
        }
        Ok(kept)
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
            "sgd" => Method::Sgd {
                momentum: number("momentum"),
                dampening: number("dampening"),
                nesterov: case["nesterov"].as_bool().unwrap(),
            },
            "adam" => Method::Adam { beta1: betas()[0], beta2: betas()[1], epsilon: number("epsilon") },
            "adamw" => Method::AdamW { beta1: betas()[0], beta2: betas()[1], epsilon: number("epsilon") },
            "lamb" => Method::Lamb { beta1: betas()[0], beta2: betas()[1], epsilon: number("epsilon") },
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
                decay: settings["decay"].as_f64().unwrap() as f32,
                warmup: settings.get("use_warmup").is_some(),
            });
            let mut graph = Graph::new();
            let input = |graph: &mut Graph, name: &str, shape: &Shape| {
                graph.value(Input { name: name.into(), ty: Type::f32(shape.clone()) }, &[]).unwrap()
            };
            let [rate, step, decay] = ["rate", "step", "decay"].map(|n| input(&mut graph, n, &Shape::default()));
            let gradients: Vec<Value> =
                shapes.iter().map(|(name, shape)| input(&mut graph, &format!("{name}.g"), shape)).collect();
            let parameters = shapes.clone().map(|(name, shape)| {
                let parameter = Parameter::new(name, shape, Init::Zeros);
                (graph.value(parameter.clone(), &[]).unwrap(), parameter)
            });
            let norm = graph.value(GlobalNorm, &gradients).unwrap();
            let numbers_of_step = Numbers { rate, step, norm, average_decay: average.map(|_| decay) };
            let names = shapes.clone().map(|(name, _)| name);
            let state = optimiser(case).build(&mut graph, &parameters, &gradients, &names, &numbers_of_step).unwrap();

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
