//! A run's folder, and the commands that read it: its data and split, the command that began it, its model.

mod support;

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use support::{Run, command, finished, images, vit};

const CLASSES: [(&str, u8); 2] = [("a", 30), ("b", 220)];

/// Runs `vit` in a folder.
#[track_caller]
fn vit_in<A: AsRef<std::ffi::OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = A>) -> Run {
    finished(command().current_dir(folder).args(arguments).stdin(Stdio::null()).output().unwrap())
}

/// A run of two steps, in the folder of its data.
fn train(folder: &Path, more: &[&str]) -> Run {
    let mut arguments = vec!["train", "--data", "photos", "--model", "P/4@12", "--batch", "4", "--out", "run one"];
    arguments.extend(["--device", "cpu", "--threads", "2", "--set", "length=2 steps"]);
    arguments.extend(more);
    vit_in(folder, arguments)
}

fn samples(run: &Run) -> u64 {
    run.json()["samples"].as_u64().unwrap()
}

#[test]
fn a_run_keeps_its_command_and_absolute_paths_and_goes_on_from_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    images(&folder.join("photos"), &CLASSES, 6);
    images(&folder.join("held"), &CLASSES, 2);
    train(&folder, &["--validation", "held"]).code(0);
    let run = folder.join("run one");
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    for path in ["photos", "held"] {
        let path = folder.join(path);
        assert!(config.contains(&format!("= \"{}\"", path.display())), "{}: {config}", path.display());
    }
    assert!(config.contains("device = \"cpu\"") && config.contains("threads = 2"), "{config}");
    let commands = std::fs::read_to_string(run.join("command.txt")).unwrap();
    let begun = "# vit train --data photos --model P/4@12 --batch 4 --out 'run one' --device cpu --threads 2 \
                 --set 'length=2 steps' --validation held\n";
    assert!(commands.contains(begun), "{commands}");
    assert!(commands.ends_with(&format!("\nvit resume '{}'\n", run.display())), "{commands}");
    // From another folder, where relative paths would not be found.
    let elsewhere = tempfile::tempdir().unwrap();
    let resumed = vit_in(elsewhere.path(), arguments!["resume", &run]).code(0);
    assert!(resumed.err.contains("training on cpu"), "{}", resumed.err);

    // A device that is missing is named.
    std::fs::write(run.join("config.toml"), config.replace("device = \"cpu\"", "device = \"cuda:7\"")).unwrap();
    let refused = vit_in(elsewhere.path(), arguments!["resume", &run]).code(1);
    assert!(refused.err.contains("begun on cuda:7 in f32") && refused.err.contains("--device"), "{}", refused.err);
    vit_in(elsewhere.path(), arguments!["resume", &run, "--device", "cpu"]).code(0);

    // All images of --data were trained on.
    let trained = vit(arguments!["eval", &run, "--data", folder.join("photos")]).code(1);
    assert!(trained.err.contains("held none out") && trained.err.contains("--split all"), "{}", trained.err);
    let held = vit(arguments!["eval", &run, "--data", folder.join("held"), "--json"]).code(0);
    assert_eq!(samples(&held), 4);
    assert!(held.err.contains("is validated on"), "{}", held.err);
}

