//! NaN and infinity are never a result, but an error that names the weights or the image.

mod support;

use std::path::Path;

use support::{images, vit};
use vit_models::weights::safetensors::Dtype;
use vit_models::weights::{Scheme, Tensor, Weights};
use vit_models::{Checkpoint, Config, Layout, Mode, ProblemType, Variant, variant};

/// A LeNet with positive filters and ReLUs, whose activations are zero for dark images and whose head overflows for bright
/// ones.
fn overflowing() -> Checkpoint {
    let Variant { mut architecture, preprocessing, .. } = variant("lenet5_relu_cifar").unwrap();
    architecture.set_classes(2);
    let mut weights = Weights::default();
    for (_, parameter) in architecture.build(1, Mode::Inference).unwrap().parameters() {
        let value = match parameter.name.as_str() {
            name if name.ends_with("bias") => 0.0,
            "fc3.weight" => 1e38,
            _ => 0.1,
        };
        let data = vec![value; parameter.shape.elements()];
        weights.insert(&parameter.name, Tensor { shape: parameter.shape.to_vec(), data }).unwrap();
    }
    let labels = vec!["a".into(), "b".into()];
    let config = Config { name: None, architecture, preprocessing, labels, problem_type: ProblemType::default() };
    Checkpoint { config, weights, scheme: Scheme::Timm, source: "".into(), report: vec![], tokenizer: None }
}

fn save(checkpoint: &Checkpoint, folder: &Path) {
    checkpoint.save(folder, Layout::Timm, Dtype::F32).unwrap();
}

/// Checks that no form of a non-finite value was printed.
#[track_caller]
fn assert_no_nan(out: &str) {
    for written in [":null", ": null", "\"NaN\"", ":NaN", ",NaN", "NaN%", ",inf", ":inf"] {
        assert!(!out.contains(written), "{written}: {out}");
    }
}

#[test]
fn weights_that_are_not_finite_are_named_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut damaged = overflowing();
    damaged.weights.tensors.get_mut("fc2.weight").unwrap().data[7] = f32::NAN;
    save(&damaged, &at("model"));
    images(&at("data"), &[("a", 1), ("b", 2)], 3);
    let (images, model) = (at("data"), at("model"));
    for command in [
        arguments!["classify", &images, "-m", &model, "--json"].to_vec(),
        arguments!["classify", &images, "-m", &model, "--precision", "int8", "--format", "csv"].to_vec(),
        arguments!["embed", &images, "-m", &model, "--out", at("e.npy")].to_vec(),
        arguments!["explain", &images, "-m", &model, "--out", at("maps")].to_vec(),
        arguments!["label", &images, "-m", &model, "--out", at("labels.csv")].to_vec(),
        arguments!["eval", &model, "--data", &images, "--json"].to_vec(),
        arguments!["inspect", &model, "--out", at("inspected")].to_vec(),
    ] {
        let run = vit(&command).code(1);
        assert!(run.err.contains("model.safetensors") && run.err.contains("`fc2.weight`"), "{command:?}: {}", run.err);
        assert!(run.err.contains("1 of 10080 elements"), "{command:?}: {}", run.err);
        assert_no_nan(&run.out);
    }
    assert!(!at("labels.csv").exists() && !at("e.npy").exists());
}

#[test]
fn an_image_that_overflows_is_named_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    save(&overflowing(), &at("model"));
    let white = |name: &str| support::write_bmp(&at(name), 12, &[255; 432]);
    let black = |name: &str| support::write_bmp(&at(name), 12, &[0; 432]);
    for class in ["dark/a", "dark/b", "bright/a", "bright/b"] {
        std::fs::create_dir_all(at(class)).unwrap();
        for number in 0..4 {
            let name = format!("{class}/{number}.bmp");
            if class.starts_with("dark") { black(&name) } else { white(&name) }
        }
    }
    let (dark, bright, model) = (at("dark/a/0.bmp"), at("bright/a/0.bmp"), at("model"));
    let classified = vit(arguments!["classify", &dark, &bright, at("dark/b/0.bmp"), "-m", &model, "--json"]).code(1);
    let lines = classified.json_lines();
    assert_eq!(lines[0]["predictions"][0]["probability"], 0.5, "{}", classified.out);
    assert!(lines[1]["error"].as_str().unwrap().contains("logits"), "{}", classified.out);
    assert!(lines[2]["predictions"].is_array(), "{}", classified.out);
    assert_no_nan(&classified.out);
    assert!(classified.err.contains("bright/a/0.bmp") && !classified.err.contains("dark/"));
    let label = arguments!["label", &dark, &bright, "-m", &model, "--out", at("labels.csv")];
    assert!(vit(label).code(1).err.contains("bright/a/0.bmp"));
    let labels = std::fs::read_to_string(at("labels.csv")).unwrap();
    assert!(labels.contains("dark") && !labels.contains("bright"), "{labels}");
    let explain = arguments!["explain", &dark, &bright, "-m", &model, "--out", at("maps"), "--method", "gradcam"];
    vit(explain).code(1);
    let eval = vit(arguments!["eval", &model, "--data", at("bright"), "--json"]).code(1);
    assert!(eval.err.contains("8 of 8 images") && eval.err.contains("0.bmp"), "{}", eval.err);
    assert_no_nan(&eval.out);

    // Trained where it is finite, evaluated where it is not: there is no best model, and the files contain no NaN.
    let run = at("run");
    let mut finetune = arguments!["finetune", &model, "--data", at("dark"), "--validation", at("bright")].to_vec();
    let head_alone = "model.freeze=[\"conv1.*\", \"conv2.*\", \"fc1.*\", \"fc2.*\"]";
    finetune.extend(arguments!["--out", &run, "--set", head_alone, "--epochs", "1", "--batch", "4"]);
    let log = vit(finetune).code(0).err;
    assert!(log.contains("8 of 8 validation images are NaN or infinite") && !log.contains("(best)"), "{log}");
    assert!(!run.join("checkpoints/best").exists());
    let rows = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(rows.lines().last().unwrap()).unwrap();
    assert_eq!(last["not_finite"], serde_json::json!(["val/loss", "val/ece"]), "{rows}");
    assert!(!rows.contains("NaN") && !rows.contains("null"), "{rows}");
}
