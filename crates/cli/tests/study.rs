//! A study: interrupted, continued, extended; its tables and its plot.

mod support;

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use support::{command, images, vit};

const MODELS: &str = "lenet5_relu_cifar,vit_pico_patch8_32,deit_pico_distilled_patch8_32";

/// A study of tiny runs.
fn study(data: &Path, out: &Path, models: &str, more: &[&str]) -> Vec<OsString> {
    let mut arguments = arguments!["study", "--data", data, "--out", out, "--models", models].to_vec();
    for argument in ["--fractions", "1,0.5", "--device", "cpu", "--set", "batch=6", "--set", "length=20 steps"] {
        arguments.push(argument.into());
    }
    arguments.extend(more.iter().map(Into::into));
    arguments
}

#[test]
fn a_study_is_carried_out_once_and_can_grow() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("study"));
    images(&data, &[("a", 30), ("b", 220)], 20);
    let first = vit(study(&data, &out, MODELS, &[])).code(0);
    // Two shares of three models: the smaller share first, the teacher before its student.
    let order: Vec<&str> = first.err.lines().filter(|line| line.contains("/6  ") && line.contains(" images")).collect();
    assert_eq!(order.len(), 6, "{}", first.err);
    assert!(order[0].starts_with("1/6  lenet5_relu_cifar on 50%: 18 images"), "{order:?}");
    assert!(
        order[2].contains("deit_pico_distilled_patch8_32 on 50%") && order[2].contains("following lenet5_relu_cifar")
    );
    let table: Vec<&str> = first.out.lines().collect();
    assert!(
        table[0].starts_with("model") && table[0].contains("50% (18)") && table[0].contains("100% (36)"),
        "{table:?}"
    );
    assert_eq!(table.len(), 4);
    let csv = std::fs::read_to_string(out.join("results.csv")).unwrap();
    assert_eq!(csv.lines().count(), 7);
    for line in csv.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        // The same budget for all: 20 steps of 6 images.
        assert_eq!((cells[6], cells[7]), ("20", "120"), "{line}");
        let score: f64 = cells[10].parse().unwrap();
        assert!((0.0..=1.0).contains(&score), "{line}");
        assert_eq!(cells[2], if cells[0].starts_with("deit") { "lenet5_relu_cifar" } else { "" });
    }
    assert!(std::fs::read_to_string(out.join("results.md")).unwrap().contains("| lenet5_relu_cifar | 0.08 M |"));
    assert!(std::fs::read_to_string(out.join("results.svg")).unwrap().contains("vit_pico_patch8_32"));
    assert!(out.join("results.png").is_file());
    // A distilled run follows the teacher of its share.
    let config = std::fs::read_to_string(out.join("runs/deit_pico_distilled_patch8_32-0.5/config.toml")).unwrap();
    assert!(config.contains("runs/lenet5_relu_cifar-0.5"), "{config}");

    // Finished runs are kept, and only the new model is trained.
    let again = vit(study(&data, &out, MODELS, &[])).code(0);
    assert_eq!(again.err.matches("done before").count(), 6, "{}", again.err);
    assert_eq!(again.out, first.out);
    let more = vit(study(&data, &out, &format!("{MODELS},P/16@32"), &[])).code(0);
    assert_eq!(more.err.matches("done before").count(), 6, "{}", more.err);
    assert_eq!(more.out.lines().count(), 5);

    // Runs with other settings are refused.
    let other = vit(study(&data, &out, MODELS, &["--set", "seed=7"])).code(1);
    assert!(other.err.contains("`seed = 0`, now `seed = 7`") && other.err.contains("another folder"), "{}", other.err);
}

#[test]
fn a_study_killed_at_any_moment_ends_with_the_same_table() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, &[("a", 30), ("b", 220)], 12);
    let whole = vit(study(&data, &folder.path().join("whole"), MODELS, &[])).code(0);
    let scores = |out: &str| -> Vec<Vec<String>> {
        let cells = |line: &str| line.split_whitespace().take(5).map(str::to_string).collect();
        out.lines().map(cells).collect()
    };
    let out = folder.path().join("killed");
    let (mut kills, mut moment) = (0, 5u64);
    loop {
        let mut child = command()
            .args(study(&data, &out, MODELS, &["--save-every", "0"]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The moment of the kill does not matter.
        moment = (moment * 29 + 17) % 211;
        std::thread::sleep(std::time::Duration::from_millis(30 + moment));
        if kills < 12 && child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        } else {
            assert!(child.wait().unwrap().success());
            break;
        }
    }
    let killed = vit(study(&data, &out, MODELS, &[])).code(0);
    assert_eq!(scores(&killed.out), scores(&whole.out), "after {kills} kills");
    let last = "runs/deit_pico_distilled_patch8_32-1/checkpoints/last/model.safetensors";
    let weights = |study: &str| std::fs::read(folder.path().join(study).join(last)).unwrap();
    assert!(weights("whole") == weights("killed"), "the weights differ after {kills} kills");
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("study"));
    images(&data, &[("a", 30), ("b", 220)], 12);
    let wrong = |models: &str, more: &[&str]| vit(study(&data, &out, models, more)).code(1).err;
    assert!(wrong("resnet18_cifr", &[]).contains("no model named `resnet18_cifr`"));
    assert!(wrong("P/8@32,vit_pico_patch8_32", &[]).contains("vit_pico_patch8_32 is in the study twice"));
    assert!(wrong(MODELS, &["--set", "length=3 epochs"]).contains("same number of steps"));
    assert!(wrong(MODELS, &["--set", "P/9@36:seed=1"]).contains("P/9@36"));
    assert!(wrong(MODELS, &["--set", "lenet5_relu_cifar:sed=1"]).contains("did you mean `seed`?"));
    assert!(wrong(MODELS, &["--teacher", "resnet18_cifar"]).contains("one of the study's models"));
    assert!(wrong("P/8@32,deit_pico_distilled_patch8_32", &[]).contains("no convolutional model"));
    assert!(!out.join("runs/lenet5_relu_cifar-0.5").exists(), "nothing began");
}
