//! Checkpoints of a process that is killed, and on a full disk. The child process is this test binary, which saves until it
//! is killed if an environment variable is set.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vit_graph::random::Seed;
use vit_models::weights::{Tensor, Weights};
use vit_models::{Checkpoint, Config, OpenOptions, ProblemType};
use vit_train::{RunFolder, RunPosition, SaveError, Slot, Snapshot};

const FOLDER: &str = "VIT_TEST_SAVE_INTO";
const CHILD: &str = "the_child_saves_until_it_is_stopped";

/// About a megabyte of values that depend on the step.
fn tensors(step: u64) -> Weights {
    let values: Vec<f32> = (0..300_000).map(|index| (step * 1_000 + index % 1_000) as f32).collect();
    let mut weights = Weights::default();
    weights.metadata.insert("format".into(), "pt".into());
    weights.insert("blocks.0.mlp.fc1.weight", Tensor::new(vec![300, 1000], values).unwrap()).unwrap();
    weights
}

fn snapshot(step: u64) -> Snapshot {
    let variant = vit_models::variant("Ti/16@32").unwrap();
    let (architecture, preprocessing) = (variant.architecture, variant.preprocessing);
    let config =
        Config { name: None, architecture, preprocessing, labels: vec![], problem_type: ProblemType::default() };
    Snapshot {
        config,
        tokenizer: None,
        weights: tensors(step),
        optimiser: tensors(2 * step),
        position: RunPosition { step, ..RunPosition::default() },
    }
}

/// Not a test: the child process.
#[test]
fn the_child_saves_until_it_is_stopped() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let slot = Slot::new(Path::new(&folder).join("last"));
    let first = if slot.is_empty() { 1 } else { slot.open().unwrap().snapshot.position.step + 1 };
    for step in first.. {
        if let Err(error) = slot.save(&snapshot(step)) {
            eprintln!("{error}");
            std::process::exit(3);
        }
        println!("saved {step}");
    }
}

fn child(program: &mut Command, folder: &Path) -> Child {
    program.env(FOLDER, folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_process_killed_at_any_moment_leaves_a_whole_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("last"));
    let step_of = |line: &str| line.strip_prefix("saved ").and_then(|step| step.parse::<u64>().ok());
    let (mut newest, mut interrupted) = (0, 0);
    for kill in 0..20 {
        let mut program = Command::new(std::env::current_exe().unwrap());
        let mut child = child(program.args(["--exact", CHILD, "--nocapture"]), folder.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        newest = lines.find_map(|line| step_of(&line)).expect("the child saves at least once");
        std::thread::sleep(Duration::from_micros(u64::from(Seed::new(1, 0).word(0, kill)) % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();
        newest = lines.filter_map(|line| step_of(&line)).last().unwrap_or(newest);

        interrupted += u32::from(folder.path().join("last.partial").exists());
        let opened = slot.open().unwrap_or_else(|error| panic!("kill {kill}: {error}"));
        let step = opened.snapshot.position.step;
        assert!(step >= newest, "kill {kill}: step {newest} was saved, step {step} is there");
        assert_eq!(opened.snapshot.weights, tensors(step));
        assert_eq!(opened.snapshot.optimiser, tensors(2 * step));
        newest = step;
    }
    assert!(newest >= 20);
    println!("{interrupted} of 20 kills came in the middle of a save; the last checkpoint is of step {newest}");
}

/// A full disk is simulated by a limit on the size of files.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_checkpoint_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("last"));
    slot.save(&snapshot(7)).unwrap();
    let before = slot.open().unwrap();
    let mut shell = Command::new("sh");
    // In blocks of 512 bytes: half of the weights. The signal is ignored, so that the write fails instead.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1200; exec \"$0\" --exact \"$1\" --nocapture"]);
    shell.arg(std::env::current_exe().unwrap()).arg(CHILD);
    let ended = child(&mut shell, folder.path()).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains("model.safetensors") && said.contains("untouched (make room"), "{said}");
    assert_eq!(slot.open().unwrap(), before);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["last"]);
}

#[test]
fn the_best_checkpoint_is_a_model_folder() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/train_step");
    let model = Checkpoint::open(
        &model,
        OpenOptions { weights: Some(&model.join("model.safetensors")), ..OpenOptions::default() },
    )
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::create(folder.path().join("run"), "", vit_train::Existing::Refuse).unwrap();
    let position = RunPosition { step: 5, ..RunPosition::default() };
    let (config, weights) = (model.config.clone(), model.weights.clone());
    run.best().save(&Snapshot { config, tokenizer: None, weights, optimiser: Weights::default(), position }).unwrap();
    let opened = Checkpoint::open(&folder.path().join("run/checkpoints/best"), OpenOptions::default()).unwrap();
    assert_eq!(opened.weights.tensors, model.weights.tensors);
    assert_eq!(opened.config.architecture, model.config.architecture);
    assert!(opened.report.is_empty(), "{:?}", opened.report);
    assert!(run.best().open().unwrap().snapshot.optimiser.tensors.is_empty());
    assert!(matches!(run.last().open(), Err(SaveError::NoneWhole { .. })));
}
