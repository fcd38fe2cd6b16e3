//! transformers' models and image processors, as `bench/parity` draws and records them: an image file becomes the recorded
//! pixels, outputs and gradients.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vit::{VerifyOptions, verify};
use vit_cpu::Cpu;
use vit_data::{ApplyPreprocess, CropRule, Image, Preprocess};
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
    let mut gradients = opened.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).weights;
    // CLIP's projection has no bias; here it is a head with a bias of zeros.
    if safetensors::read(&folder.join("model.safetensors")).unwrap().tensors.contains_key("visual_projection.weight") {
        gradients.tensors.remove("head.bias");
    }
    gradients
}

/// The same of a recorded step of pre-training, as parts of the recording's tolerances, which are 1e-5 of the largest values;
/// masks are equal.
fn pretraining_differences(case: &Path) -> Result<(f32, f32, f32), String> {
    let verification = verify(case, &VerifyOptions::default()).map_err(|error| error.to_string())?;
    let (mut outputs, mut gradients, mut compared) = (0f32, 0f32, 0);
    for array in &verification.arrays {
        let Some(difference) = array.difference else { return Err(format!("{}: {:?}", array.name, array.note)) };
        let gradient = array.name.starts_with("grad.");
        let largest = if gradient { &mut gradients } else { &mut outputs };
        let relative = if difference == 0.0 { 0.0 } else { 1e-5 * difference / array.tolerance };
        *largest = largest.max(relative as f32);
        compared += usize::from(gradient);
    }
    if compared == 0 { Err("no gradients were recorded".into()) } else { Ok((0.0, outputs, gradients)) }
}

/// The largest differences of pixels, outputs and gradients, relative to the largest value of an array; or what failed.
fn differences(case: &Path) -> Result<(f32, f32, f32), String> {
    let checkpoint = Checkpoint::open(case, OpenOptions::default()).map_err(|error| error.to_string())?;
    support::survives_writing(&checkpoint.config)?;
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

/// A copy of a recorded model with other options.
fn changed(case: &str, name: &str, change: impl Fn(&mut serde_json::Value)) -> PathBuf {
    let folder = support::copy(case, name);
    let path = folder.join("config.json");
    let mut config = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
    folder
}

fn refusal(folder: &Path) -> String {
    Checkpoint::open(folder, OpenOptions::default()).unwrap_err().to_string()
}

#[test]
fn misfits_name_the_tensor_its_shape_and_the_options_behind_it() {
    let message = refusal(&changed("hf_vit", "narrower_mlp", |config| config["intermediate_size"] = 96.into()));
    let line = "`vit.encoder.layer.0.intermediate.dense.weight` has shape [112, 48], expected [96, 48] \
                (from `hidden_size` 48, `intermediate_size` 96)";
    assert!(message.contains(line), "{message}");
    let message = refusal(&changed("hf_dinov2", "deeper", |config| config["num_hidden_layers"] = 3.into()));
    let line = "`encoder.layer.2.attention.attention.key.weight` is missing, expected [48, 48] \
                (from `hidden_size` 48";
    assert!(message.contains(line), "{message}");
    let message = refusal(&changed("hf_vit", "as_dinov2", |config| config["num_hidden_layers"] = 1.into()));
    assert!(message.contains("encoder.layer.1."), "{message}");
}

#[test]
fn an_unknown_model_type_is_refused_with_those_that_are_known() {
    let message = refusal(&changed("hf_vit", "unknown_type", |config| config["model_type"] = "yolos".into()));
    assert!(message.contains("`yolos` is not known here") && message.contains("dinov2_with_registers"), "{message}");
    let message = refusal(&changed("hf_vit", "unknown_option", |config| config["rope"] = true.into()));
    assert!(message.contains("`rope`"), "{message}");
}

#[test]
fn a_model_that_takes_any_size_takes_that_of_its_image_processor() {
    let folder = changed("hf_dinov2", "with_a_processor", |_| {});
    let processor = r#"{"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 64},
        "crop_size": {"height": 56, "width": 56}, "resample": 3, "image_mean": [0.5, 0.5, 0.5], "image_std": 0.25}"#;
    std::fs::write(folder.join("preprocessor_config.json"), processor).unwrap();
    let checkpoint = Checkpoint::open(&folder, OpenOptions::default()).unwrap();
    assert_eq!(checkpoint.config.architecture.image_size(), [56, 56]);
    assert_eq!(checkpoint.weights.tensors["pos_embed"].shape, [1, 17, 48]);
    let p = &checkpoint.config.preprocessing;
    assert_eq!((p.image_size, p.crop_rule, p.std[2]), ([56, 56], CropRule::Transformers, 0.25));
    // The rule of the crop survives this project's own layout, and timm's difference is stated.
    let report = vit_models::config::timm_differences(&checkpoint.config);
    assert!(report.iter().any(|line| line.contains("one pixel further down or right")), "{report:?}");
    let json = vit_models::config::timm_config(&checkpoint.config);
    assert_eq!(vit_models::config::parse(&json, None).unwrap().preprocessing, *p);
    // 65 pixels wide: a margin of 9, half of which is rounded down here, to even there.
    assert_eq!(p.region(65, 64).unwrap().x, 4.0);
    assert_eq!(Preprocess { crop_rule: CropRule::Torchvision, ..p.clone() }.region(67, 64).unwrap().x, 6.0);
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
        let noise = safetensors::read(&case.join("io.safetensors")).unwrap().tensors.contains_key("noise");
        match if noise { pretraining_differences(&case) } else { differences(&case) } {
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
