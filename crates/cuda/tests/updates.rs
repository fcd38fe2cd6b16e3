//! Training steps on a GPU: parameters change in place, their bf16 copies with them, run after run as on the CPU's
//! reference.

use std::collections::BTreeMap;

use vit_cuda::{Cuda, Precision};
use vit_graph::autodiff::gradients;
use vit_graph::device::{Device, Elements};
use vit_graph::ops::{Adam, CrossEntropy, GlobalNorm, Input, Parameter};
use vit_graph::reference::{self, Array, Bindings};
use vit_graph::{DType, Graph, Init, Shape, Tensor, Type, Value};

/// Two linear layers around a norm with a residual, and one step of AdamW for everything.
fn training_step() -> Graph {
    let x = Tensor::input("x", DType::F32, [6, 8]);
    let parameter = |name: &str, shape: &[usize]| x.parameter(name, shape, Init::Zeros);
    let (w1, b1) = (parameter("w1", &[8, 8]), parameter("b1", &[8]));
    let (w2, b2) = (parameter("w2", &[5, 8]), parameter("b2", &[5]));
    let (gamma, beta) = (parameter("gamma", &[8]), parameter("beta", &[8]));
    let (gamma2, beta2) = (parameter("gamma2", &[8]), parameter("beta2", &[8]));
    let h = x.layer_norm(&gamma, &beta, 1e-5).linear(&w1, Some(&b1)).gelu() + x.clone();
    let y = h.layer_norm(&gamma2, &beta2, 1e-5).linear(&w1, Some(&b1)) + h;
    y.linear(&w2, Some(&b2)).output("logits");
    let mut graph = x.finish().unwrap();
    let logits = graph.output("logits").unwrap();
    graph.retain_outputs(|_| false);
    let mut input = |name: &str, shape: Shape| {
        graph.value(Input { name: name.into(), ty: Type::new(DType::F32, shape) }, &[]).unwrap()
    };
    let targets = input("targets", Shape::from([6, 5]));
    let (rate, step) = (input("rate", Shape::default()), input("step", Shape::default()));
    let loss = graph.value(CrossEntropy, &[logits, targets]).unwrap();
    graph.set_output("loss", loss).unwrap();
    let parameters: Vec<(Value, Parameter)> =
        graph.parameters().map(|(node, p)| (Value { node, output: 0 }, p.clone())).collect();
    let wrt: Vec<Value> = parameters.iter().map(|(v, _)| *v).collect();
    let found = gradients(&mut graph, loss, &wrt).unwrap();
    let norm = graph.value(GlobalNorm, &found).unwrap();
    graph.set_output("norm", norm).unwrap();
    for ((value, parameter), gradient) in parameters.iter().zip(found) {
        let mut moment = |which: &str| {
            let name = format!("{}.{which}", parameter.name);
            graph.value(Parameter::new(name, parameter.shape.clone(), Init::Zeros), &[]).unwrap()
        };
        let (mean, variance) = (moment("mean"), moment("variance"));
        let weight_decay = if parameter.shape.len() > 1 { 0.1 } else { 0.0 };
        let op = Adam {
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay,
            decoupled: true,
            trust_ratio: false,
            clip: Some(1.0),
        };
        let node = graph.add(op, &[*value, gradient, mean, variance, rate, step, norm]).unwrap();
        for (output, target) in [*value, mean, variance].into_iter().enumerate() {
            graph.update(target, Value { node, output }).unwrap();
        }
    }
    graph
}

fn steps(precision: Precision, tolerance: f64) {
    let device = match Cuda::new(0, precision) {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let graph = training_step();
    let numbers = |name: &str, count: usize| -> Vec<f32> {
        let mut data = vec![0.0; count];
        if !name.contains('.') {
            Init::Normal { std: 0.5 }.fill(3, name, &mut data);
        }
        data
    };
    let mut values: BTreeMap<String, Vec<f32>> =
        graph.parameters().map(|(_, p)| (p.name.clone(), numbers(&p.name, p.shape.elements()))).collect();
    let inputs = |step: usize| {
        let targets: Vec<f32> = (0..30).map(|i| if i % 5 == (i / 5) % 5 { 1.0 } else { 0.0 }).collect();
        let x = numbers(&format!("x{step}"), 48);
        [("x", x), ("targets", targets), ("rate", vec![0.02]), ("step", vec![step as f32])]
    };
    let mut executable = device.compile(&graph, &mut values).unwrap();
    for step in 1..=5 {
        let mut bindings = Bindings::new();
        for (name, data) in inputs(step) {
            executable.write(name, Elements::F32(&data)).unwrap();
            let (_, input) = graph.inputs().find(|(_, i)| i.name == name).unwrap();
            bindings =
                bindings.with(name, Array::new(input.ty.shape.clone(), data.iter().map(|&v| v.into()).collect()));
        }
        for (_, p) in graph.parameters() {
            let data = values[&p.name].iter().map(|&v| v.into()).collect();
            bindings = bindings.with(&p.name, Array::new(p.shape.clone(), data));
        }
        let mut with_updates = graph.clone();
        for (i, (_, new)) in graph.updates().iter().enumerate() {
            with_updates.set_output(&format!("update {i}"), *new).unwrap();
        }
        let expected = reference::run(&with_updates, &bindings).unwrap();
        executable.run().unwrap();
        let mut loss = [0.0];
        executable.read("loss", &mut loss).unwrap();
        let difference = (expected["loss"].data()[0] - f64::from(loss[0])).abs();
        assert!(difference <= tolerance, "{precision}, step {step}: the loss differs by {difference:e}");
        for (i, (parameter, _)) in graph.updates().iter().enumerate() {
            let name = &graph.parameters().find(|(node, _)| *node == parameter.node).unwrap().1.name;
            let expected = expected[&format!("update {i}")].data().to_vec();
            let mut found = vec![0.0; expected.len()];
            executable.read_parameter(name, &mut found).unwrap();
            for (e, f) in expected.iter().zip(&found) {
                assert!((e - f64::from(*f)).abs() <= tolerance, "{precision}, step {step}, {name}: {e} and {f}");
            }
            // The device goes on from its own numbers, and so does the reference.
            values.insert(name.clone(), found);
        }
    }
}

#[test]
fn training_steps_agree_with_the_reference() {
    steps(Precision::F32, 2e-5);
}

#[test]
fn training_steps_in_bf16_stay_near_the_reference() {
    steps(Precision::Bf16, 5e-2);
}
