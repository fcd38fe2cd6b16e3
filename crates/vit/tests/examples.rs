//! The examples run. `cargo test` builds them beside the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn image(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/images").join(name)
}

/// Runs an example and returns what it prints.
fn run<A: AsRef<std::ffi::OsStr>>(example: &str, arguments: &[A]) -> String {
    let tests = std::env::current_exe().unwrap();
    let binary = tests.parent().and_then(Path::parent).unwrap().join("examples").join(example);
    assert!(
        binary.exists(),
        "{} is missing; `cargo test -p vit --features train` builds the examples",
        binary.display()
    );
    let output = Command::new(binary).args(arguments).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{example}: {out}{err}");
    out.into_owned()
}

/// A dataset of two classes with eight images each.
fn photos(folder: &Path) -> PathBuf {
    for (class, names) in [("animal", ["bird.jpg", "dog.jpg"]), ("vehicle", ["car.jpg", "ship.jpg"])] {
        fs::create_dir_all(folder.join("photos").join(class)).unwrap();
        for number in 0..8 {
            let to = folder.join("photos").join(class).join(format!("{number}.jpg"));
            fs::copy(image(names[number % 2]), to).unwrap();
        }
    }
    folder.join("photos")
}

#[test]
fn classify() {
    let out = run("classify", &["dog.jpg", "ship.jpg"].map(image));
    assert!(out.contains("dog.jpg: dog (") && out.contains("ship.jpg: ship ("), "{out}");
}

#[test]
fn embed() {
    let out = run("embed", &["dog.jpg", "ship.jpg", "dog.jpg"].map(image));
    let similarities: Vec<f32> =
        out.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert_eq!((similarities[0], similarities[2]), (1.0, 1.0), "{out}");
    assert!(similarities[1] < 0.9, "{out}");
}

#[test]
fn train() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run_folder) = (photos(folder.path()), folder.path().join("run"));
    let out = run("train", &[data.as_os_str(), run_folder.as_os_str(), "length=2 steps".as_ref(), "batch=4".as_ref()]);
    assert!(out.contains("2 steps") && out.contains("best val/top1"), "{out}");
}

#[test]
fn own_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let out = run("own_dataset", &[folder.path().join("run")]);
    let labels: Vec<&str> = out.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(labels, ["horizontal", "vertical"], "{out}");
}

#[test]
fn own_architecture() {
    let folder = tempfile::tempdir().unwrap();
    let (data, run_folder) = (photos(folder.path()), folder.path().join("run"));
    let settings = ["length=2 steps", "batch=4"].map(std::ffi::OsStr::new);
    let out = run("own_architecture", &[data.as_os_str(), run_folder.as_os_str(), settings[0], settings[1]]);
    assert!(out.contains("MLP-Mixer, classes animal, vehicle"), "{out}");
}
