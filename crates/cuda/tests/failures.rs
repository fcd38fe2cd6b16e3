//! What a user reads when the GPU, its driver or its memory fails: one clear sentence, no panic, no hang. A stand-in for
//! the driver (`fake/lib.rs`) fails on demand, in a process of its own for each failure.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::{DType, Graph, Init, Tensor};

/// Says which process is the child.
const CHILD: &str = "VIT_TEST_OF_FAILURES";

fn graph() -> Graph {
    let x = Tensor::input("x", DType::F32, [64, 256]);
    let weight = x.parameter("weight", [256, 256], Init::Ones);
    x.linear(&weight, None).linear(&weight, None).output("y");
    x.finish().unwrap()
}

/// Opens the GPU, compiles a small graph and runs it ten times; prints what went wrong.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let device = match Cuda::new(0, Precision::F32) {
        Ok(device) => device,
        Err(reason) => return println!("unavailable: {reason}"),
    };
    let mut weights = BTreeMap::from([("weight".to_string(), vec![1.0; 256 * 256])]);
    let mut executable = match device.compile(&graph(), &mut weights) {
        Ok(executable) => executable,
        Err(error) => return println!("compiling: {error}"),
    };
    for run in 1..=10 {
        if let Err(error) = step(executable.as_mut()) {
            println!("run {run}: {error}");
            // Whoever goes on all the same is told again.
            println!("again: {}", step(executable.as_mut()).unwrap_err());
            return;
        }
    }
    println!("fine");
}

fn step(executable: &mut dyn Executable) -> Result<(), vit_graph::GraphError> {
    executable.write("x", Elements::F32(&[1.0; 64 * 256]))?;
    executable.run()?;
    executable.read("y", &mut [0.0; 64 * 256])
}

/// The stand-in, which Cargo builds with the examples.
fn fake() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.ancestors().nth(2).unwrap().join("examples/libfake_cuda.so");
    assert!(library.exists(), "build the stand-in first: cargo build -p vit-cuda --example fake_cuda");
    library
}

/// What the child says with the stand-in failing like this and these libraries in place.
fn says(failure: &str, libraries: &[&str]) -> String {
    // A colon would end the folder in the list of folders.
    let name = format!("vit-failures-{}-{}", std::process::id(), failure.replace(':', "-"));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for name in libraries {
        std::fs::copy(fake(), folder.join(name)).unwrap();
    }
    let said = run(failure, &folder);
    std::fs::remove_dir_all(&folder).unwrap();
    said
}

fn run(failure: &str, folder: &Path) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env("FAKE_CUDA", failure)
        .env("LD_LIBRARY_PATH", folder)
        .env("XDG_CACHE_HOME", folder)
        .env_remove("VIRTUAL_ENV")
        .env_remove("CUDA_HOME")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{failure}: it hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{failure}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

const ALL: [&str; 3] = ["libcuda.so", "libnvrtc.so", "libcublasLt.so"];

fn expect(failure: &str, libraries: &[&str], parts: &[&str]) {
    let said = says(failure, libraries);
    for part in parts {
        assert!(said.contains(part), "{failure}: {part:?} is not in {said}");
    }
}

#[test]
fn the_stand_in_works_where_nothing_fails() {
    expect("nothing", &ALL, &["fine"]);
}

#[test]
fn drivers_that_cannot_be_used_are_named() {
    expect("old", &ALL, &["unavailable: the NVIDIA driver is made for CUDA 11.8; update it to one for CUDA 12.8"]);
    expect("mismatch", &ALL, &["unavailable: the parts of the NVIDIA driver have different versions", "restart"]);
    expect("none", &ALL, &["unavailable: there is no GPU number 0; the driver finds 0"]);
}

#[test]
fn memory_that_is_not_there_is_an_error_with_a_way_out() {
    expect("small", &ALL, &["compiling: cuda: this model needs 0.0", "of 0.00 GB are free", "take a smaller --batch"]);
}

#[test]
fn kernels_that_do_not_compile_are_an_error_with_a_way_out() {
    expect("uncompiled", &ALL, &["compiling: cuda: compiling arithmetic.cu failed", "use --device cpu"]);
}

#[test]
fn a_gpu_that_is_lost_in_mid_run_is_an_error_every_time() {
    // The first run is launched kernel by kernel, so the third launch of the graph is the fourth run.
    expect(
        "lost:3",
        &ALL,
        &["run 4: cuda: the GPU was lost while", "error number 700", "again: cuda: the GPU was lost"],
    );
}
