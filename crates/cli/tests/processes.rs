//! Training in several processes, as a user starts them: the same bytes as one process, also across deaths.

#![cfg(target_os = "linux")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Run, command, finished, images, vit};

const CLASSES: [(&str, u8); 3] = [("a", 30), ("b", 120), ("c", 220)];

struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        images(&folder.path().join("photos"), &CLASSES, 16);
        Scene { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The arguments of a run with all features that have state or randomness.
    fn train(&self, out: &str, steps: u32, more: &[&str]) -> Vec<String> {
        self.train_model("P/4@12", out, steps, more)
    }

    fn train_model(&self, model: &str, out: &str, steps: u32, more: &[&str]) -> Vec<String> {
        let (data, out) = (self.path("photos").display().to_string(), self.path(out).display().to_string());
        let fixed = ["train", "--model", model, "--batch", "16", "--device", "cpu", "--threads", "1"];
        let length = format!("length={steps} steps");
        let settings = [
            length.as_str(),
            "evaluate_every=4 steps",
            "accumulate=2",
            "data.mixup=0.8",
            "data.cutmix=1.0",
            "model.dropout=0.1",
            "model.drop_path=0.2",
            "average.decay=0.9",
        ];
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let all = fixed.into_iter().chain(["--data", &data, "--out", &out]).chain(settings);
        all.chain(more.iter().copied()).map(String::from).collect()
    }

    /// The bytes of the last checkpoint, and the metrics without those of time.
    fn result(&self, run: &str) -> (Vec<Vec<u8>>, Vec<String>) {
        let last = self.path(run).join("checkpoints/last");
        let mut files: Vec<PathBuf> = std::fs::read_dir(&last).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "safetensors"));
        files.sort();
        assert!(files.len() >= 2, "{files:?}");
        let rows = std::fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap();
        let metrics = rows.lines().map(|line| {
            let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
            let row = row.as_object_mut().unwrap();
            for time in ["time", "train/images_per_second", "train/waiting"] {
                row.remove(time);
            }
            serde_json::to_string(row).unwrap()
        });
        (files.iter().map(|file| std::fs::read(file).unwrap()).collect(), metrics.collect())
    }

    fn resume(&self, run: &str, more: &[&str]) -> Run {
        let run = self.path(run).display().to_string();
        vit(["resume", &run].into_iter().chain(more.iter().copied()))
    }
}

#[test]
fn one_two_and_four_processes_write_the_same_bytes() {
    let scene = Scene::new();
    vit(scene.train("one", 10, &["--set", "parts=8"])).code(0);
    let one = scene.result("one");
    let two = vit(scene.train("two", 10, &["--processes", "2"])).code(0);
    assert!(two.err.contains("parts: 8, since there are 2 processes; with parts=8 one process"), "{}", two.err);
    assert!(two.err.contains("in 2 processes over TCP"), "{}", two.err);
    assert!(scene.result("two") == one);
    vit(scene.train("four", 10, &["--processes", "4"])).code(0);
    assert!(scene.result("four") == one);
    // Rank 0 alone writes and reports.
    assert_eq!(two.err.matches("done in").count(), 1, "{}", two.err);
}

#[test]
fn processes_that_divide_the_state_write_the_same_bytes() {
    let scene = Scene::new();
    // Tensors of a Ti are large enough to be divided.
    let train = |out, more: &[&str]| vit(scene.train_model("Ti/4@12", out, 2, more));
    train("one", &["--set", "parts=8"]).code(0);
    for shard in ["optimiser", "all"] {
        train(shard, &["--processes", "2", "--shard", shard]).code(0);
        assert!(scene.result(shard) == scene.result("one"), "{shard}");
    }
}

