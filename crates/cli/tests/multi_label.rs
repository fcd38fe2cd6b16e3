//! Images with several labels, from the manifest to every command that prints probabilities, one sigmoid per class.

mod support;

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;
use support::{images, vit, write_bmp};

const CLASSES: [&str; 3] = ["blue", "green", "red"];

/// An image for each subset of the classes: bit `i` of its number says whether it has the colour of class `i`.
fn image(path: &Path, subset: usize, number: usize) {
    let pixel = |i: usize| {
        let channel =
            |c: usize| if subset >> (2 - c) & 1 == 1 { 235 } else { 20 } + ((i * 7 + number * 13 + c) % 17) as u8;
        [channel(0), channel(1), channel(2)]
    };
    write_bmp(path, 12, &(0..144).flat_map(pixel).collect::<Vec<u8>>());
}

fn labels(subset: usize) -> Vec<&'static str> {
    (0..3).filter(|c| subset >> c & 1 == 1).map(|c| CLASSES[c]).collect()
}

/// A dataset, a model trained on it, and the output of training.
fn trained(folder: &Path) -> String {
    let mut manifest = String::from("path,label,split\n");
    for (subset, number) in (0..8).flat_map(|subset| (0..6).map(move |number| (subset, number))) {
        let name = format!("{subset}-{number}.bmp");
        image(&folder.join(&name), subset, number);
        let split = if number == 0 { "val" } else { "train" };
        manifest += &format!("{name},{}|,{split}\n", labels(subset).join("|"));
    }
    std::fs::write(folder.join("data.csv"), manifest).unwrap();
    let (data, out) = (folder.join("data.csv"), folder.join("run"));
    let mut train = arguments!["train", "--data", data, "--out", out, "--model", "lenet5_relu_cifar"].to_vec();
    for setting in [
        "batch=20",
        "length=60 steps",
        "evaluate_every=30 steps",
        "schedule.rate=1e-2",
        "data.mixup=0",
        "data.cutmix=0",
        "data.label_smoothing=0",
        "data.colour_jitter=0",
        "data.auto_augment=none",
        "data.three_augment=false",
        "data.erasing=0",
    ] {
        train.extend(["--set".into(), setting.into()]);
    }
    vit(train).code(0).err
}

fn names(predictions: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = predictions.as_array().unwrap().iter().map(|p| p["label"].as_str().unwrap()).collect();
    names.sort_by_key(|name| CLASSES.iter().position(|class| class == name));
    names
}

