//! A run that does not fit into memory is refused before anything is allocated, with options that fit. The limit is real:
//! the kernel limits the address space of the process.

#![cfg(target_os = "linux")]

mod support;

use std::ffi::OsString;

use support::{Run, command, finished, images, vit};

/// Runs `vit` with at most so many megabytes of address space.
fn limited(megabytes: u64, arguments: Vec<OsString>) -> Run {
    let vit = command().get_program().to_os_string();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -v {}; exec \"$0\" \"$@\"", 1000 * megabytes)).arg(vit).args(arguments);
    finished(shell.env_remove("VIT_MODEL").output().unwrap())
}

#[test]
fn training_that_does_not_fit_aborted_after_a_dry_run_that_passed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("photos");
    images(&data, &[("a", 100), ("b", 200)], 100);
    let out = folder.path().join("run");
    for more in [&["--dry-run"][..], &[]] {
        let mut train =
            arguments!["train", "--data", &data, "--out", &out, "--model", "S/16", "--batch", "128", "--device", "cpu"]
                .to_vec();
        train.extend(["--threads", "1"].map(OsString::from));
        train.extend(more.iter().map(OsString::from));
        let run = limited(2000, train).code(1);
        assert!(run.err.contains("with a batch of 128 this run needs "), "{}", run.err);
        assert!(run.err.contains("that the limit of its address space allows; what fits: --batch "), "{}", run.err);
        assert!(run.err.contains("--recompute") || run.err.contains("--set accumulate="), "{}", run.err);
        assert!(!out.exists(), "nothing is begun that cannot be done");
    }
}

#[test]
fn inference_that_does_not_fit_aborted() {
    let infer = arguments![
        "bench",
        "infer",
        "--model",
        "S/16",
        "--batch",
        "4096",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--seconds",
        "0.1"
    ]
    .to_vec();
    let run = limited(1500, infer).code(1);
    assert!(
        run.err.contains("cpu: this model needs ") && run.err.contains(" instead of 4096 would fit"),
        "{}",
        run.err
    );

    let folder = tempfile::tempdir().unwrap();
    images(folder.path(), &[("a", 100), ("b", 200)], 150);
    let classify = arguments![
        "classify",
        folder.path(),
        "--image-size",
        "256",
        "--batch",
        "300",
        "--device",
        "cpu",
        "--threads",
        "1"
    ];
    let run = limited(1000, classify.to_vec()).code(1);
    assert!(run.err.contains(" instead of 300 would fit"), "{}", run.err);
}

#[test]
fn a_dry_run_shows_every_part_and_info_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("photos"), folder.path().join("run"));
    images(&data, &[("a", 100), ("b", 200)], 10);
    let train = |more: &[&str]| {
        let mut all = arguments!["train", "--data", &data, "--out", &out, "--model", "P/4@12", "--batch", "6"].to_vec();
        all.extend(["--device", "cpu", "--set", "length=2 steps"].map(OsString::from));
        all.extend(more.iter().map(OsString::from));
        vit(&all).code(0)
    };
    let dry = train(&["--dry-run"]).err;
    for part in ["process", "weights", "optimiser", "activations", "batches", "decoded images", "evaluation", "saving"]
    {
        assert!(dry.contains(&format!("\n  {part} ")), "{part}: {dry}");
    }
    assert!(dry.contains("\n  at most ") && dry.contains("disk: up to "), "{dry}");

    let run = train(&[]).err;
    assert!(run.contains("memory: up to ") && run.contains("at most, ") && run.contains(" planned"), "{run}");
    let info = vit(arguments!["info", out.join("checkpoints/last"), "--batch", "6", "--train"]).code(0).out;
    let line = |text: &str, part: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(part)).map(str::to_string);
        found.unwrap_or_else(|| panic!("{part}: {text}"))
    };
    for part in ["weights", "optimiser", "activations", "batches", "saving"] {
        assert_eq!(line(&dry, part), line(&info, part));
    }
}
