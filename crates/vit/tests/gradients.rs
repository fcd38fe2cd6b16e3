//! Models of the family in training mode: logits, loss, every gradient and every running statistic after one pass are
//! those that timm and PyTorch give.

mod support;

use std::collections::BTreeMap;

use support::{open, recorded};
use vit::graph::autodiff::gradients;
use vit::graph::device::{Device, Elements};
use vit::graph::ops::{CrossEntropy, Input};
use vit::graph::{DType, Type, Value};
use vit::models::{Checkpoint, Mode};
use vit_cpu::Cpu;

/// One pass of a checkpoint over recorded images: outputs `logits`, `loss` and `grad.NAME`, and what it updates.
fn pass(checkpoint: &Checkpoint, images: &[f32], labels: &[f32]) -> BTreeMap<String, Vec<f32>> {
    let (batch, classes) = (labels.len(), checkpoint.config.architecture.classes());
    let mut graph = checkpoint.config.architecture.build(batch, Mode::Training).unwrap();
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
    let mut all = BTreeMap::new();
    for (name, value) in graph.outputs() {
        let mut values = vec![0.0; graph.shape(*value).elements()];
        executable.read(name, &mut values).unwrap();
        all.insert(name.clone(), values);
    }
    for (_, parameter) in graph.parameters().filter(|(_, p)| !p.trainable) {
        let mut values = vec![0.0; parameter.shape.elements()];
        executable.read_parameter(&parameter.name, &mut values).unwrap();
        all.insert(format!("after.{}", parameter.name), values);
    }
    all
}

/// Compares everything that was recorded, relative to each array's size.
fn agrees(case: &str) {
    let mut io = recorded(case);
    let (images, labels) = (io.tensors.remove("images").unwrap(), io.tensors.remove("labels").unwrap());
    let found = pass(&open(case), &images.data, &labels.data);
    let mut expected: Vec<&String> = io.tensors.keys().collect();
    expected.sort();
    assert_eq!(expected, found.keys().collect::<Vec<_>>(), "{case}");
    for (name, expected) in &io.tensors {
        let largest = expected.data.iter().fold(0f32, |m, v| m.max(v.abs()));
        let difference = support::difference(&expected.data, &found[name]);
        assert!(difference <= 2e-5 * (0.1 + largest), "{case}: {name} differs by {difference:e} of {largest:e}");
    }
}

#[test]
fn resnet() {
    agrees("train_resnet");
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
