//! Runs the test `child` of this binary in a child process with the fake driver (`fake/lib.rs`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the child process.
pub const CHILD: &str = "VIT_TEST_WITH_A_STAND_IN";

/// The names of all libraries that the device loads.
pub const ALL: [&str; 3] = ["libcuda.so", "libnvrtc.so", "libcublasLt.so"];

/// The fake driver, which Cargo builds with the examples.
fn fake() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.ancestors().nth(2).unwrap().join("examples/libfake_cuda.so");
    assert!(library.exists(), "build the fake driver first: cargo build -p vit-cuda --example fake_cuda");
    library
}

/// The output of the test `child`, with this behaviour of the fake driver, these libraries and these variables.
pub fn child_output(behaviour: &str, libraries: &[&str], variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for name in libraries {
        // One file under all names is loaded once, so that all libraries share its state.
        std::os::unix::fs::symlink(fake(), folder.path().join(name)).unwrap();
    }
    run(behaviour, folder.path(), variables)
}

fn run(behaviour: &str, folder: &Path, variables: &[(&str, &str)]) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env("FAKE_CUDA", behaviour)
        .env("LD_LIBRARY_PATH", folder)
        .env("XDG_CACHE_HOME", folder)
        .env_remove("VIRTUAL_ENV")
        .env_remove("CUDA_HOME")
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{behaviour}: it hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{behaviour}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}
