//! Training steps on a GPU against the reference: in-place updates of parameters and of their bf16 copies.

use std::collections::BTreeMap;

use vit_conformance::{check_updates, updates};
use vit_cuda::{Cuda, Precision};
use vit_graph::autodiff::gradients;
use vit_graph::device::{Device, Elements};
use vit_graph::ops::{Adam, CrossEntropy, GlobalNorm, Input, Lion, MovingAverage, Op, Parameter, Scale, Sgd};
use vit_graph::reference::{self, Array, Bindings};
use vit_graph::{DType, Graph, Init, Shape, Tensor, Type, Value};

/// Two linear layers around a norm with a residual, one step of an optimiser for everything, and moving averages.
fn training_step(optimiser: fn(f32) -> Op) -> Graph {
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
    let [rate, step, decay] = ["rate", "step", "decay"].map(|name| input(name, Shape::default()));
    let is_scheduled = matches!(optimiser(0.1), Op::OptimiserUpdate(update) if update.scheduled_decay());
    let factor = is_scheduled.then(|| input("factor", Shape::default()));
    let loss = graph.value(CrossEntropy, &[logits, targets]).unwrap();
    graph.set_output("loss", loss).unwrap();
    let parameters: Vec<(Value, Parameter)> =
        graph.parameters().map(|(node, p)| (Value { node, output: 0 }, p.clone())).collect();
    let wrt: Vec<Value> = parameters.iter().map(|(v, _)| *v).collect();
    let found = gradients(&mut graph, loss, &wrt).unwrap();
    let norm = graph.value(GlobalNorm, &found).unwrap();
    graph.set_output("norm", norm).unwrap();
    for (i, ((value, parameter), gradient)) in parameters.iter().zip(found).enumerate() {
        let state = |graph: &mut Graph, which: usize| {
            let name = format!("{}.state{which}", parameter.name);
            graph.value(Parameter::new(name, parameter.shape.clone(), Init::Zeros), &[]).unwrap()
        };
        let op = optimiser(if parameter.shape.len() > 1 { 0.1 } else { 0.0 });
        let Op::OptimiserUpdate(update) = op else { panic!("{op:?} is not an optimiser") };
        let count = update.state_len();
        let states: Vec<Value> = (0..count).map(|which| state(&mut graph, which)).collect();
        // Each parameter has another learning rate.
        let own_rate = graph.value(Scale(1.0 / (1.0 + i as f32)), &[rate]).unwrap();
        let mut inputs = vec![*value, gradient];
        inputs.extend(&states);
        inputs.extend([own_rate, step, norm]);
        inputs.extend(factor);
        let node = graph.add(op, &inputs).unwrap();
        for (output, target) in [*value].into_iter().chain(states).enumerate() {
            graph.update(target, Value { node, output }).unwrap();
        }
        // The last parameters have no average, so their updates come after all averages.
        if i < 5 {
            let average = state(&mut graph, 9);
            let new = graph.value(MovingAverage, &[average, Value { node, output: 0 }, decay, norm]).unwrap();
            graph.update(average, new).unwrap();
        }
    }
    graph
}

fn adam(weight_decay: f32, decoupled: bool, trust_ratio: bool) -> Op {
    adam_rule(weight_decay, decoupled, trust_ratio).into()
}

fn adam_rule(weight_decay: f32, decoupled: bool, trust_ratio: bool) -> Adam {
    let clip = Some(1.0);
    Adam { beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay, decoupled, scheduled_decay: false, trust_ratio, clip }
}

/// AdamW, Adam, LAMB, SGD with and without Nesterov's momentum, and AdamW and Lion with a scheduled weight decay.
fn optimisers() -> [fn(f32) -> Op; 7] {
    [
        |decay| adam(decay, true, false),
        |decay| adam(decay, false, false),
        |decay| adam(decay, true, decay > 0.0),
        |weight_decay| Sgd { momentum: 0.9, dampening: 0.0, nesterov: true, weight_decay, clip: Some(1.0) }.into(),
        |weight_decay| Sgd { momentum: 0.8, dampening: 0.1, nesterov: false, weight_decay, clip: None }.into(),
        |decay| Adam { scheduled_decay: true, ..adam_rule(decay, true, false) }.into(),
        |weight_decay| Lion { beta1: 0.9, beta2: 0.99, weight_decay, scheduled_decay: true, clip: None }.into(),
    ]
}

