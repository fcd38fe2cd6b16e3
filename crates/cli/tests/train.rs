//! Training: folders with damaged and foreign files, kills at any moment, evaluation.

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use support::{command, image, images, vit, write_bmp};

fn weights(run: &Path) -> (Vec<u8>, Vec<u8>) {
    let last = run.join("checkpoints/last");
    let read = |name: &str| std::fs::read(last.join(name)).unwrap();
    (read("model.safetensors"), read("optimiser.safetensors"))
}

const SMALL: [&str; 12] = [
    "--model",
    "P/4@12",
    "--batch",
    "6",
    "--set",
    "length=40 steps",
    "--set",
    "data.mixup=0.8",
    "--set",
    "average.decay=0.9",
    "--set",
    "evaluate_every=15 steps",
];

#[test]
fn a_folder_with_everything_wrong_trains_and_says_what_it_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("my photos ñ");
    images(&data, &[("Äpfel und Birnen", 200), ("日本", 40)], 12);
    std::fs::create_dir(data.join("empty one")).unwrap();
    std::fs::write(data.join("日本/broken.jpg"), b"\xff\xd8\xff\xe0 this is not an image").unwrap();
    std::fs::copy(image("formats/jpeg_cmyk.jpg"), data.join("日本/inks.jpg")).unwrap();
    write_bmp(&data.join("Äpfel und Birnen/one pixel.bmp"), 1, &[9, 99, 199]);
    std::fs::write(data.join("Äpfel und Birnen/notes.txt"), "not an image").unwrap();
    let out = folder.path().join("run one");
    let mut arguments: Vec<std::ffi::OsString> = vec!["train".into(), "--data".into(), data.clone().into()];
    arguments.extend(SMALL.map(Into::into));
    arguments.extend(["--out".into(), out.clone().into()]);
    let run = vit(&arguments).code(0);
    assert!(run.err.contains("empty one"), "{}", run.err);
    let report = std::fs::read_to_string(out.join("data.txt")).unwrap();
    assert!(report.contains("empty one") && report.contains("日本"), "{report}");
    // The damaged file is in one of the splits; it is reported for either.
    assert!(report.contains("broken.jpg") || run.err.contains("broken.jpg"), "{report}\n{}", run.err);

    // A folder with a run is refused.
    let again = vit(&arguments).code(1);
    assert!(again.err.contains("--overwrite") || again.err.contains("already"), "{}", again.err);

    // The run's folder serves as a model.
    let eval = vit(arguments!["eval", &out, "--data", &data, "--split", "all", "--json"]);
    let figures = eval.json();
    assert!(figures["top1"].as_f64().unwrap() > 0.5, "{figures}");
    let best = out.join("checkpoints/best");
    vit(arguments!["classify", "--model", &best, data.join("日本/0.bmp")]).code(0);
}

#[test]
fn a_run_killed_at_any_moment_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, &[("a", 30), ("b", 220)], 9);
    let train = |out: &Path| -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = vec!["train".into(), "--data".into(), data.clone().into()];
        arguments.extend(SMALL.map(Into::into));
        // Saves after every step, so that many kills interrupt a save.
        arguments.extend(["--save-every".into(), "0".into(), "--out".into(), PathBuf::from(out).into()]);
        arguments
    };
    let whole = folder.path().join("whole");
    vit(train(&whole)).code(0);
    let expected = weights(&whole);

    let killed = folder.path().join("killed");
    let mut kills = 0;
    let mut moment = 3u64;
    let mut arguments = train(&killed);
    loop {
        let mut child = command().args(&arguments).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The moment of the kill does not matter.
        moment = (moment * 29 + 17) % 211;
        std::thread::sleep(Duration::from_millis(20 + moment));
        if kills < 20 && child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        } else {
            assert!(child.wait().unwrap().success());
            break;
        }
        // A kill may leave an incomplete first checkpoint, which cannot be resumed.
        let saved = |name: &str| killed.join("checkpoints").join(name).is_dir();
        if saved("last") || saved("last.previous") {
            arguments = arguments!["resume", &killed, "--save-every", "0"].to_vec();
        } else if !arguments.contains(&"--overwrite".into()) {
            arguments.push("--overwrite".into());
        }
    }
    assert!(kills > 0);
    // Even if no kill was in time, the run has been resumed to its end.
    vit(arguments!["resume", &killed]).code(0);
    assert!(expected == weights(&killed), "the weights differ after {kills} kills");
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, &[("a", 30), ("b", 220)], 4);
    let wrong = |more: &[&str]| {
        let mut arguments: Vec<std::ffi::OsString> = vec!["train".into(), "--data".into(), data.clone().into()];
        arguments.extend(more.iter().map(Into::into));
        vit(arguments).code(1).err
    };
    assert!(wrong(&["--set", "schedule.rte=1"]).contains("schedule.rate"));
    assert!(wrong(&["--recipe", "smal"]).contains("small"));
    assert!(wrong(&["--model", "nothing"]).contains("vit models"));
    assert!(vit(arguments!["train", "--data", folder.path().join("missing")]).code(1).err.contains("missing"));
    assert!(vit(arguments!["resume", folder.path()]).code(1).err.contains("run"));
    let recipe = vit(["recipes", "show", "small"]).code(0).out;
    assert!(recipe.contains("schedule") && recipe.contains('#'));
    assert!(vit(["recipes"]).code(0).out.contains("vit-finetune"));
}