#[test]
fn processes_of_torchrun_and_mpirun_find_each_other() {
    let scene = Scene::new();
    vit(scene.train("one", 4, &["--set", "parts=8"])).code(0);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let ranks: Vec<Child> = (0..2)
        .map(|rank: u32| {
            let rank = rank.to_string();
            let variables = [
                ("RANK", &*rank),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", &*rank),
                ("LOCAL_WORLD_SIZE", "2"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &*port),
                ("VIT_CLUSTER_SECRET", "between us"),
            ];
            let mut command = command();
            command.args(scene.train("torchrun", 4, &[])).envs(variables).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for rank in ranks {
        finished(rank.wait_with_output().unwrap()).code(0);
    }
    assert!(scene.result("torchrun") == scene.result("one"));

    let Ok(version) = Command::new("mpirun").arg("--version").output() else {
        println!("mpirun was not found: MPI is not tested");
        return;
    };
    let mut mpirun = Command::new("mpirun");
    if String::from_utf8_lossy(&version.stdout).contains("Open MPI") {
        mpirun.arg("--oversubscribe");
    }
    let allowed = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
    mpirun.args(["-n", "2", env!("CARGO_BIN_EXE_vit")]).args(scene.train("mpirun", 4, &[])).envs(allowed);
    finished(mpirun.stdin(Stdio::null()).output().unwrap()).code(0);
    assert!(scene.result("mpirun") == scene.result("one"));
}

/// A run in the background, and its processes.
struct Background {
    launcher: Child,
    events: BufReader<std::process::ChildStdout>,
}

impl Background {
    fn start(arguments: Vec<String>) -> Background {
        let mut command = command();
        command.args(arguments).args(["--json"]).stdin(Stdio::null());
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let events = BufReader::new(launcher.stdout.take().unwrap());
        Background { launcher, events }
    }

    /// Waits until a step was logged.
    fn after_step(&mut self) {
        let mut line = String::new();
        while !line.contains("\"event\":\"step\"") {
            line.clear();
            assert_ne!(self.events.read_line(&mut line).unwrap(), 0, "the run ended too early");
        }
    }

    /// The processes that the launcher started.
    fn ranks(&self) -> Vec<String> {
        let id = self.launcher.id();
        // Children belong to the thread that started them.
        let threads = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
        let children = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("children")).unwrap());
        let mut all: Vec<u32> =
            children.flat_map(|ids| ids.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<_>>()).collect();
        all.sort_unstable();
        all.iter().map(ToString::to_string).collect()
    }

    fn end(self) -> Run {
        let began = Instant::now();
        // The rest of its events, so that the run is not blocked.
        let drain = std::thread::spawn(move || for _ in self.events.lines() {});
        let output = self.launcher.wait_with_output().unwrap();
        drain.join().unwrap();
        assert!(began.elapsed() < Duration::from_secs(30));
        finished(output)
    }
}

fn kill(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

fn has_ended(process: &str) -> bool {
    let ended = |state: String| state.contains("\nState:\tZ");
    !Path::new("/proc").join(process).exists()
        || std::fs::read_to_string(format!("/proc/{process}/status")).map_or(true, ended)
}

#[test]
fn a_run_that_loses_a_process_ends_and_continues_with_fewer() {
    let scene = Scene::new();
    vit(scene.train("whole", 40, &["--set", "parts=8"])).code(0);
    for (run, victim, rest) in [("one-died", 2, "2"), ("root-died", 0, "1")] {
        let mut run_of_four = Background::start(scene.train(run, 40, &["--processes", "4"]));
        run_of_four.after_step();
        let ranks = run_of_four.ranks();
        assert_eq!(ranks.len(), 4);
        kill("-KILL", &ranks[victim]);
        let ended = run_of_four.end();
        assert_ne!(ended.code, 0);
        assert!(ended.err.contains(&format!("rank {victim} ")), "{}", ended.err);
        assert!(ranks.iter().all(|rank| has_ended(rank)));
        scene.resume(run, &["--processes", rest]).code(0);
        assert!(scene.result(run).0 == scene.result("whole").0, "{run}");
    }
}

#[test]
fn a_signal_to_any_process_saves_and_stops_all() {
    let scene = Scene::new();
    vit(scene.train("whole", 40, &["--set", "parts=8"])).code(0);
    for (run, signal) in [("terminated", "-TERM"), ("warned", "-USR1")] {
        let mut two = Background::start(scene.train(run, 40, &["--processes", "2"]));
        two.after_step();
        kill(signal, &two.ranks()[1]);
        let ended = two.end();
        assert!(ended.code == 143 || ended.code == 138, "{} {}", ended.code, ended.err);
        assert!(ended.err.contains("stopped and saved after step"), "{}", ended.err);
        scene.resume(run, &[]).code(0);
        assert!(scene.result(run) == scene.result("whole"), "{run}");
    }
}

#[test]
fn too_many_processes_are_refused_in_one_sentence() {
    let scene = Scene::new();
    let refused = vit(scene.train("refused", 4, &["--processes", "4", "--set", "parts=2"])).code(1);
    let error = "error: the run cuts its batch into 2 parts, so it has at most 2 processes and not 4\n";
    assert!(refused.err.ends_with(error) && refused.err.matches("error:").count() == 1, "{}", refused.err);
}
