//! transformers' models and image processors, as `bench/parity` draws and records them: an image file becomes the recorded
//! pixels, outputs and gradients.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vit_cpu::Cpu;
use vit_data::{ApplyPreprocess, Image};
use vit_graph::autodiff::gradients;
use vit_graph::device::{Device, Elements};
use vit_graph::ops::{CrossEntropy, Input};
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{DType, Type, Value};
use vit_models::weights::{Weights, safetensors};
use vit_models::{Checkpoint, Mode, OpenOptions};

/// Outputs and, of the cross-entropy of class 0, gradients.
fn computed(
    checkpoint: &Checkpoint,
    pixels: &[f32],
    names: &[&String],
    differentiate: bool,
) -> BTreeMap<String, Vec<f32>> {
    let mut graph = checkpoint.config.architecture.build(1, Mode::Inference).unwrap();
    graph.retain_outputs(|name| names.iter().any(|wanted| *wanted == name));
    if differentiate {
        let classes = checkpoint.config.architecture.classes();
        let input = Input { name: "targets".into(), ty: Type::new(DType::F32, [1, classes]) };
        let (logits, targets) = (graph.output("logits").unwrap(), graph.value(input, &[]).unwrap());
        let loss = graph.value(CrossEntropy, &[logits, targets]).unwrap();
        let trained: Vec<(String, Value)> = graph
            .parameters()
            .filter(|(_, p)| p.trainable)
            .map(|(node, p)| (p.name.clone(), Value { node, output: 0 }))
            .collect();
        let wrt: Vec<Value> = trained.iter().map(|(_, value)| *value).collect();
        for ((name, _), gradient) in trained.iter().zip(gradients(&mut graph, loss, &wrt).unwrap()) {
            graph.set_output(&format!("grad.{name}"), gradient).unwrap();
        }
    }
    let graph = eliminate_dead_code(&graph).unwrap();
    let mut executable = Cpu::new(Some(2)).compile(&graph, &mut checkpoint.weights.clone()).unwrap();
    executable.write("image", Elements::F32(pixels)).unwrap();
    if differentiate {
        let classes = checkpoint.config.architecture.classes();
        let one_hot: Vec<f32> = (0..classes).map(|class| f32::from(class == 0)).collect();
        executable.write("targets", Elements::F32(&one_hot)).unwrap();
    }
    executable.run().unwrap();
    let read = |(name, value): &(String, Value)| {
        let mut values = vec![0.0; graph.shape(*value).elements()];
        executable.read(name, &mut values).unwrap();
        (name.clone(), values)
    };
    graph.outputs().iter().map(read).collect()
}

/// The recorded gradients under canonical names, if there are any: they are in a file like the weights.
fn recorded_gradients(case: &Path) -> Weights {
    let folder = case.join("gradients");
    if !folder.exists() {
        return Weights::default();
    }
    let opened = Checkpoint::open(&folder, OpenOptions::default());
    opened.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).weights
}

/// The largest differences of pixels, outputs and gradients, relative to the largest value of an array; or what failed.
fn differences(case: &Path) -> Result<(f32, f32, f32), String> {
    let checkpoint = Checkpoint::open(case, OpenOptions::default()).map_err(|error| error.to_string())?;
    let mut io = safetensors::read(&case.join("io.safetensors")).unwrap();
    let expected_gradients = recorded_gradients(case);
    let image = Image::open(case.join("image.png")).unwrap();
    let pixels = checkpoint.config.preprocessing.apply(&image).map_err(|error| error.to_string())?;
    let recorded = io.take("pixels").unwrap();
    if recorded.data.len() != pixels.len() {
        return Err(format!("{} pixels, recorded {:?}", pixels.len(), recorded.shape));
    }
    io.tensors.remove("labels");
    let names: Vec<&String> = io.tensors.keys().collect();
    let found = computed(&checkpoint, &pixels, &names, !expected_gradients.tensors.is_empty());
    let relative = |expected: &[f32], found: &[f32]| {
        let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
        support::difference(expected, found) / largest.max(1e-3)
    };
    let mut outputs = 0f32;
    for (name, expected) in &io.tensors {
        let found = found.get(name).ok_or_else(|| format!("no output {name}"))?;
        if found.len() != expected.data.len() {
            return Err(format!("{name}: {} values, recorded {:?}", found.len(), expected.shape));
        }
        outputs = outputs.max(relative(&expected.data, found));
    }
    let mut backward = 0f32;
    let largest =
        expected_gradients.tensors.values().flat_map(|t| &t.data).fold(0f32, |largest, value| largest.max(value.abs()));
    for (name, expected) in &expected_gradients.tensors {
        if let Some(found) = found.get(&format!("grad.{name}")) {
            backward = backward.max(support::difference(&expected.data, found) / largest);
        }
    }
    Ok((relative(&recorded.data, &pixels), outputs, backward))
}

#[test]
#[ignore = "bench/parity records the models"]
fn recordings_of_transformers() {
    let folder = PathBuf::from(std::env::var_os("VIT_RECORDINGS").unwrap());
    let mut cases: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert!(!cases.is_empty(), "no recordings");
    let mut failed = 0;
    for case in cases {
        let name = case.file_name().unwrap().to_string_lossy();
        match differences(&case) {
            Ok((pixels, outputs, gradients)) => {
                let good = pixels <= 1e-6 && outputs <= 1e-5 && gradients <= 1e-5;
                failed += usize::from(!good);
                let mark = if good { "" } else { "  DIFFERS" };
                println!("{name}: pixels {pixels:.1e}, outputs {outputs:.1e}, gradients {gradients:.1e}{mark}");
            }
            Err(what) => {
                failed += 1;
                println!("{name}: FAILED: {what}");
            }
        }
    }
    assert_eq!(failed, 0, "recordings differ");
}