fn steps(precision: Precision, optimiser: fn(f32) -> Op, tolerance: f64) {
    let device = match Cuda::new(0, precision) {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let graph = training_step(optimiser);
    let values_of = |name: &str, count: usize| -> Vec<f32> {
        let mut data = vec![0.0; count];
        if !name.contains('.') {
            Init::Normal { std: 0.5 }.fill(3, name, &mut data);
        }
        data
    };
    let mut values: BTreeMap<String, Vec<f32>> =
        graph.parameters().map(|(_, p)| (p.name.clone(), values_of(&p.name, p.shape.elements()))).collect();
    let inputs = |step: usize| {
        let targets: Vec<f32> = (0..30).map(|i| if i % 5 == (i / 5) % 5 { 1.0 } else { 0.0 }).collect();
        let x = values_of(&format!("x{step}"), 48);
        let [rate, step] = [vec![0.02], vec![step as f32]];
        let all = [("x", x), ("targets", targets), ("rate", rate), ("step", step), ("decay", vec![0.9])];
        let has_factor = graph.inputs().any(|(_, input)| input.name == "factor");
        all.into_iter().chain(has_factor.then(|| ("factor", vec![1.7])))
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
            // The reference continues from the device's values.
            values.insert(name.clone(), found);
        }
    }
}

#[test]
fn training_steps_agree_with_the_reference() {
    optimisers().into_iter().for_each(|optimiser| steps(Precision::F32, optimiser, 2e-5));
}

#[test]
fn training_steps_in_bf16_stay_near_the_reference() {
    optimisers().into_iter().for_each(|optimiser| steps(Precision::Bf16, optimiser, 5e-2));
}

#[test]
fn a_run_reads_the_parameters_from_before_it() {
    for precision in [Precision::F32, Precision::Bf16] {
        let device = match Cuda::new(0, precision) {
            Ok(device) => device,
            Err(reason) => return eprintln!("skipped: {reason}"),
        };
        for finite in [true, false] {
            for (what, difference) in check_updates(&device, &updates(finite).unwrap(), 4).unwrap() {
                assert!(difference <= 1e-5, "{precision}, finite: {finite}, {what} differs by {difference:e}");
            }
        }
    }
}

/// A step whose gradients are NaN changes no parameter, state or average.
#[test]
fn a_step_that_is_not_finite_changes_nothing() {
    for optimiser in optimisers() {
        let device = match Cuda::new(0, Precision::F32) {
            Ok(device) => device,
            Err(reason) => return eprintln!("skipped: {reason}"),
        };
        let graph = training_step(optimiser);
        let values: BTreeMap<String, Vec<f32>> =
            graph.parameters().map(|(_, p)| (p.name.clone(), vec![0.25; p.shape.elements()])).collect();
        let mut executable = device.compile(&graph, &mut values.clone()).unwrap();
        for (name, data) in [("x", vec![f32::NAN; 48]), ("targets", vec![0.2; 30]), ("rate", vec![0.1])] {
            executable.write(name, Elements::F32(&data)).unwrap();
        }
        executable.write("step", Elements::F32(&[1.0])).unwrap();
        executable.write("decay", Elements::F32(&[0.5])).unwrap();
        if graph.inputs().any(|(_, input)| input.name == "factor") {
            executable.write("factor", Elements::F32(&[1.7])).unwrap();
        }
        executable.run().unwrap();
        for (name, expected) in values {
            let mut found = vec![0.0; expected.len()];
            executable.read_parameter(&name, &mut found).unwrap();
            assert_eq!(found, expected, "{name}");
        }
    }
}