#[cfg(unix)]
#[test]
fn a_signal_saves_and_ends_with_its_own_status() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, &[("a", 30), ("b", 220)], 9);
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        let out = folder.path().join(signal);
        let mut child = command()
            .args(arguments!["train", "--data", &data, "--model", "P/4@12", "--batch", "6", "--out", &out])
            .args(["--quiet", "--json", "--set", "length=100000 steps", "--set", "evaluate_every=100%"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let step: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&step["event"], &step["steps"]), (&"step".into(), &100_000.into()));
        assert!(
            std::process::Command::new("kill")
                .arg(format!("-{signal}"))
                .arg(child.id().to_string())
                .status()
                .unwrap()
                .success()
        );
        let last = lines.map(Result::unwrap).last().unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(status));
        // Quiet: neither progress nor the reason for stopping.
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), "");
        let end: serde_json::Value = serde_json::from_str(&last).unwrap();
        assert_eq!((&end["event"], &end["complete"]), (&"end".into(), &false.into()));
        // Saved where it was stopped.
        let state = std::fs::read_to_string(out.join("checkpoints/last/state.json")).unwrap();
        let state: serde_json::Value = serde_json::from_str(&state).unwrap();
        assert!(end["step"].as_u64().unwrap() > 0 && state["step"] == end["step"], "{end} and {state}");
    }
}

#[test]
fn programs_read_steps_evaluations_and_the_end_and_people_what_it_took() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, &[("a", 30), ("b", 220)], 9);
    let out = folder.path().join("run");
    let mut arguments: Vec<std::ffi::OsString> = arguments!["train", "--data", &data, "--json", "--out", &out].to_vec();
    arguments.extend(SMALL.map(Into::into));
    arguments.extend(arguments!["--set", "schedule.rate=0", "--set", "patience=1"]);
    let run = vit(&arguments).code(0);
    let events = run.json_lines();
    let of = |kind: &str| events.iter().filter(|e| e["event"] == kind).collect::<Vec<_>>();
    // The evaluated average does not change: the first evaluation is the best, then patience ends the run.
    assert_eq!(of("evaluation").iter().map(|e| e["best"] == true).collect::<Vec<_>>(), [true, false]);
    assert!(of("step").iter().all(|e| e["loss"].as_f64().is_some_and(f64::is_finite)), "{}", run.out);
    let end = events.last().unwrap();
    assert_eq!((&end["event"], &end["early"], &end["step"]), (&"end".into(), &true.into(), &30.into()));
    assert!(end["disk"].as_u64().unwrap() > 10_000, "{end}");
    if cfg!(target_os = "linux") {
        assert!(end["peak_memory"].as_u64().unwrap() > 1 << 20, "{end}");
        assert!(run.err.contains("of memory at most"), "{}", run.err);
    }
    assert!(run.err.contains("stopped early after step 30") && run.err.contains("on disk"), "{}", run.err);
}
