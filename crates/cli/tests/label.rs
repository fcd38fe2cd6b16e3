//! Noisy Student: a teacher, its pseudo-labels, and a student trained on them.

mod support;

use std::path::Path;

use support::{image, images, vit};

/// A briefly trained teacher of two classes, and unlabelled images of both.
fn scene(folder: &Path) {
    images(&folder.join("photos"), &[("a", 30), ("b", 220)], 20);
    images(&folder.join("more"), &[("mixed", 40)], 6);
    images(&folder.join("more/deep"), &[("er", 210)], 6);
    let (data, out) = (folder.join("photos"), folder.join("teacher"));
    let mut train = arguments!["train", "--data", data, "--out", out, "--model", "lenet5_relu_cifar"].to_vec();
    for setting in ["batch=12", "length=40 steps", "evaluate_every=40 steps", "schedule.rate=2e-2"] {
        train.extend(["--set".into(), setting.into()]);
    }
    vit(train).code(0);
}

#[test]
fn a_student_learns_a_teachers_labels_under_noise() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    scene(folder.path());
    std::fs::copy(image("preprocess/tiny.jpg"), at("more/tiny.jpg")).unwrap();
    std::fs::write(at("more/broken.jpg"), b"\xff\xd8\xff\xe0 this is not an image").unwrap();
    for (file, soft) in [("hard.csv", false), ("soft.jsonl", true), ("soft.csv", true)] {
        let mut label =
            arguments!["label", at("more"), "-m", at("teacher"), "--with", at("photos"), "--out", at(file)].to_vec();
        label.extend(["--min-confidence".into(), "0.6".into(), "--per-class".into(), "9".into()]);
        if soft {
            label.push("--soft".into());
        }
        // An image that cannot be read is reported, and the others are labelled.
        let labelled = vit(&label).code(1);
        assert!(
            labelled.err.contains("broken.jpg") && labelled.err.contains("a confidence of at least 0.6"),
            "{}",
            labelled.err
        );
        let text = std::fs::read_to_string(at(file)).unwrap();
        let from_model = |line: &&str| line.contains("more/");
        let lines: Vec<&str> = text.lines().collect();
        // Nine of each class: all six images, some of them twice; paths are relative to the manifest.
        assert_eq!(lines.iter().filter(|l| from_model(l)).count(), 18, "{text}");
        assert_eq!(lines.iter().filter(|l| l.contains("validation")).count(), 4, "{text}");
        assert!(lines.iter().filter(|l| l.contains("validation")).all(|l| !from_model(l)), "{text}");
        assert!(!text.contains(&folder.path().display().to_string()), "{text}");
        assert_eq!(lines.iter().any(|l| l.contains('{') && l.contains("\"a\"")), soft, "{text}");

        let out = at(&format!("student-{file}"));
        let mut train =
            arguments!["train", "--data", at(file), "--out", &out, "--model", "vit_pico_patch4_32"].to_vec();
        train.extend(["--recipe".into(), "noisy-student".into()]);
        for setting in ["batch=10", "length=6 steps", "evaluate_every=6 steps", "schedule.warmup=0 steps"] {
            train.extend(["--set".into(), setting.into()]);
        }
        let trained = vit(train).code(0);
        assert!(trained.err.contains("2 classes; samples: 54 train, 4 validation"), "{}", trained.err);
        assert!(out.join("checkpoints/best/model.safetensors").is_file());
    }
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    scene(folder.path());
    let wrong = |more: &[std::ffi::OsString], code: i32| {
        let mut label = arguments!["label", at("more"), "-m", at("teacher")].to_vec();
        label.extend(more.iter().cloned());
        vit(label).code(code).err
    };
    assert!(wrong(&arguments!["--out", at("x.txt")], 1).contains("should end in .csv or .jsonl"));
    assert!(wrong(&arguments!["--out", at("x.csv"), "--min-confidence", "2"], 2).contains("from 0 to 1"));
    assert!(wrong(&arguments!["--out", at("x.csv"), "--min-confidence", "1"], 1).contains("a lower --min-confidence"));
    images(&at("others"), &[("a", 30), ("c", 220)], 4);
    let classes = wrong(&arguments!["--out", at("x.csv"), "--with", at("others")], 1);
    assert!(classes.contains("\"c\"") || classes.contains(" c"), "{classes}");
    assert!(!at("x.csv").exists());
}
