//! Failures of the GPU, its driver or its memory are errors with one clear sentence: no panic, no hang. A fake driver
//! (`fake/lib.rs`) fails on demand, in a child process for each failure.
#![cfg(target_os = "linux")]

mod fake_driver;

use std::collections::BTreeMap;

use fake_driver::{ALL, CHILD, child_output};
use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::{DType, Graph, Init, Tensor};

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
            // Later calls fail with the same error.
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

fn expect(failure: &str, libraries: &[&str], parts: &[&str]) {
    let output = child_output(failure, libraries, &[]);
    for part in parts {
        assert!(output.contains(part), "{failure}: {part:?} is not in {output}");
    }
}

#[test]
fn the_fake_driver_works_where_nothing_fails() {
    expect("nothing", &ALL, &["fine"]);
}

#[test]
fn drivers_that_cannot_be_used_are_named() {
    expect("old", &ALL, &["unavailable: the NVIDIA driver is made for CUDA 11.8; update it to one for CUDA 12.8"]);
    expect("mismatch", &ALL, &["unavailable: the parts of the NVIDIA driver have different versions", "restart"]);
    expect("none", &ALL, &["unavailable: there is no GPU number 0; the driver finds 0"]);
}

#[test]
fn too_little_memory_is_an_error_with_a_hint() {
    expect("small", &ALL, &["compiling: cuda: this model needs 0.0", "of 0.00 GB are free", "take a smaller batch"]);
}

#[test]
fn kernels_that_do_not_compile_are_an_error_with_a_hint() {
    expect("uncompiled", &ALL, &["compiling: cuda: compiling arithmetic.cu failed", "use the device cpu"]);
}

#[test]
fn a_gpu_that_is_lost_in_mid_run_is_an_error_every_time() {
    // The first run launches kernel by kernel, so the third launch of the CUDA graph is the fourth run.
    expect(
        "lost:3",
        &ALL,
        &["run 4: cuda: the GPU was lost while", "error number 700", "again: cuda: the GPU was lost"],
    );
}