#[test]
fn a_run_is_a_model_for_every_command_by_position_or_option() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    images(&folder.join("photos"), &CLASSES, 6);
    train(folder, &[]).code(0);
    let run = OsString::from("run one");
    let all: [&[OsString]; 9] = [
        &arguments!["finetune", &run, "--data", "photos", "--dry-run", "--device", "cpu"],
        &arguments!["finetune", "-m", &run, "--data", "photos", "--dry-run", "--device", "cpu"],
        &arguments![
            "train",
            "--data",
            "photos",
            "--teacher",
            &run,
            "--dry-run",
            "--device",
            "cpu",
            "--model",
            "P/4@12"
        ],
        &arguments!["eval", "-m", &run, "--data", "photos"],
        &arguments!["info", &run],
        &arguments!["info", "-m", &run],
        &arguments!["inspect", "-m", &run, "--out", "inspected"],
        &arguments!["convert", "-m", &run, "converted"],
        &arguments!["bench", "infer", &run, "--seconds", "0.1", "--device", "cpu"],
    ];
    for arguments in all {
        vit_in(folder, arguments).code(0);
    }
    assert!(folder.join("converted/model.safetensors").is_file());
    // The error about the missing recording names the run's best model.
    let verified = vit_in(folder, arguments!["verify", "-m", &run]).code(1);
    assert!(verified.err.contains("checkpoints/best") && verified.err.contains("io.safetensors"), "{}", verified.err);
    let wrong = vit_in(folder, ["train", "--data", "photos", "--model", "run one"]).code(1);
    assert!(wrong.err.contains("vit finetune"), "{}", wrong.err);
    vit_in(folder, arguments!["eval", "--data", "photos"]).code(2);
    vit_in(folder, arguments!["eval", &run, "-m", &run, "--data", "photos"]).code(2);
}

#[test]
fn a_run_is_measured_on_what_it_held_out_and_resumes_only_with_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = folder.join("photos");
    images(&data, &CLASSES, 10);
    train(folder, &["--validation-fraction", "0.2", "--seed", "7"]).code(0);
    let eval = |model: &str, data: &str, more: &[&str]| {
        vit_in(folder, [&["eval", model, "--data", data, "--json"], more].concat())
    };
    for model in ["run one", "run one/checkpoints/best", "run one/checkpoints/last/model.safetensors"] {
        let held = eval(model, "photos", &[]).code(0);
        assert_eq!(samples(&held), 4, "{model}");
        assert!(held.err.contains("4 images: the images that") && held.err.contains("held out"), "{}", held.err);
    }
    assert_eq!(samples(&eval("run one", "photos", &["--split", "all"]).code(0)), 20);
    assert_eq!(samples(&eval("run one", "photos", &["--split", "train"]).code(0)), 16);
    let test = eval("run one", "photos", &["--split", "test"]).code(1);
    assert!(test.err.contains("no test split"), "{}", test.err);
    // A copy is the same dataset; another dataset is evaluated whole, which is printed.
    images(&folder.join("copy"), &CLASSES, 10);
    assert_eq!(samples(&eval("run one", "copy", &[]).code(0)), 4);
    images(&folder.join("other"), &CLASSES, 9);
    let other = eval("run one", "other", &[]).code(0);
    assert_eq!(samples(&other), 18);
    assert!(other.err.contains("another dataset"), "{}", other.err);

    // A student is not evaluated on images that its teacher was trained on.
    vit_in(folder, ["label", "other", "-m", "run one", "--with", "photos", "--min-confidence", "0", "-o", "all.jsonl"])
        .code(0);
    let manifest = std::fs::read_to_string(folder.join("all.jsonl")).unwrap();
    let held: Vec<&str> = manifest.lines().filter(|line| line.contains("validation")).collect();
    assert_eq!(held.len(), 4, "{manifest}");

    images(&data, &CLASSES, 15);
    let refused = vit_in(folder, ["resume", "run one"]).code(1);
    assert!(refused.err.contains("10 added (a/10.bmp, a/11.bmp, a/12.bmp, …)"), "{}", refused.err);
    assert!(refused.err.contains("--accept-changed-data"), "{}", refused.err);
    let accepted = vit_in(folder, ["resume", "run one", "--accept-changed-data"]).code(0);
    assert!(accepted.err.contains("the 4 validation images that it had"), "{}", accepted.err);
    assert_eq!(samples(&eval("run one", "photos", &[]).code(0)), 4);
}

