//! Models of the family in training mode: logits, loss, every gradient and every running statistic after one pass, and
//! after a batch in two parts, are those that timm and PyTorch give.

mod support;

use std::collections::BTreeMap;

use support::{open, recorded};
use vit_cpu::Cpu;
use vit_graph::autodiff::gradients;
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::ops::{CrossEntropy, Input, Parameter};
use vit_graph::{DType, Graph, Type, Value};
use vit_models::weights::{Weights, names, safetensors};
use vit_models::{Checkpoint, Mode, OpenOptions};
use vit_train::{Optimiser, OptimiserMethod, StepOptions, StepParameters, TrainingStep};

/// One pass of a checkpoint over recorded images: outputs `logits`, `loss` and `grad.NAME`, and updated statistics.
fn pass(checkpoint: &Checkpoint, images: &[f32], labels: &[f32]) -> BTreeMap<String, Vec<f32>> {
    let (batch, classes) = (labels.len(), checkpoint.config.architecture.classes());
    let mut graph = checkpoint.config.architecture.build(batch, Mode::Training).unwrap();
    // The MLP of relative positions has dropout by definition; recordings are without.
    if graph.inputs().any(|(_, input)| input.name == "seed") {
        graph = checkpoint.config.architecture.build(batch, Mode::Inference).unwrap();
    }
    graph.retain_outputs(|name| name == "logits");
    let logits = graph.output("logits").unwrap();
    let input = Input { name: "targets".into(), ty: Type::new(DType::F32, [batch, classes]) };
    let targets = graph.value(input, &[]).unwrap();
    let loss = graph.value(CrossEntropy, &[logits, targets]).unwrap();
    graph.set_output("loss", loss).unwrap();
    let trained: Vec<(String, Value)> = graph
        .parameters()
        .filter(|(_, p)| p.trainable)
        .map(|(node, p)| (p.name.clone(), Value { node, output: 0 }))
        .collect();
    let wrt: Vec<Value> = trained.iter().map(|(_, value)| *value).collect();
    for ((name, _), gradient) in trained.iter().zip(gradients(&mut graph, loss, &wrt).unwrap()) {
        graph.set_output(&format!("grad.{name}"), gradient).unwrap();
    }
    let mut executable = Cpu::new(Some(2)).compile(&graph, &mut checkpoint.weights.clone()).unwrap();
    let mut one_hot = vec![0.0; batch * classes];
    labels.iter().enumerate().for_each(|(i, &label)| one_hot[i * classes + label as usize] = 1.0);
    executable.write("image", Elements::F32(images)).unwrap();
    executable.write("targets", Elements::F32(&one_hot)).unwrap();
    executable.run().unwrap();
    let mut all = outputs(&graph, executable.as_ref());
    all.extend(statistics(&graph, executable.as_ref()));
    all
}

fn outputs(graph: &Graph, executable: &dyn Executable) -> BTreeMap<String, Vec<f32>> {
    let read = |(name, value): &(String, Value)| {
        let mut values = vec![0.0; graph.shape(*value).elements()];
        executable.read(name, &mut values).unwrap();
        (name.clone(), values)
    };
    graph.outputs().iter().map(read).collect()
}

/// Running statistics after a run, as `after.NAME`.
fn statistics(graph: &Graph, executable: &dyn Executable) -> BTreeMap<String, Vec<f32>> {
    let read = |parameter: &Parameter| {
        let mut values = vec![0.0; parameter.shape.elements()];
        executable.read_parameter(&parameter.name, &mut values).unwrap();
        (format!("after.{}", parameter.name), values)
    };
    let is_statistic = |name: &str| name.ends_with("running_mean") || name.ends_with("running_var");
    graph.parameters().filter(|(_, p)| is_statistic(&p.name)).map(|(_, p)| read(p)).collect()
}

/// Compares every recorded array, relative to its largest value.
fn agrees(case: &str) {
    let (found, recorded) = passed(&open(case), recorded(case));
    compare(case, &recorded, &found, |largest| 2e-5 * (0.1 + largest));
}

/// The arrays of one pass, computed and recorded.
fn passed(checkpoint: &Checkpoint, mut io: Weights) -> (BTreeMap<String, Vec<f32>>, Weights) {
    let (images, labels) = (io.tensors.remove("images").unwrap(), io.tensors.remove("labels").unwrap());
    (pass(checkpoint, &images.data, &labels.data), canonical(io))
}

/// Recorded gradients under the names of this project's parameters.
fn canonical(io: Weights) -> Weights {
    let (mut others, mut gradients) = (Weights::default(), Weights::default());
    for (name, tensor) in io.tensors {
        match name.strip_prefix("grad.") {
            Some(parameter) => gradients.insert(parameter, tensor).unwrap(),
            None => others.insert(name, tensor).unwrap(),
        }
    }
    for (name, tensor) in names::canonical(gradients).unwrap().0.tensors {
        others.insert(format!("grad.{name}"), tensor).unwrap();
    }
    others
}