#[test]
fn several_labels_are_several_labels_in_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let with = |command: &str, more: &[OsString]| {
        let mut all = arguments![command, "-m", at("run")].to_vec();
        all.extend(more.iter().cloned());
        vit(all)
    };
    let log = trained(folder.path());
    assert!(log.contains("mAP") && log.contains("micro F1"), "{log}");
    let config: Value =
        serde_json::from_slice(&std::fs::read(at("run/checkpoints/best/config.json")).unwrap()).unwrap();
    assert_eq!(config["problem_type"], "multi_label_classification");

    // Training and validation have the same loss: both start at about ln 2, the mean over classes.
    let rows = std::fs::read_to_string(at("run/metrics.jsonl")).unwrap();
    let first: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert!((0.2..1.2).contains(&first["train/loss"].as_f64().unwrap()), "{first}");

    // Every subset of the classes is found: probabilities do not compete.
    let files: Vec<OsString> = (0..8).map(|subset| at(&format!("{subset}-0.bmp")).into()).collect();
    let classified = with("classify", &[files.clone(), arguments!["--json"].to_vec()].concat()).code(0).json_lines();
    for (subset, found) in classified.iter().enumerate() {
        assert_eq!(names(&found["predictions"]), labels(subset), "{found}");
        assert_eq!(found["threshold"], 0.5);
        assert_eq!(found.get("likeliest").is_some(), subset == 0, "{found}");
    }
    let table = with("classify", &files[..2]).code(0).out;
    assert!(table.contains("none above 0.5; the likeliest is") && table.contains("%  ███"), "{table}");
    let csv = with("classify", &[files.clone(), arguments!["--format", "csv", "--top", "1"].to_vec()].concat()).code(0);
    let ranks: Vec<&str> = csv.out.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
    assert_eq!(ranks, ["0", "1", "1", "1", "1", "1", "1", "1"]);
    let none = with("classify", &[files.clone(), arguments!["--json", "--threshold", "1"].to_vec()].concat()).code(0);
    assert!(none.json_lines().iter().all(|found| found["predictions"].as_array().unwrap().is_empty()));

    // Its labels are written and read as lists: the model agrees with itself.
    for file in ["own.csv", "own.jsonl"] {
        let labelled = with("label", &[files.clone(), arguments!["--out", at(file)].to_vec()].concat()).code(0);
        assert!(
            labelled.err.contains("8 of 8") && labelled.err.contains("1 of them have no class"),
            "{}",
            labelled.err
        );
        let figures = vit(arguments!["eval", at("run"), "--data", at(file), "--json"]).code(0).json();
        assert_eq!((&figures["micro_f1"], &figures["samples"]), (&1.0.into(), &8.into()), "{figures}");
    }
    let text = std::fs::read_to_string(at("own.jsonl")).unwrap();
    let lists: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["label"].take()).collect();
    let expected: Vec<Value> = (0..8).map(|subset| labels(subset).into()).collect();
    assert_eq!(lists, expected);
    for (option, value) in [("--soft", None), ("--per-class", Some("3"))] {
        let more = [files.clone(), arguments!["--out", at("x.csv"), option].to_vec()].concat();
        let more: Vec<OsString> = more.into_iter().chain(value.map(Into::into)).collect();
        assert!(with("label", &more).code(1).err.contains("gives images several labels"));
    }

    // Metrics are per class.
    let report = at("report");
    let eval = arguments!["eval", at("run"), "--data", at("data.csv"), "--out", &report];
    let table = vit(eval).code(0).out;
    for figure in ["AP", "mean average precision", "micro F1", "mean F1"] {
        assert!(table.contains(figure), "{table}");
    }
    let figures: Value = serde_json::from_slice(&std::fs::read(report.join("evaluation.json")).unwrap()).unwrap();
    assert!(figures["mean_average_precision"].as_f64().unwrap() > 0.99, "{figures}");
    assert!(figures["classes"][1]["average_precision"].as_f64().unwrap() > 0.99, "{figures}");
    let csv = std::fs::read_to_string(report.join("classes.csv")).unwrap();
    assert!(csv.starts_with("class,precision,recall,f1,support,average_precision\n"), "{csv}");

    let explain = arguments![at("7-0.bmp"), "--out", at("maps"), "--method", "gradcam", "--threads", "1"];
    with("explain", &explain).code(0);
    let maps: Value = serde_json::from_slice(&std::fs::read(at("maps/7-0.json")).unwrap()).unwrap();
    let probabilities: Vec<f64> =
        maps["maps"].as_array().unwrap().iter().map(|map| map["probability"].as_f64().unwrap()).collect();
    assert!(probabilities.len() == 3 && probabilities.iter().all(|p| *p > 0.5), "{probabilities:?}");

    // Datasets and models of different problem types are refused.
    let taught = arguments!["train", "--data", at("data.csv"), "--teacher", at("run"), "--out", at("taught")];
    assert!(vit(taught).code(1).err.contains("a teacher can be followed only where they have one"));
    images(&at("single"), &[("red", 200), ("green", 30), ("blue", 90)], 5);
    let single =
        arguments!["train", "--data", at("single"), "--teacher", at("run"), "--out", at("taught"), "--epochs", "1"];
    let error = vit(single).code(1).err;
    assert!(error.contains("several labels") || error.contains("same order"), "{error}");
    let error = vit(arguments!["eval", "cifar10", "--data", at("data.csv")]).code(1).err;
    assert!(error.contains("problem_type") || error.contains("class"), "{error}");
}

#[test]
fn a_sigmoid_loss_on_single_labels_is_still_one_label_per_image() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    images(&at("data"), &[("a", 30), ("b", 220)], 9);
    let mut train = arguments!["train", "--data", at("data"), "--out", at("run"), "--model", "P/4@12"].to_vec();
    for setting in ["objective.loss=sigmoid", "batch=6", "length=4 steps", "evaluate_every=4 steps"] {
        train.extend(["--set".into(), setting.into()]);
    }
    let log = vit(train).code(0).err;
    assert!(log.contains("top-1"), "{log}");
    let config = std::fs::read_to_string(at("run/checkpoints/best/config.json")).unwrap();
    assert!(config.contains("single_label_classification"), "{config}");
    let found = vit(arguments!["classify", at("data/a/0.bmp"), "-m", at("run"), "--json"]).code(0).json();
    let sum: f64 = found["predictions"].as_array().unwrap().iter().map(|p| p["probability"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{found}");
}
