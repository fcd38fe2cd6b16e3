//! Help, exit statuses and usage errors.

mod support;

use std::fs;
use std::path::Path;

use support::{image, model, vit};

/// The commands whose examples are quick.
const QUICK: [&str; 12] = [
    "models", "info", "classify", "embed", "search", "label", "explain", "inspect", "patches", "convert", "export",
    "verify",
];

/// All commands that the help lists.
fn commands() -> Vec<String> {
    let help = vit(["--help"]).code(0).out;
    let lines = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    // A longer description goes on in further lines, which begin with more spaces.
    let lines = lines.filter(|l| !l.starts_with("   "));
    let names: Vec<String> = lines.filter_map(|l| Some(l.split_whitespace().next()?.to_owned())).collect();
    assert!(QUICK.iter().all(|quick| names.iter().any(|name| name == quick)), "{help}");
    names.into_iter().filter(|name| name != "help").collect()
}

#[test]
fn every_command_has_a_help_with_an_example_within_80_columns() {
    for command in commands() {
        let command = command.as_str();
        let help = vit([command, "--help"]).code(0);
        assert!(help.out.contains("Example"), "{command}");
        assert!(help.out.contains(&format!("vit {command} ")), "{command}: {}", help.out);
        assert!(help.err.is_empty());
        for line in help.out.lines() {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
        assert_eq!(vit(["help", command]).code(0).out, help.out);
    }
}

/// The command lines of a help text, as a shell runs them.
fn examples(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|l| !l.starts_with("Example")).skip(1).take_while(|l| !l.is_empty());
    lines.map(str::trim).collect()
}

#[cfg(unix)]
#[test]
fn the_examples_in_the_help_work() {
    // Like a clone of the repository, in a temporary folder.
    let folder = tempfile::tempdir().unwrap();
    for name in ["crates/models/builtin/cifar10", "examples/images"] {
        let to = folder.path().join(name);
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap() {
            let from = entry.unwrap().path();
            fs::copy(&from, to.join(from.file_name().unwrap())).unwrap();
        }
    }
    fs::copy(model("jax_vit").join("model.npz"), folder.path().join("ViT-B_16.npz")).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_vit")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    for command in QUICK {
        let help = vit([command, "--help"]).code(0).out;
        assert!(!examples(&help).is_empty(), "{command}");
        for example in examples(&help) {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", example]).env("PATH", &path).env_remove("VIT_MODEL").current_dir(folder.path());
            let run = support::finished(shell.output().unwrap());
            assert_eq!(run.code, 0, "{example}: {}", run.err);
            let written =
                ["vectors.npy", "labels.csv", "labels.jsonl"].iter().any(|name| folder.path().join(name).exists());
            assert!(!run.out.is_empty() || written, "{example}");
        }
    }
}

#[test]
fn without_a_command_the_help_is_shown() {
    let bare = vit::<&str>([]).code(2);
    assert!(bare.err.contains("Usage: vit [OPTIONS] <COMMAND>") && bare.out.is_empty());
    assert!(vit(["--help"]).code(0).out.contains("Usage: vit [OPTIONS] <COMMAND>"));
    assert!(vit(["--version"]).code(0).out.starts_with("vit "));
}

#[test]
fn wrong_use_is_2_and_names_the_option() {
    let (model, image) = (model("timm_vit"), image("preprocess/tiny.jpg"));
    let (model, image) = (model.to_str().unwrap(), image.to_str().unwrap());
    let cases: &[(&[&str], &str)] = &[
        (&["clasify"], "classify"),
        (&["classify", "-m", model], "IMAGES"),
        (&["classify", "-m", model, image, "--top", "0"], "--top"),
        (&["classify", "-m", model, image, "--format", "xml"], "jsonl"),
        (&["classify", "-m", model, image, "--json", "--format", "csv"], "--format"),
        (&["classify", "-m", model, image, "--batch", "0"], "--batch"),
        (&["classify", "-m", model, image, "--threads", "0"], "--threads"),
        (&["classify", "-m", model, image, "--device", "abacus"], "auto, cpu, cuda or cuda:N"),
        (&["classify", "-m", model, image, "--image-size", "big"], "HEIGHTxWIDTH"),
        (&["embed", "-m", model, image], "--out"),
        (&["embed", "-m", model, image, "--out", "x.txt"], ".npy, .safetensors, .parquet"),
        (&["embed", "-m", model, image, "--out", "x.npy", "--pool", "max"], "features, class, mean or patches"),
        (&["explain", "-m", model, image], "--out"),
        (&["explain", "-m", model, image, "-o", "x", "--method", "magic"], "rollout, gradient, gradcam or attention"),
        (&["explain", "-m", model, image, "-o", "x", "--top", "0"], "--top"),
        (&["inspect", model], "--out"),
        (&["patches", "-m", model, image, "--out", "x.bmp"], ".png or .svg"),
        (&["convert", model], "FOLDER"),
        (&["export", model], "FILE"),
        (&["convert", model, "x", "--layout", "keras"], "hugging-face"),
        (&["verify", model, "--tolerance", "-1"], "--tolerance"),
        (&["info"], "MODEL"),
    ];
    for (arguments, expected) in cases {
        let run = vit(*arguments).code(2);
        assert!(run.err.contains(expected), "{arguments:?}: {}", run.err);
        assert!(run.out.is_empty(), "{arguments:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = support::finished(support::command().arg("models").stdout(full).output().unwrap()).code(1);
    assert!(run.err.starts_with("error: standard output: "), "{}", run.err);
}