/// Compares all arrays; `tolerance` depends on the largest value that was recorded in one.
fn compare(case: &str, recorded: &Weights, found: &BTreeMap<String, Vec<f32>>, tolerance: impl Fn(f32) -> f32) {
    let mut expected: Vec<&String> = recorded.tensors.keys().collect();
    expected.sort();
    assert_eq!(expected, found.keys().collect::<Vec<_>>(), "{case}");
    for (name, expected) in &recorded.tensors {
        let largest = expected.data.iter().fold(0f32, |m, v| m.max(v.abs()));
        let difference = support::difference(&expected.data, &found[name]);
        assert!(difference <= tolerance(largest), "{case}: {name} differs by {difference:e} of {largest:e}");
    }
}

#[test]
fn resnet() {
    agrees("train_resnet");
}

/// One training step on a batch that is split in two: what PyTorch gives for two halves one after another, each loss
/// divided by two, with one `zero_grad` before. Gradients add up; a batch norm normalises each half by itself, and its
/// running statistics follow the first half and then the second.
#[test]
fn batch_norm_under_gradient_accumulation() {
    let (checkpoint, io) = (open("train_resnet"), recorded("train_resnet"));
    let (images, labels) = (&io.tensors["images"].data, &io.tensors["labels"].data);
    let (batch, classes) = (labels.len(), checkpoint.config.architecture.classes());
    let method = OptimiserMethod::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false };
    let optimiser = Optimiser { method, weight_decay: 0.0, clip: None, ..Optimiser::default() };
    let options = StepOptions { optimiser, accumulate: 2, ..StepOptions::default() };
    let mut step = TrainingStep::new(&checkpoint.config.architecture, batch, options).unwrap();
    step.graph.retain_outputs(|name| name == "logits" || name == "loss");
    for (name, gradient) in step.gradients.clone() {
        step.graph.set_output(&format!("grad.{name}"), gradient).unwrap();
    }
    let mut weights = checkpoint.weights.clone();
    let mut start = StepParameters { model: &mut weights, state: &step.state };
    let mut executable = Cpu::new(Some(2)).compile(&step.graph, &mut start).unwrap();
    let mut one_hot = vec![0.0; batch * classes];
    labels.iter().enumerate().for_each(|(i, &label)| one_hot[i * classes + label as usize] = 1.0);
    for (name, values) in [("image", images), ("targets", &one_hot), ("rate", &vec![0.1]), ("step", &vec![1.0])] {
        executable.write(name, Elements::F32(values)).unwrap();
    }
    executable.run().unwrap();
    let mut found = outputs(&step.graph, executable.as_ref());
    found.extend(statistics(&step.graph, executable.as_ref()));
    let expected = safetensors::read(&support::fixture("train_resnet").join("accumulated.safetensors")).unwrap();
    compare("train_resnet in two parts", &expected, &found, |largest| 2e-5 * (0.1 + largest));
    // With batch norms, micro-batches change the result: each has its own statistics.
    let (name, whole) = ("after.bn1.running_mean", &io.tensors["after.bn1.running_mean"].data);
    assert!(support::difference(&found[name], whole) > 1e-4, "{name}");
}

#[test]
fn big_transfer() {
    agrees("train_bit");
}

#[test]
fn efficientnet() {
    agrees("train_efficientnet");
}

#[test]
fn swin() {
    agrees("train_swin");
}

#[test]
fn coatnet() {
    agrees("train_coatnet");
}

#[test]
fn convnext() {
    agrees("train_convnext");
}

/// The largest difference of a recording's arrays, to 1e-5 of each one's largest value, or of 1 if that is larger; or what
/// failed.
fn recording_agrees(case: &std::path::Path) -> Result<String, String> {
    let checkpoint = Checkpoint::open(case, OpenOptions::default()).map_err(|error| error.to_string())?;
    support::survives_writing(&checkpoint.config)?;
    let (found, recorded) = passed(&checkpoint, safetensors::read(&case.join("io.safetensors")).unwrap());
    let (mut wrong, mut worst) = (Vec::new(), 0f32);
    for (name, expected) in &recorded.tensors {
        let found = found.get(name).ok_or_else(|| format!("{name} is not computed"))?;
        let largest = expected.data.iter().fold(1f32, |m, v| m.max(v.abs()));
        let difference = support::difference(&expected.data, found);
        worst = worst.max(difference);
        if difference > 1e-5 * largest || difference.is_nan() {
            wrong.push(format!("{name} differs by {difference:.1e} of {largest:.1e}"));
        }
    }
    if let Some(more) = found.keys().find(|name| !recorded.tensors.contains_key(*name)) {
        wrong.push(format!("{more} is not recorded"));
    }
    let arrays = recorded.tensors.len();
    if wrong.is_empty() {
        Ok(format!("{arrays} arrays, largest difference {worst:.1e}"))
    } else {
        Err(wrong.join(", "))
    }
}

/// Every recording of `bench/parity`, in the folder that `VIT_RECORDINGS` names.
#[test]
#[ignore = "run by bench/parity"]
fn recordings_of_random_models() {
    let folder = std::path::PathBuf::from(std::env::var_os("VIT_RECORDINGS").unwrap());
    let mut cases: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert!(!cases.is_empty(), "no recordings");
    let mut failed = Vec::new();
    for case in cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        match recording_agrees(&case) {
            Ok(line) => println!("{name}: {line}"),
            Err(what) => {
                println!("{name}: FAILED: {what}");
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join(", "));
}