#[test]
fn unreadable_images_are_said_and_too_many_in_validation_stop_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    images(&folder.join("photos/train"), &CLASSES, 21);
    images(&folder.join("photos/val"), &CLASSES, 5);
    for name in ["train/a/20.bmp", "train/b/20.bmp", "val/a/3.bmp", "val/b/4.bmp"] {
        std::fs::write(folder.join("photos").join(name), "not an image").unwrap();
    }
    // One epoch, so that every image is read.
    let stopped =
        train(folder, &["--set", "length=1 epochs", "--set", "batch=6", "--set", "evaluate_every=1 epochs"]).code(1);
    for said in
        ["a/20.bmp cannot be read", "b/20.bmp cannot be read", "2 of the 10 validation images", "--max-unreadable 20%"]
    {
        assert!(stopped.err.contains(said), "{said}: {}", stopped.err);
    }
    let listed = || std::fs::read_to_string(folder.join("run one/data.txt")).unwrap();
    let report = listed();
    assert!(report.contains("2 training images could not be read"), "{report}");
    assert!(report.contains("2 validation images could not be read"), "{report}");
    // With a higher limit the run continues, and unreadable images of before are still listed.
    vit_in(folder, ["resume", "run one", "--max-unreadable", "20%"]).code(0);
    let report = listed();
    for name in ["train/a/20.bmp", "train/b/20.bmp", "val/a/3.bmp", "val/b/4.bmp"] {
        assert!(report.contains(name), "{name}: {report}");
    }
    let strict = train(
        folder,
        &[
            "--set",
            "length=1 epochs",
            "--set",
            "batch=6",
            "--set",
            "evaluate_every=1 epochs",
            "--overwrite",
            "--max-unreadable",
            "0",
        ],
    )
    .code(1);
    assert!(strict.err.contains("more than the 0.0% allowed"), "{}", strict.err);
    vit(["train", "--data", "photos", "--max-unreadable", "much"]).code(2);
}

#[test]
fn evaluations_have_an_interval_count_by_real_labels_and_read_numbered_folders() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    images(&folder.join("photos"), &CLASSES, 10);
    train(folder, &[]).code(0);
    // ImageNet-V2's folders are the numbers of classes; file names are unique, as ImageNet's.
    for (class, (_, shade)) in CLASSES.iter().enumerate() {
        images(&folder.join("drawn"), &[("x", *shade)], 3);
        std::fs::create_dir_all(folder.join(format!("numbered/{class}"))).unwrap();
        for image in 0..3 {
            let to = format!("numbered/{class}/val_{}.bmp", 2 * image + class);
            std::fs::rename(folder.join(format!("drawn/x/{image}.bmp")), folder.join(to)).unwrap();
        }
    }
    let eval = |more: &[&str]| vit_in(folder, [&["eval", "run one", "--data", "numbered"], more].concat());
    let plain = eval(&[]).code(0);
    assert!(plain.err.contains("class folders are numbers"), "{}", plain.err);
    let top1 = plain.out.lines().find(|line| line.starts_with("top-1")).unwrap();
    assert!(top1.contains("95% interval"), "{top1}");
    let json = eval(&["--json"]).code(0).json();
    let top1 = json["top1"].as_f64().unwrap();
    assert!(json["top1_interval"][0].as_f64().unwrap() <= top1 && top1 <= json["top1_interval"][1].as_f64().unwrap());

    // Six images in the order of their names; every class is right for two, none for one, and the label for three.
    std::fs::write(folder.join("real.json"), "[[0, 1], [1], [], [0, 1], [0], [1]]").unwrap();
    let json = eval(&["--json", "--real", "real.json"]).code(0).json();
    assert_eq!((json["real"]["images"].as_u64(), json["real"]["left_out"].as_u64()), (Some(5), Some(1)), "{json}");
    let right = (json["real"]["accuracy"].as_f64().unwrap() * 5.0).round();
    assert!((2.0..=5.0).contains(&right), "{json}");
    assert!(eval(&["--real", "real.json"]).code(0).out.contains("ReaL accuracy"));
    std::fs::write(folder.join("short.json"), "[[0]]").unwrap();
    assert!(eval(&["--real", "short.json"]).code(1).err.contains("labels of 1 images, and there are 6"));
}
